"""DingTalk with a secret: Apprise 2.3 encodes the signature twice, and DingTalk refuses it with an answer of 200."""

from __future__ import annotations

from urllib.parse import unquote

from apprise.plugins.dingtalk import NotifyDingTalk


class NotifyDingTalkSigned(NotifyDingTalk):  # type: ignore[misc]
    """As Apprise's; the signature is encoded once, when it becomes part of the URL."""

    def get_signature(self) -> tuple[str, str]:
        timestamp, signature = super().get_signature()
        return timestamp, unquote(signature)
