"""
Engine hang: requests in flight at the gateway, and no engine step.

The gateway counts the requests, because vLLM's own gauges freeze in a hang; the step counter is
``vllm:iteration_tokens_total_count``. What else only moves when the engine moves is progress too: answer bytes at the
gateway (an engine whose /metrics crawls but whose streams flow does not hang) and the engine core's gauges. A judged
hang stays one until progress is *seen*; requests that give up and leave prove nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from sre.metrics.signals import KV_CACHE_USAGE_RATIO, REQUESTS_RUNNING, REQUESTS_WAITING
from sre.settings.guard import HangSettings
from sre.signals.types import EngineSeen, ProcessIdentity, ProcessState, Seen

NOT_SERVING = frozenset({ProcessState.STARTING, ProcessState.STOPPED, ProcessState.CRASHED, ProcessState.FAILED})
"""Nothing can hang that does not serve; these have signals of their own."""

SAMPLING_JITTER_SECONDS = 0.1
"""Ticks are never exactly a second apart; without this slack a hang of exactly hang_after would cost one tick more."""

CORE_GAUGES = (KV_CACHE_USAGE_RATIO, REQUESTS_RUNNING, REQUESTS_WAITING)

COUNT_MAX_AGE_SECONDS = 5.0
"""A count of requests in flight older than this is not seen any more (our estimate: five ticks)."""


class HangVerdict(enum.Enum):
    IDLE = "idle"  # nothing in flight, nothing to judge
    STEPPING = "stepping"
    FLAT = "flat"  # no step seen, not yet for hang_after
    HUNG = "hung"
    UNKNOWN = "unknown"  # gateway counts or /metrics not seen
    DOUBT = "doubt"  # /metrics not seen for hang_after, requests in flight, no byte came: a canary must decide, now
    EXCLUDED = "excluded"  # paused, asleep, starting or stopped on purpose


@dataclass(frozen=True, slots=True)
class HangMemory:
    """Times are monotonic seconds."""

    identity: ProcessIdentity | None = None
    steps: float | None = None
    steps_sampled_at: float | None = None
    sent_bytes: float | None = None
    gauges: tuple[float | None, ...] = ()
    """The engine core's own gauges: they freeze in a hang, so one that moves proves a step."""
    ready_at: float | None = None
    """When this process became ready; kept while the supervisor does not answer."""
    proven_at: float | None = None
    """Last *proof* of a step: a count that moved, bytes that came, a canary that was answered. Unlike progress_at,
    a first look proves nothing."""
    progress_at: float | None = None
    """Last evidence of a step: steps or bytes moved, or a canary answered."""
    flat_since: float | None = None
    """Start of the present stretch without progress while requests were in flight."""
    flat_first_at: float | None = None
    """First sample that showed the counter flat in this stretch."""
    flat_confirmed_at: float | None = None
    """Latest sample that showed it still flat."""
    hung: bool = False
    verdict: HangVerdict = HangVerdict.UNKNOWN
    hang_after_seconds: float = 0.0
    legal_gaps: tuple[tuple[float, float], ...] = ()
    """(when it ended, seconds) of recent stretches that ended by themselves unjudged."""


def hang_after(memory: HangMemory, ready_at: float | None, at: float, policy: HangSettings) -> float:
    """Seconds without a step that count as a hang now: the base, raised by the longest legal gap seen lately, and
    by the grace after a start."""
    longest = max((gap for ended, gap in memory.legal_gaps if at - ended <= policy.step_memory_seconds), default=0.0)
    limit = max(policy.hang_after_seconds, policy.step_multiple * longest)
    if ready_at is not None and at - ready_at < policy.start_grace_seconds:
        limit = max(limit, policy.hang_after_in_grace_seconds)
    return min(limit, max(policy.hang_after_max_seconds, policy.hang_after_seconds))


