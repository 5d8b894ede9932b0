"""Which channels hear of what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sre.breaker.policy import policy_of
from sre.notify.samples import HANG
from sre.settings.models import Root
from sre.settings.notify import ChannelSettings, NotifySettings

ROOT = Root(
    notify=NotifySettings(
        channels=(
            ChannelSettings(name="mail", kind="email", url="env:M"),
            ChannelSettings(name="sms", kind="sms", url="env:S", severities=("page",)),
            ChannelSettings(name="log", kind="webhook", url="env:L", severities=("page", "ticket", "info")),
        )
    )
)


@pytest.mark.parametrize(
    ("event", "severity", "heard_by"),
    [
        ("open", "page", ["mail", "sms", "log"]),
        ("escalate", "page", ["mail", "sms", "log"]),
        ("open", "ticket", ["mail", "log"]),
        ("blind", "ticket", ["mail", "log"]),
        ("open", "info", ["log"]),
        # Its own severity is "info", but who heard of the beginning must hear of the end.
        ("resolve", "info", ["mail", "sms", "log"]),
    ],
)
def test_severities_choose_the_channels(event: str, severity: str, heard_by: list[str]) -> None:
    message = replace(HANG, event=event, severity=severity)
    assert list(policy_of(ROOT).listeners(message)) == heard_by
