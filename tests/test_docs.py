"""What is written for people is true: commands and options exist and are documented, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tests.support import command_reference
from tests.support.command_reference import every_command, render, with_reference

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "runbooks").glob("*.md"))]


def test_command_reference_in_readme_is_up_to_date() -> None:
    """Remedy: make docs."""
    readme = command_reference.README.read_text("utf-8")
    assert with_reference(readme, render()) == readme


def test_the_check_of_the_reference_can_fail() -> None:
    readme = command_reference.README.read_text("utf-8")
    prose, reference = readme.split(command_reference.BEGIN)
    broken = prose + command_reference.BEGIN + reference.replace("`--dry-run`", "`--dryrun`", 1)
    assert broken != readme
    assert with_reference(broken, render()) != broken


def test_every_option_is_documented_and_says_what_it_does() -> None:
    readme = command_reference.README.read_text("utf-8")
    for path, command in every_command():
        assert command.help, f"{' '.join(path)} has no help"
        for option in (p for p in command.params if isinstance(p, click.Option) and not p.hidden):
            assert f"`{option.opts[0]}`" in readme, f"{' '.join(path)} {option.opts[0]} is not in README.md"
            assert option.help, f"{' '.join(path)} {option.opts[0]} has no help"


def called_commands(page: Path) -> list[str]:
    """``sre …`` command lines in code spans and code blocks of a page."""
    text = page.read_text("utf-8").split(command_reference.BEGIN)[0]
    spans = re.findall(r"`(sre [^`\n]*)`", text)
    blocks = re.findall(r"^```(?:sh|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [re.sub(r"^\$ ", "", line) for block in blocks for line in block.splitlines()]
    return spans + [line for line in lines if line.startswith("sre ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_named_in_a_page_exist(page: Path) -> None:
    known = dict(every_command())
    groups = {path[:length] for path in known for length in range(1, len(path))}
    for line in called_commands(page):
        words = tuple(line.split("#")[0].split())
        path = next((words[:n] for n in (4, 3, 2) if words[:n] in known), None)
        if path is None:
            assert words in groups or words[1].startswith("-"), f"{page.name}: no command {line!r}"
            continue
        given = [word for word in words[len(path) :] if not word.startswith("-")]
        needed = [p for p in known[path].params if isinstance(p, click.Argument) and p.required]
        assert len(given) >= len(needed), f"{page.name}: {line!r}: name its {needed[len(given)].name}"
        options = {name for p in known[path].params for name in (*p.opts, *p.secondary_opts)}
        for word in words[len(path) :]:
            if word.startswith("-"):
                assert word.split("=")[0] in options, f"{page.name}: {line!r}: no option {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: {target} does not exist"


def test_pages_name_no_place_of_one_machine() -> None:
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        assert not re.search(r"/(root|work|home)/", page.read_text("utf-8")), page.name
