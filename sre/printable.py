"""Text of others on a terminal: shown, never obeyed."""

from __future__ import annotations

from collections.abc import Iterable

OURS = frozenset("\n\t")
"""What lays out our own text."""


def printable(text: str) -> str:
    """
    Return ``text`` with a question mark for each character that could steer a terminal or cannot be seen there.

    Logs, metrics, labels and answers of others hold what they like: escapes, carriage returns, changes of direction.
    Line ends and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c in OURS or c.isprintable() else "?" for c in text)


def rows(lines: Iterable[str]) -> str:
    """Return ``lines`` as text with a line for each: what breaks a line within one of them is a blank there."""
    return "\n".join(printable(line.replace("\n", " ")) for line in lines)


def one_line(text: str) -> str:
    """The same on one line: no value of others can look like a line of ours."""
    return printable(" ".join(text.split()))
