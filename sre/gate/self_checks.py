"""Checks of our own arithmetic: numbers that contradict each other are not published as if they were fine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """
    One self-check.

    Attributes:
        name: ``littles_law``, ``sums``, ``clock``, ``token_rates``, …
        ok: None: could not be made; ``detail`` says why.
        detail: With the numbers.
    """

    name: str
    ok: bool | None
    detail: str
