"""What can never work is refused before anything is started: the guard's part, without a stack."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from sre.settings.models import Root
from sre.settings.notify import ChannelSettings, NotifySettings
from sre.settings.webhook import WebhookSettings
from sre.wiring.preflight import LATE_SECRETS, preflight


def said(
    root: Root, *, ours: frozenset[int] = frozenset(), with_guard: bool = True, late_secrets: bool = False
) -> list[str]:
    """What concerns the guard's paging; whether Envoy is here is another matter."""
    problems = preflight(
        root, ours, {"TOKEN": "t", "BAD": "nosuch://x"}, with_guard=with_guard, late_secrets=late_secrets
    )
    return [problem for problem in problems if problem.startswith(("webhook", "notify", "without"))]


def test_a_webhook_port_that_is_taken_is_refused_with_who_has_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        root = Root(webhook=WebhookSettings(enabled=True, token="env:TOKEN", port=port))
        (problem,) = said(root)
        assert problem.startswith(f"webhook.port: 127.0.0.1:{port} is taken by ")
        assert f"(pid {os.getpid()})" in problem
        assert said(root, ours=frozenset({os.getpid()})) == [], "the guard of this very stack has it"
        assert said(root, with_guard=False) == [], "the guard serves the webhook: none, no port"
        off = root.model_copy(update={"webhook": root.webhook.model_copy(update={"enabled": False})})
        assert said(off) == []


def test_secrets_that_are_not_there_are_refused_each_by_its_setting(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    root = Root(
        notify=NotifySettings(channels=(ChannelSettings(name="sms", kind="sms", url=f"file:{secret}"),)),
        webhook=WebhookSettings(enabled=True, token="env:NOT_THERE", port=1),
    )
    told = [problem for problem in said(root) if not problem.startswith("webhook.port")]
    assert told == [
        f"notify.channels[0].url: secret file {secret}: No such file or directory; check path and permissions",
        "webhook.token: environment variable NOT_THERE is not set; export it before running sre",
        LATE_SECRETS,
    ], "and how to go on"
    assert [problem for problem in said(root, late_secrets=True) if not problem.startswith("webhook.port")] == []
    assert said(root, with_guard=False) == []
    secret.write_text("json://127.0.0.1:9/x")
    assert [problem for problem in said(root) if problem.startswith("notify")] == []


def test_what_is_there_and_wrong_is_refused_however_late_secrets_may_be(tmp_path: Path) -> None:
    binary, folder = tmp_path / "binary", tmp_path / "folder"
    binary.write_bytes(b"\xff\xfe")
    folder.mkdir()
    root = Root(
        notify=NotifySettings(
            channels=tuple(ChannelSettings(name=f.name, kind="sms", url=f"file:{f}") for f in (binary, folder))
        ),
        webhook=WebhookSettings(
            enabled=True, token="env:TOKEN", port=1, ack_secret="env:TOKEN", public_url="https://sre.example"
        ),
    )
    told = [problem for problem in said(root, late_secrets=True) if not problem.startswith("webhook.port")]
    assert told == [
        f"notify.channels[0].url: secret file {binary}: not UTF-8 text; check path and permissions",
        f"notify.channels[1].url: secret file {folder}: Is a directory; check path and permissions",
        "webhook.ack_secret: has 1 bytes; use at least 16",
    ]


def test_a_channel_that_takes_no_message_anywhere_is_refused_however_late_secrets_may_be() -> None:
    root = Root(notify=NotifySettings(channels=(ChannelSettings(name="chat", kind="chat", url="env:BAD"),)))
    refused = ["notify.channels[0].url: there is no service nosuch://; see Apprise's list of services"]
    assert said(root) == said(root, late_secrets=True) == refused
    assert said(root, with_guard=False) == []
