"""sre notify check and test, with real servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sre.cli.main import run
from sre.servers.sinks import MailSink, SmsSink
from tests.support.sinks import FailingSmsSink

CONFIG = """\
notify:
  channels:
    - {name: mail, kind: email, url: "env:TEST_MAIL_URL"}
    - {name: oncall-sms, kind: sms, url: "file:%s"}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TEST_MAIL_URL", raising=False)
    path = tmp_path / "sre.yaml"
    path.write_text(CONFIG % (tmp_path / "sms-url"))
    return path


def sre(config: Path, *argv: str) -> int:
    return run(["--config", str(config), *argv])


def test_without_channels_nobody_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SRE_CONFIG", raising=False)
    assert run(["notify", "check"]) == 3
    assert "no channel is configured: nobody is told" in capsys.readouterr().out
    assert run(["notify", "test"]) == 3


def test_missing_secrets_are_all_named(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sre(config, "notify", "check") == 2
    mail, sms = capsys.readouterr().out.splitlines()
    assert mail.startswith("mail             email    notify channel mail: url: environment variable TEST_MAIL_URL")
    assert sms.startswith("oncall-sms       sms      notify channel oncall-sms: url: secret file")


def test_an_unknown_channel_names_the_nearest(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sre(config, "notify", "test", "oncal-sms") == 2
    assert capsys.readouterr().err == ("sre: notify.channels: no channel 'oncal-sms'; did you mean oncall-sms?\n")


def test_a_dry_run_shows_the_message(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sre(config, "notify", "test", "oncall-sms", "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "to oncall-sms:"
    assert lines[1].startswith("TICKET TEST sre notify test: test test-")


@pytest.mark.integration
def test_channels_that_work(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with MailSink() as mail, SmsSink() as sms:
        monkeypatch.setenv("TEST_MAIL_URL", mail.channel_url)
        (tmp_path / "sms-url").write_text(sms.channel_url + "\n")
        assert sre(config, "notify", "check") == 0
        assert capsys.readouterr().out.splitlines()[0].startswith("mail             email    ok  mailto://127.0.0.1:")
        assert sre(config, "notify", "test", "-o", "json") == 0
        results = json.loads(capsys.readouterr().out)
        assert [(r["name"], r["verdict"]) for r in results] == [("mail", "delivered"), ("oncall-sms", "delivered")]
        assert [m.subject for m in mail.mails()] == ["[ticket] TEST sre notify test: test"]
        assert len(sms.messages()) == 1


@pytest.mark.integration
def test_a_provider_that_refuses_is_a_no(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FailingSmsSink() as sms:
        (tmp_path / "sms-url").write_text(sms.channel_url)
        assert sre(config, "notify", "test", "oncall-sms") == 3
    assert capsys.readouterr().out.startswith("oncall-sms       failed in ")
