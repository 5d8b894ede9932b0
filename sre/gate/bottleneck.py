"""Which resource binds, by service demand over the stages (requirement F1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sre.gate.stages import Resource


@dataclass(frozen=True, slots=True)
class Demand:
    """
    Of one resource.

    Attributes:
        seconds_per_request: Service demand D = sum(X U) / sum(X^2) over the stages, X achieved rate, U utilization.
        ceiling_rps: 1 / D.
        fit_error_ratio: Root mean square of U - X D over the stages, relative to the mean U.
    """

    resource: Resource
    seconds_per_request: float
    ceiling_rps: float
    fit_error_ratio: float
    source: str


@dataclass(frozen=True, slots=True)
class Limit:
    """An occupancy that reached its end: a limit reached, not a demand."""

    resource: Resource
    highest: float
    stage: str
    source: str


@dataclass(frozen=True, slots=True)
class Attribution:
    """
    What binds.

    Attributes:
        binding: None: nothing watched explains the knee, or the client was the limit; ``detail`` says which.
        confirmed: 1 / D of ``binding`` lies within 15 % of the knee.
        margin_ratio: How far the next resource's ceiling lies above, of the binding one's.
    """

    binding: Resource | None
    confirmed: bool
    knee_rps: float | None
    demands: Sequence[Demand]
    limits: Sequence[Limit]
    margin_ratio: float | None
    client_ruled_out: bool
    unseen: Sequence[str]
    detail: str
