"""A gate run as a CI step's summary (GitHub's Markdown): verdict first, and never too long to be shown."""

from __future__ import annotations

import re

from sre.gate.report import layout, tables
from sre.gate.result import GateResult
from sre.gate.verdict import Verdict
from sre.printable import one_line

LIMIT_BYTES = 1_000_000
"""GitHub drops a step summary of more than 1 MiB whole, and says nothing."""

LONGEST_CELL = 400
MOST_ROWS = 500
MARKS = {Verdict.PASS: "✅", Verdict.FAIL: "❌", Verdict.INCONCLUSIVE: "❔"}
_WORDS = {tables.WORDS[verdict]: mark for verdict, mark in MARKS.items()}

_SPECIAL = re.compile(r"[\\`*_{}\[\]#+|~@:-]")
_LINK = re.compile(r"(?i)(www)\.")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def markdown(result: GateResult) -> str:
    """The summary, at most ``LIMIT_BYTES`` of UTF-8; what does not fit is cut at a line's end, visibly."""
    lines = [f"## {MARKS[result.verdict.verdict]} {escape(tables.headline(result))}", ""]
    for sentence in tables.opening(result):
        lines += [escape(sentence), ""]
    for section in tables.sections(result):
        lines += [f"### {escape(section.title)}", ""]
        for sentence in section.text:
            lines += [escape(sentence), ""]
        for table in section.tables:
            lines += [*_table(table), ""]
    return _bounded("\n".join(lines).rstrip("\n") + "\n")


def escape(text: str, longest: int = 4 * LONGEST_CELL) -> str:
    """``text`` on one line, every character that means something to Markdown or HTML as itself."""
    text = one_line(text)
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    text = re.sub(r"[&<>]", lambda found: _ENTITIES[found[0]], text)
    return _LINK.sub(r"\1&#46;", _SPECIAL.sub(_escaped, text))


def _escaped(found: re.Match[str]) -> str:
    character, text, at = found[0], found.string, found.start()
    if character in "-+#" and at > 0:
        return character  # these mean something only where a line begins
    if character == "+" and text[1:2] != " ":
        return character
    if character == ":":
        return "&#58;" if text[at : at + 3] == "://" else character  # no link is made of what others wrote
    if character == "@":
        return "&#64;"  # nor is anybody called
    return "\\" + character


def _table(table: layout.Table) -> list[str]:
    rule = ["---:" if index in table.numeric else "---" for index in range(len(table.heading))]
    lines = [_row([escape(title) for title in table.heading]), _row(rule)]
    lines += [_row([_cell(cell) for cell in row]) for row in table.rows[:MOST_ROWS]]
    if len(table.rows) > MOST_ROWS:
        lines += ["", f"*{len(table.rows) - MOST_ROWS:,} further rows are in gate.json.*"]
    return lines


def _cell(text: str) -> str:
    return f"{_WORDS[text]} {text}" if text in _WORDS else escape(text, LONGEST_CELL)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _bounded(text: str) -> str:
    data = text.encode("utf-8", "replace")
    if len(data) <= LIMIT_BYTES:
        return data.decode()
    notice = (
        f"\n\n**Cut off here**: the summary would be {len(data):,} bytes; the whole is in gate.json and report.html.\n"
    )
    kept = data[: LIMIT_BYTES - len(notice.encode())].decode("utf-8", "ignore")
    return kept[: kept.rindex("\n")] + notice
