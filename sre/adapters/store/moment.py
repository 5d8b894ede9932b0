"""The present, as the tables write it down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Now:
    """Read once per transaction."""

    monotonic: float
    wall: float
    boot_id: str
