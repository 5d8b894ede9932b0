"""What a report is made of, in plain text: sections of sentences and tables."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Table:
    """``numeric``: columns that are set to the right. ``marks``: per row a word for its look: pass, fail, …"""

    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """``name`` is stable: plots are put beside the section they belong to."""

    name: str
    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = field(default=())
