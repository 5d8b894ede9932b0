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
    assert mail.startswith("mail             email     notify channel mail: url: environment variable TEST_MAIL_URL")
    assert sms.startswith("oncall-sms       sms       notify channel oncall-sms: url: secret file")


def test_an_unknown_channel_names_the_nearest(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sre(config, "notify", "test", "oncal-sms") == 2
    assert capsys.readouterr().err == (
        "sre: notify.channels: no channel 'oncal-sms'; did you mean oncall-sms? known: mail, oncall-sms\n"
    )


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
        assert capsys.readouterr().out.splitlines()[0].startswith("mail             email     ok  mailto://127.0.0.1:")
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
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("oncall-sms       failed in ")
    assert "s: try_later: HTTP 500" in lines[0]
    assert lines[1].strip() == "passes perhaps: the guard repeats it"
    assert lines[2].strip() == "remedy: the provider has trouble of its own; it is repeated"


@pytest.mark.integration
def test_a_test_shows_class_and_remedy_as_data_too(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sms-url").write_text("nosuchservice://S3cretPassw0rd@host")
    assert sre(config, "notify", "test", "oncall-sms", "-o", "json") == 3
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["verdict"], result["cause"]) == ("impossible", "bad_url")
    assert result["remedy"].startswith("correct the channel's URL")
    assert "S3cretPassw0rd" not in str(result)


def test_a_dry_run_shows_each_channels_language_and_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "title").write_text("own title ${id}\n")
    path = tmp_path / "sre.yaml"
    path.write_text(
        "notify:\n  language: zh\n  channels:\n"
        f"    - {{name: mail, kind: email, url: 'env:X', language: en, template: {{title: {tmp_path / 'title'}}}}}\n"
        "    - {name: sms, kind: sms, url: 'env:X', severities: [page]}\n"
    )
    assert sre(path, "notify", "test", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "own title test-2" in out
    assert "这是测试消息，一切正常。" in out


@pytest.mark.parametrize(
    ("fallback", "problem"),
    [
        ("sns", 'no channel "sns"; did you mean sms?'),
        ("mail", "leads back to mail (mail → mail); name another channel"),
    ],
)
def test_a_fallback_must_be_another_channel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fallback: str, problem: str
) -> None:
    path = tmp_path / "sre.yaml"
    path.write_text(
        f"notify:\n  channels:\n    - {{name: mail, kind: email, url: 'env:X', fallback: {fallback}}}\n"
        "    - {name: sms, kind: sms, url: 'env:X'}\n"
    )
    assert sre(path, "notify", "check") == 2
    assert capsys.readouterr().err.rstrip() == f"sre: {path}: notify.channels[0].fallback: {problem} (line 3)"
