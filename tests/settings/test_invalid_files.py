"""Each file in invalid/ is refused with exactly the message beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sre.errors import ConfigError
from sre.settings.load import parse_settings

FOLDER = Path(__file__).parent / "invalid"
CASES = sorted(FOLDER.glob("conf.*.yml"))


def expected_messages(case: Path) -> list[str]:
    return case.with_suffix(".txt").read_text("utf-8").splitlines()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem.removeprefix("conf."))
def test_invalid_file_is_refused_with_the_message_beside_it(case: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings(case.read_bytes(), "sre.yaml")
    assert list(caught.value.problems) == expected_messages(case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem.removeprefix("conf."))
def test_message_never_repeats_a_secret_and_says_where_and_what_to_do(case: Path) -> None:
    for message in expected_messages(case):
        assert "hunter2" not in message
        assert message.startswith("sre.yaml: ")
        assert ";" in message or ":" in message.removeprefix("sre.yaml: ")


def test_every_message_file_has_its_configuration() -> None:
    assert CASES
    assert {p.stem for p in FOLDER.glob("*.txt")} == {p.stem for p in CASES}
