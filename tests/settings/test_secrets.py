"""Secrets: resolved from references, named in errors only by reference, hidden wherever settings are shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sre.errors import ConfigError
from sre.redaction import HIDDEN
from sre.settings.secrets import is_secret_name, redacted, resolve_secret


def test_environment_reference_gives_the_variable() -> None:
    assert resolve_secret("env:MAIL", "notify.channels[0].url", {"MAIL": "mailto://x"}) == "mailto://x"
    assert resolve_secret("env:MAIL", "notify.channels[0].url", {"MAIL": "mailto://x\r\n"}) == "mailto://x"


@pytest.mark.parametrize("environ", [{}, {"MAIL": ""}])
def test_unset_variable_is_named_with_the_setting(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_secret("env:MAIL", "notify.channels[0].url", environ)
    assert str(caught.value) == (
        "notify.channels[0].url: environment variable MAIL is not set; export it before running sre"
    )


def test_a_variable_that_is_no_text_is_refused_as_a_file_would_be() -> None:
    """Python reads such bytes as surrogates, which nobody could send or compare."""
    with pytest.raises(ConfigError) as caught:
        resolve_secret("env:T", "webhook.token", {"T": os.fsdecode(b"tok\xffen")})
    assert str(caught.value) == "webhook.token: environment variable T: not UTF-8 text; export one that is"
    assert resolve_secret("env:T", "webhook.token", {"T": "t\u00f6k\u4e2d"}) == "t\u00f6k\u4e2d"


def test_file_reference_drops_only_line_ends(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(" a b \r\n\n")
    assert resolve_secret(f"file:{secret}", "x", {}) == " a b "


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "is empty"), (b"\n", "is empty"), (b"\xff", "not UTF-8"), (b"x" * 70000, "too large")]
)
def test_unusable_secret_file_says_why(tmp_path: Path, content: bytes, reason: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        resolve_secret(f"file:{secret}", "x", {})


def test_missing_secret_file_and_plain_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory; check path and permissions"):
        resolve_secret(f"file:{tmp_path / 'none'}", "x", {})
    with pytest.raises(ConfigError) as caught:
        resolve_secret("hunter2", "x", {})
    assert "hunter2" not in str(caught.value)


def test_secret_names_are_known_and_ordinary_names_are_not() -> None:
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "api_key", "api-key", "DB_PASSWORD", "PASS", "X_AUTH"):
        assert is_secret_name(name), name
    for name in ("VLLM_LOGGING_LEVEL", "OMP_NUM_THREADS", "KEYBOARD", "PATH", "TOKENIZERS_PARALLELISM", "max_tokens"):
        assert not is_secret_name(name), name


def test_shown_settings_keep_references_and_hide_values() -> None:
    shown = redacted(
        {
            "url": "env:MAIL",
            "api_key": "plain",
            "env": {"HF_TOKEN": "hunter2", "OMP_NUM_THREADS": "1"},
            "urls": ["http://me:hunter2@host/x", "http://host"],
            "port": 1,
        }
    )
    assert shown == {
        "url": "env:MAIL",
        "api_key": HIDDEN,
        "env": {"HF_TOKEN": HIDDEN, "OMP_NUM_THREADS": "1"},
        "urls": [f"http://{HIDDEN}@host/x", "http://host"],
        "port": 1,
    }
