"""Durations as people write them."""

from __future__ import annotations

import math
import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")


def parse_duration(text: str) -> float:
    """
    Return seconds: ``500ms``, ``30s``, ``2m``, ``1.5h``. The unit is not optional.

    Raises:
        ValueError: With a sentence that says what to write.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write 500ms, 30s or 2m")
    seconds = float(match[1]) * _UNITS[match[2]]
    if not 0 < seconds < math.inf:
        raise ValueError(f"{text!r}: a duration must be more than nothing")
    return seconds


def format_duration(seconds: float) -> str:
    """Return ``seconds`` as ``parse_duration`` reads it, in the largest unit that fits."""
    for unit in ("h", "m", "s"):
        if seconds >= _UNITS[unit]:
            return f"{seconds / _UNITS[unit]:g}{unit}"
    return f"{seconds * 1000:g}ms"
