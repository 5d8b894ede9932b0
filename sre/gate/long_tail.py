"""Shorts alone, then the same shorts with long prompts beside them (requirement E2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arm:
    """
    One scheduling policy, with and without longs. Values per run; infinite where failures make them so.

    Attributes:
        policy: "" for the target itself.
        ttft_p99_alone_seconds, ttft_p99_mixed_seconds: Of the shorts.
        samples_alone_seconds, samples_mixed_seconds: Sorted e2e of the shorts, all runs, thinned to 2,000, for the CDF.
        long_prompt_tokens: As the server counted them, mean; None: it told nothing.
        skipped: Why the arm was not run; "" if it was.
    """

    policy: str
    ttft_p99_alone_seconds: Sequence[float]
    ttft_p99_mixed_seconds: Sequence[float]
    e2e_p99_alone_seconds: Sequence[float]
    e2e_p99_mixed_seconds: Sequence[float]
    tpot_p99_alone_seconds: Sequence[float]
    tpot_p99_mixed_seconds: Sequence[float]
    samples_alone_seconds: Sequence[float]
    samples_mixed_seconds: Sequence[float]
    long_prompt_tokens: float | None
    long_requests: int
    long_failed: int
    p_value: float | None
    effect_ratio: float | None
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class LongTail:
    """The test. ``best_policy``: the arm whose shorts suffer least, if that is significant; else None."""

    qps: float
    long_share: float
    arms: Sequence[Arm]
    best_policy: str | None
    detail: str
