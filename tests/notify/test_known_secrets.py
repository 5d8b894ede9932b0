"""What the configuration refers to is hidden in incident folders, in whichever piece somebody repeats it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sre.redaction import HIDDEN
from sre.settings.models import Root
from sre.testing.clock import ManualClock
from sre.wiring.known_secrets import READ_AGAIN_SECONDS, Redaction

URL = "mailtos://oncall@example.com:Wint3r-is-here@smtp.example.com?to=team@example.com"
TOKEN = "QfFTWrXGWYsGwLPN"


def root_of(channel_url: str, **more: Any) -> Root:
    return Root.model_validate({"notify": {"channels": [{"name": "it", "kind": "chat", "url": channel_url}]}, **more})


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("535 login with Wint3r-is-here refused", f"535 login with {HIDDEN} refused"),
        (f"could not send to {URL}", f"could not send to {HIDDEN}"),
        (
            "550 team@example.com at smtp.example.com: mailbox full",
            "550 team@example.com at smtp.example.com: mailbox full",
        ),
    ],
)
def test_a_piece_of_a_channels_url_is_hidden_and_nothing_that_people_need(said: str, shown: str) -> None:
    assert Redaction(root_of("env:MAIL"), {"MAIL": URL}, ManualClock())(said) == shown


def test_a_short_password_that_is_a_word_eats_no_words() -> None:
    hide = Redaction(root_of("env:MAIL"), {"MAIL": "mailtos://me:test@smtp.example.com?to=a@b.org"}, ManualClock())
    assert hide("the latest test") == "the latest test"


def test_a_topic_of_six_letters_is_hidden() -> None:
    hide = Redaction(root_of("env:PUSH"), {"PUSH": "ntfys://ntfy.sh/gpuops"}, ManualClock())
    assert hide("403 at ntfy.sh: topic gpuops is reserved") == f"403 at ntfy.sh: topic {HIDDEN} is reserved"


def test_keys_of_engines_and_of_the_gates_target_are_hidden() -> None:
    root = root_of("env:MAIL", gate={"target": {"api_key": "env:KEY"}})
    assert Redaction(root, {"KEY": "sk-12345678"}, ManualClock())("401 sk-12345678") == f"401 {HIDDEN}"


def test_a_secret_that_is_renewed_or_comes_late_is_hidden_too(tmp_path: Path) -> None:
    """A file that is mounted after the start; the old value may still be in somebody's log."""
    file, clock = tmp_path / "url", ManualClock()
    hide = Redaction(root_of(f"file:{file}"), {}, clock)
    file.write_text(f"slack://T1JJ3T3L2/A1BRTD4JD/{TOKEN}")
    clock.advance(READ_AGAIN_SECONDS)
    assert hide(f"no {TOKEN}") == f"no {HIDDEN}"
    file.write_text(f"slack://T1JJ3T3L2/A1BRTD4JD/{TOKEN[::-1]}")
    clock.advance(READ_AGAIN_SECONDS)
    assert hide(f"{TOKEN} {TOKEN[::-1]}") == f"{HIDDEN} {HIDDEN}"
