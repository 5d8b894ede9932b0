"""
Runbooks: one page per alert, in ``runbooks/<Alert>.md``; read, and filled in with the labels of an alert.

A page is Markdown: title, then the sections of ``HEADINGS``. Commands carry the alert's labels as shell variables
(``"$instance"``), so that they work in a shell that has them and can be filled in here. A label's value comes with an
alert, from whoever could make one: it is data and never becomes part of a command's grammar. Shell: sh, bash, zsh.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sre.errors import ConfigError

HEADINGS = ("Meaning", "Impact", "Diagnosis", "Mitigation", "Escalation")
"""Sections of a page, in this order: what was seen, who is hurt, how to find out, what to do, whom to call."""

SHELL = "sh"
PROMQL = "promql"
YAML = "yaml"
LANGUAGES = (SHELL, PROMQL, YAML)
"""Of code blocks. Only in the first two labels are filled in."""

PACKAGED = "runbook_pages"
"""Folder beside this module in an installed package; pyproject.toml puts the pages there."""

PLACEHOLDER = re.compile(r"\$(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,-]+")
"""What no shell gives a meaning. Not ``=``: zsh expands it at the begin of a word."""
_FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,})(?P<info>.*)")
_SPAN = re.compile(r"(?P<ticks>`+)(?P<code>.+?)(?<!`)(?P=ticks)(?!`)", re.DOTALL)
_HEADING = re.compile(r"(?P<level>#{1,6}) +(?P<title>.*?) *#*")


class Kind(enum.Enum):
    """What a piece of a page is."""

    PROSE = "prose"
    SPAN = "span"
    """Code within a sentence, without its backticks."""
    BLOCK = "block"
    """Content of a fenced block, without its fences."""
    FENCE = "fence"
    MARK = "mark"
    """The backticks around a span."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a page; all of them in a row are the page."""

    kind: Kind
    text: str
    line: int
    language: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """A code block or span: what it says, where it stands (section, line), its language ("" for a span)."""

    text: str
    language: str
    section: str
    line: int


