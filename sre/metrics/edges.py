"""Bucket edges: where a histogram can decide whether a value is above or below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Undecidable:
    """
    Why no threshold can stand at a value.

    Attributes:
        place: What the value is, for sentences: "no bucket edge".
        nearest: The edge that could be taken instead; None: there is no inner edge.
    """

    place: str
    nearest: float | None


def undecidable(value: float, edges: Sequence[float]) -> Undecidable | None:
    """None: ``value`` is an inner edge. Between edges, and at the first or last one, the answer would be a guess."""
    inner = edges[1:-1]
    if value in inner:
        return None
    place = "the first or the last bucket edge" if value in edges else "no bucket edge"
    return Undecidable(place, min(inner, key=lambda bound: (abs(bound - value), bound), default=None))
