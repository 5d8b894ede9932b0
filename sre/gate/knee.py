"""The rate at which the service saturates: bracket, then bisection. No curve is fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Probe:
    """One rate tried. ``saturated`` None: could not be told."""

    rate_rps: float
    saturated: bool | None
    sign: str


@dataclass(frozen=True, slots=True)
class Knee:
    """
    Where it lies.

    Attributes:
        good_rps: Highest rate held; None: none.
        saturated_rps: Lowest rate that saturated; None: none was reached.
        estimate_rps: Middle of the bracket; None without a bracket.
        resolution_rps: Half its width.
        reason: Why the search ended: ``resolved``, ``not_reached`` (it lies above the last stage), ``below_first``,
            ``too_many_stages``, ``unclear``, ``client_limited``, ``given_up``.
    """

    good_rps: float | None
    saturated_rps: float | None
    estimate_rps: float | None
    resolution_rps: float | None
    reason: str
    probes: Sequence[Probe]
