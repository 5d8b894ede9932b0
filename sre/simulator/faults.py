"""Faults that a simulated engine acts out, as the chaos runner writes them; they end by themselves."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

ALL_BATCHES = -1
"""``batch_failures``: every batch until the expiry."""


@dataclass(frozen=True, slots=True)
class Faults:
    """
    What goes wrong now.

    Attributes:
        run_id: The chaos run that asked for it; another one starts ``batch_failures`` afresh.
        expires_monotonic: From then on nothing of this holds.
        error_ratio: Share of requests that end with an error, 0..1.
        batch_failures: So many batches fail, with every request in them; ``ALL_BATCHES``: each until the expiry.
        delay_seconds: Each request is held back this long (real seconds) before it may be scheduled.
    """

    run_id: str = ""
    expires_monotonic: float = -math.inf
    error_ratio: float = 0.0
    batch_failures: int = 0
    delay_seconds: float = 0.0

    def active(self, now: float) -> bool:
        """Whether the faults hold at ``now`` (CLOCK_MONOTONIC)."""
        return now < self.expires_monotonic


NO_FAULTS = Faults()


def parse_faults(text: str, boot_id: str) -> Faults:
    """
    Read a fault file; faults of another boot are none.

    Wire shape: ``{"boot_id": …, "expires_monotonic": …, "run_id": …, "faults": {"error_ratio": 0.3,
    "batch_failures": 3, "delay_seconds": 0.0}}``; each fault may be left out; names that are not known here are for
    other engines.

    Raises:
        ValueError: Not that shape, or a value out of range.
    """
    document = json.loads(text)
    if not isinstance(document, dict) or not isinstance(document.get("faults", {}), dict):
        raise ValueError("not an object with an object 'faults'")
    if document.get("boot_id") != boot_id:
        return NO_FAULTS
    asked = document.get("faults", {})
    faults = Faults(
        run_id=str(document.get("run_id", "")),
        expires_monotonic=_number(document, "expires_monotonic", -math.inf),
        error_ratio=_number(asked, "error_ratio", 0.0),
        batch_failures=int(_number(asked, "batch_failures", 0)),
        delay_seconds=_number(asked, "delay_seconds", 0.0),
    )
    if not 0 <= faults.error_ratio <= 1 or faults.batch_failures < ALL_BATCHES or faults.delay_seconds < 0:
        raise ValueError("error_ratio is 0..1, batch_failures -1 or more, delay_seconds not negative")
    return faults


def _number(source: dict[str, object], key: str, default: float) -> float:
    value = source.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError(f"{key} is not a number")
    return value
