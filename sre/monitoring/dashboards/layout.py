"""Where panels stand: rows below one another, panels from left to right, the next line where the width is used up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sre.monitoring.dashboards.model import GRID_WIDTH, Panel, Row

ROW_HEIGHT = 1


@dataclass(frozen=True, slots=True)
class Place:
    """A rectangle on Grafana's grid, in its units."""

    x: int
    y: int
    w: int
    h: int

    def overlaps(self, other: Place) -> bool:
        """Whether both cover a common cell."""
        return (
            self.x < other.x + other.w
            and other.x < self.x + self.w
            and self.y < other.y + other.h
            and other.y < self.y + self.h
        )


@dataclass(frozen=True, slots=True)
class PlacedRow:
    """A row with its headline (None: it has no title) and the places of its panels."""

    row: Row
    headline: Place | None
    panels: tuple[tuple[Panel, Place], ...]


def place(rows: Sequence[Row]) -> Iterator[PlacedRow]:
    """
    Places of all rows.

    A collapsed row takes one line; its panels have the places they take when it is opened, as Grafana keeps them.
    """
    y = 0
    for row in rows:
        headline = None
        if row.title:
            headline = Place(0, y, GRID_WIDTH, ROW_HEIGHT)
            y += ROW_HEIGHT
        panels, end = _flow(row.panels, y)
        yield PlacedRow(row, headline, panels)
        y = y if row.collapsed else end


def _flow(panels: Sequence[Panel], top: int) -> tuple[tuple[tuple[Panel, Place], ...], int]:
    placed: list[tuple[Panel, Place]] = []
    x, y, line_height = 0, top, 0
    for panel in panels:
        if x + panel.width > GRID_WIDTH:
            x, y, line_height = 0, y + line_height, 0
        placed.append((panel, Place(x, y, panel.width, panel.height)))
        x += panel.width
        line_height = max(line_height, panel.height)
    return tuple(placed), y + line_height