@dataclass(frozen=True, slots=True)
class Runbook:
    """One page. ``alert`` is its title; ``sections`` maps headings to their text, in order."""

    alert: str
    text: str
    headings: tuple[tuple[str, int], ...]
    sections: Mapping[str, str]
    code: tuple[Code, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels its commands use, in order of first use."""
        found: dict[str, None] = {}
        for code in self.code:
            if code.language != YAML:
                found.update((match["name"], None) for match in PLACEHOLDER.finditer(code.text) if _is_label(match))
        return tuple(found)


def _is_label(match: re.Match[str]) -> bool:
    """``$node`` is a label; ``$NF`` of awk is not. ``UUID`` is the one label in capitals."""
    return match["name"] == "UUID" or not match["name"].isupper()


# ---- Reading --------------------------------------------------------------------------------------------------------


def pieces(text: str) -> Iterator[Piece]:
    """Return the page in parts: what is code, and what is not. Joined, they are ``text``."""
    line = 1
    prose: list[str] = []
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    index = 0
    while index < len(lines):
        fence = _FENCE.fullmatch(lines[index].rstrip("\n"))
        if fence is None:
            prose.append(lines[index])
            index += 1
            continue
        yield from _inline("".join(prose), line)
        line += len(prose)
        prose = []
        close = re.compile(rf" *{fence['ticks']}`* *\n?")
        end = next((n for n in range(index + 1, len(lines)) if close.fullmatch(lines[n])), len(lines))
        yield Piece(Kind.FENCE, lines[index], line)
        body = "".join(lines[index + 1 : end])
        yield Piece(Kind.BLOCK, body, line + 1, fence["info"].strip())
        if end < len(lines):
            yield Piece(Kind.FENCE, lines[end], line + end - index)
        line += min(end + 1, len(lines)) - index
        index = end + 1
    yield from _inline("".join(prose), line)


def _inline(text: str, line: int) -> Iterator[Piece]:
    done = 0
    for span in _SPAN.finditer(text):
        start = line + text.count("\n", 0, span.start())
        yield Piece(Kind.PROSE, text[done : span.start()], line + text.count("\n", 0, done))
        yield Piece(Kind.MARK, span["ticks"], start)
        yield Piece(Kind.SPAN, span["code"], start)
        yield Piece(Kind.MARK, span["ticks"], start)
        done = span.end()
    if text[done:]:
        yield Piece(Kind.PROSE, text[done:], line + text.count("\n", 0, done))


def parse(text: str) -> Runbook:
    """Read a page, however wrong it is; ``runbook_check`` says what is wrong."""
    headings = _headings(text)
    lines = text.split("\n")
    starts = [(title, number) for title, number, level in headings if level == 2]
    ends = [*(number - 1 for _, number in starts[1:]), len(lines)]
    sections = {
        title: "\n".join(lines[number:end]).strip("\n") for (title, number), end in zip(starts, ends, strict=False)
    }
    code = [
        Code(piece.text, piece.language if piece.kind is Kind.BLOCK else "", _section(starts, piece.line), piece.line)
        for piece in pieces(text)
        if piece.kind in (Kind.BLOCK, Kind.SPAN)
    ]
    title = next((title for title, _, level in headings if level == 1), "")
    return Runbook(title, text, tuple((t, n) for t, n, _ in headings), sections, tuple(code))


def _headings(text: str) -> list[tuple[str, int, int]]:
    """Title, line and level of every heading."""
    found = []
    inside: set[int] = set()
    for piece in pieces(text):
        if piece.kind is Kind.BLOCK:
            inside |= set(range(piece.line, piece.line + piece.text.count("\n") + 1))
    for number, line in enumerate(text.split("\n"), 1):
        match = _HEADING.fullmatch(line.rstrip())
        if match is not None and number not in inside:
            found.append((match["title"], number, len(match["level"])))
    return found


def _section(starts: list[tuple[str, int]], line: int) -> str:
    return next((title for title, number in reversed(starts) if number <= line), "")


def anchor(title: str) -> str:
    """The fragment by which GitHub reaches a heading: lower case, spaces to dashes, other punctuation dropped."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def load_runbooks(folder: Path | None = None) -> Mapping[str, Runbook]:
    """
    Every page by alert, in order of name. ``folder``: default the pages that come with the package.

    Raises:
        ConfigError: There are none.
    """
    places = (Path(__file__).with_name(PACKAGED), Path(__file__).resolve().parents[2] / "runbooks")
    folder = folder or next((place for place in places if place.is_dir()), places[-1])
    pages = {file.stem: parse(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.md"))}
    if not pages:
        raise ConfigError([f"{folder}: no runbooks (*.md) there; install the package again"])
    return pages


def find_runbook(pages: Mapping[str, Runbook], alert: str) -> Runbook:
    """The page of ``alert``, upper and lower case alike. Raises ConfigError with the nearest name."""
    by_name = {name.lower(): page for name, page in pages.items()}
    wanted = alert.strip().lower()
    if wanted in by_name:
        return by_name[wanted]
    names = {name.lower(): name for name in pages}
    near = difflib.get_close_matches(wanted, names, n=1)
    hint = f"did you mean {names[near[0]]}?" if near else "see sre runbook list"
    raise ConfigError([f"sre runbook: no runbook for {alert!r}; {hint}"])


# ---- Filling in -----------------------------------------------------------------------------------------------------


def unfit(value: str) -> str | None:
    """Why ``value`` is not put into a command, as a remedy; None when it can be."""
    if not value.isprintable():
        return "has characters that cannot be seen (control, line break, direction); look where the alert comes from"
    if value.startswith("-"):
        return "begins with '-': a program would take it as an option; look where the alert comes from"
    if "`" in value:
        return "has a backtick; look where the alert comes from"
    return None


def fill(text: str, labels: Mapping[str, str]) -> str:
    """
    Return the page with ``$label`` in commands replaced by its value; labels that are not given stay as they are.

    In a shell command a value stays one word, or a part of one, whatever it holds; in PromQL it stays inside its
    string. Raises ConfigError for a value that cannot be made harmless.
    """
    for name, value in labels.items():
        problem = unfit(value)
        if problem is not None:
            raise ConfigError([f"sre runbook: label {name}: {value!r} {problem}, or leave this label out"])
    return "".join(_filled(piece, labels) for piece in pieces(text))


def _filled(piece: Piece, labels: Mapping[str, str]) -> str:
    if piece.kind is Kind.SPAN or (piece.kind is Kind.BLOCK and piece.language == SHELL):
        return fill_shell(piece.text, labels)
    if piece.kind is Kind.BLOCK and piece.language == PROMQL:
        return fill_promql(piece.text, labels)
    return piece.text


def quoted(value: str) -> str:
    """``value`` as one word of a shell command."""
    return value if _PLAIN.fullmatch(value) else "'" + value.replace("'", "'\"'\"'") + "'"


def fill_shell(command: str, labels: Mapping[str, str]) -> str:
    """``command`` with ``$label`` replaced where the shell would replace it: not within single quotes."""
    out: list[str] = []
    for token, state in shell_tokens(command):
        match = PLACEHOLDER.fullmatch(token.strip('"')) if state != "'" else None
        name = None if match is None else match["name"]
        if name is None or name not in labels:
            out.append(token)
        elif state == '"' and quoted(labels[name]) != labels[name]:
            # The double quotes are left for the value, and opened again: no escape holds in every shell.
            out.append(f'"{quoted(labels[name])}"')
        else:
            out.append(quoted(labels[name]))
    return "".join(out)


_WORD = re.compile(rf'"{PLACEHOLDER.pattern}"')
"""A string that is nothing but a label; replaced as a whole."""


def shell_tokens(command: str) -> Iterator[tuple[str, str]]:
    """Characters and variables of a command, each with the quotes it stands in: "", '"' or "'". ``"$node"`` is one."""
    state = ""
    position = 0
    while position < len(command):
        char = command[position]
        token = char
        label = PLACEHOLDER.match(command, position) or (None if state else _WORD.match(command, position))
        if state != "'" and char == "\\" and position + 1 < len(command):
            token = command[position : position + 2]
        elif label is not None:
            token = label[0]
        elif char in "\"'" and state in ("", char):
            state = "" if state == char else char
            yield char, ""
            position += 1
            continue
        yield token, state
        position += len(token)


def fill_promql(query: str, labels: Mapping[str, str]) -> str:
    """``query`` with ``$label`` replaced within string literals."""

    def value(match: re.Match[str]) -> str:
        if match["name"] not in labels:
            return match[0]
        return labels[match["name"]].replace("\\", "\\\\").replace('"', '\\"')

    def literal(match: re.Match[str]) -> str:
        return PLACEHOLDER.sub(value, match[0])

    return _STRING.sub(literal, query)


_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
