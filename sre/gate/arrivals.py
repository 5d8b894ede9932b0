"""When requests are due: offsets from the start of a stage, known before the first is sent."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from sre.errors import ConfigError

MOST_PROBLEMS = 10
"""Of a trace file, told at once."""
MOST_TOKENS = 10_000_000
"""As in gate.load.mix: a prompt is made before it is sent."""
MOST_SECONDS = 86_400.0
"""As gate.load.stage_seconds."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """
    One arrival of a recorded trace.

    Attributes:
        offset_seconds: From the start of the trace, 0 to MOST_SECONDS.
        prompt_tokens, max_tokens: 1 to MOST_TOKENS.
    """

    offset_seconds: float
    prompt_tokens: int
    max_tokens: int


def constant(rate_rps: float, duration_seconds: float) -> list[float]:
    """Return offsets at equal distances; the first is 0. A rate below 1 / duration still sends one."""
    return [number / rate_rps for number in range(math.ceil(rate_rps * duration_seconds - 1e-9))]


def poisson(rate_rps: float, duration_seconds: float, chance: random.Random) -> list[float]:
    """Return offsets with exponential gaps: users who know nothing of each other. The count varies around the mean."""
    offsets = []
    at = chance.expovariate(rate_rps)
    while at < duration_seconds:
        offsets.append(at)
        at += chance.expovariate(rate_rps)
    return offsets


def parse_trace(lines: Iterable[str], name: str) -> tuple[TraceEntry, ...]:
    """
    Entries of a JSONL trace, in order of time; blank lines are skipped.

    Args:
        name: Of the file, for messages.

    Raises:
        ConfigError: One sentence per wrong line (the first ten), or one that nothing is in it.
    """
    entries: list[TraceEntry] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entries.append(_entry(line))
        except ValueError as error:
            problems.append(f"{name}: line {number}: {error}")
            if len(problems) == MOST_PROBLEMS:
                break
    if problems:
        raise ConfigError(problems)
    if not entries:
        raise ConfigError(
            [f"{name}: holds no arrival; write lines of offset_seconds, prompt_tokens, max_tokens as JSON"]
        )
    return tuple(sorted(entries, key=lambda entry: entry.offset_seconds))


def _entry(line: str) -> TraceEntry:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError('is no JSON; write {"offset_seconds": 0.5, "prompt_tokens": 256, "max_tokens": 32}') from None
    if not isinstance(found, dict):
        raise ValueError("is no JSON object")
    offset = found.get("offset_seconds")
    if isinstance(offset, bool) or not isinstance(offset, int | float) or not 0 <= offset <= MOST_SECONDS:
        raise ValueError(f"offset_seconds must be a number of seconds, 0 to {MOST_SECONDS:g}")
    for key in ("prompt_tokens", "max_tokens"):
        value = found.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_TOKENS:
            raise ValueError(f"{key} must be a whole number, 1 to {MOST_TOKENS}")
    return TraceEntry(float(offset), found["prompt_tokens"], found["max_tokens"])