def observe_hang(memory: HangMemory, engine: EngineSeen, at: float, policy: HangSettings) -> HangMemory:
    """Return what is known of ``engine``'s steps at ``at``."""
    if engine.identity is not None and memory.identity is not None and engine.identity != memory.identity:
        memory = HangMemory()
    # Without an answer from the supervisor the process is not another one: what is known of it stays.
    memory = replace(
        memory,
        identity=memory.identity if engine.identity is None else engine.identity,
        ready_at=memory.ready_at if engine.ready_at is None else engine.ready_at,
    )
    memory, progress_at = _note_progress(memory, engine, at)
    if progress_at is not None:
        memory = replace(_end_stretch(memory, at, policy), progress_at=progress_at)
    memory = replace(memory, hang_after_seconds=hang_after(memory, memory.ready_at, at, policy))
    if engine.paused or engine.process in NOT_SERVING:
        return replace(
            memory,
            flat_since=None,
            flat_first_at=None,
            flat_confirmed_at=None,
            hung=False,
            verdict=HangVerdict.EXCLUDED,
        )
    if memory.hung:
        return replace(memory, verdict=HangVerdict.HUNG)
    in_flight = engine.in_flight
    if in_flight.seen is not Seen.OK or in_flight.value is None or at - in_flight.sampled_at > COUNT_MAX_AGE_SECONDS:
        return replace(memory, verdict=HangVerdict.UNKNOWN)
    if in_flight.value <= 0:
        return replace(memory, flat_since=None, flat_first_at=None, flat_confirmed_at=None, verdict=HangVerdict.IDLE)
    if memory.flat_since is None:
        return replace(memory, flat_since=at if progress_at is None else progress_at, verdict=HangVerdict.STEPPING)
    if memory.flat_confirmed_at is None:
        waited = at - memory.flat_since >= memory.hang_after_seconds
        return replace(memory, verdict=HangVerdict.DOUBT if waited else HangVerdict.UNKNOWN)
    flat_seconds = memory.flat_confirmed_at - memory.flat_since
    if flat_seconds >= memory.hang_after_seconds - SAMPLING_JITTER_SECONDS:
        return replace(memory, hung=True, verdict=HangVerdict.HUNG)
    fresh = engine.steps_total.seen is Seen.OK
    return replace(memory, verdict=HangVerdict.FLAT if fresh else HangVerdict.UNKNOWN)


def _note_progress(memory: HangMemory, engine: EngineSeen, at: float) -> tuple[HangMemory, float | None]:
    """Return the memory with the new samples, and when progress was seen, if it was: the time of the sample, so that
    sample times are compared with sample times and a tick's own duration does not count."""
    progress_at: float | None = None
    steps = engine.steps_total
    if steps.seen is Seen.OK and steps.value is not None:
        if memory.steps is None or steps.value != memory.steps:
            # A first value is no step, but nothing before it can count as flat. A count that went back is a restart.
            progress_at = steps.sampled_at
            proven_at = memory.proven_at if memory.steps is None else steps.sampled_at
            memory = replace(memory, steps=steps.value, steps_sampled_at=steps.sampled_at, proven_at=proven_at)
        elif memory.steps_sampled_at is None or steps.sampled_at > memory.steps_sampled_at:
            memory = replace(memory, steps_sampled_at=steps.sampled_at)
            if memory.flat_since is not None:
                first = steps.sampled_at if memory.flat_first_at is None else memory.flat_first_at
                memory = replace(memory, flat_first_at=first, flat_confirmed_at=steps.sampled_at)
    # vLLM does not count a step that only computes a piece of a prompt; its KV cache fills all the same.
    gauges = tuple(r.value if r is not None else None for r in map(engine.signals.get, CORE_GAUGES))
    moved = any(a is not None and b is not None and a != b for a, b in zip(memory.gauges, gauges, strict=False))
    if moved and steps.seen is Seen.OK:
        progress_at = steps.sampled_at
        memory = replace(memory, proven_at=steps.sampled_at)
    memory = replace(memory, gauges=gauges)
    sent = engine.sent_bytes_total
    if sent.seen is Seen.OK and sent.value is not None:
        if memory.sent_bytes is not None and sent.value > memory.sent_bytes:
            progress_at = at
            memory = replace(memory, proven_at=at)
        memory = replace(memory, sent_bytes=sent.value)
    return memory, progress_at


def _end_stretch(memory: HangMemory, at: float, policy: HangSettings) -> HangMemory:
    """
    Progress: a stretch that was never judged a hang is a legal gap. A judged one is not: else one hang would blind us
    to the next. Counted from the first flat sample on: before it the engine may have been idle between two looks.
    """
    gaps = tuple(g for g in memory.legal_gaps if at - g[0] <= policy.step_memory_seconds)
    if not memory.hung and memory.flat_first_at is not None and memory.flat_confirmed_at is not None:
        gap = memory.flat_confirmed_at - memory.flat_first_at
        if gap > 0:
            # Only the longest and the latest matter; the bound keeps the state small.
            gaps = tuple(sorted((*gaps, (at, gap)), key=lambda g: g[1])[-16:])
    return replace(memory, legal_gaps=gaps, hung=False, flat_since=None, flat_first_at=None, flat_confirmed_at=None)


def note_canary_success(memory: HangMemory, at: float) -> HangMemory:
    """A token came: whatever was flat is over. Not a legal gap: the stretch may have been judged by it."""
    return replace(
        memory, hung=False, flat_since=None, flat_first_at=None, flat_confirmed_at=None, progress_at=at, proven_at=at
    )
