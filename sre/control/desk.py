"""What the guard tells those who ask, as JSON-able data, and how their orders reach it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sre.actions.records import Acknowledgement, JournalRow
from sre.breaker.machine import BreakerState, EngineBreaker
from sre.breaker.manual import Command
from sre.breaker.memory import EngineMemory
from sre.breaker.policy import Policy
from sre.breaker.recovery import restarts_left
from sre.breaker.state import Pause
from sre.clock import Clock
from sre.control.acknowledgements import Acknowledgements
from sre.control.blocking import CALL_SECONDS, BlockingCalls
from sre.control.guard import Guard
from sre.control.notify_proof import Canaries
from sre.errors import StateError
from sre.signals.codec import to_json
from sre.signals.types import EngineSeen, Reading, Seen

LONGEST_EXPIRY_SECONDS = 7 * 86400.0
"""An override that nobody remembers is a fault of its own."""


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return None
    return value


def _text(order: Mapping[str, Any], key: str, required: bool = True) -> str:
    value = order.get(key, "")
    if not isinstance(value, str) or (required and not value.strip()):
        raise ValueError(f"the order needs {key!r}, a text")
    return value.strip()


def _expiry(order: Mapping[str, Any]) -> float | None:
    value = order.get("expires_seconds")
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= LONGEST_EXPIRY_SECONDS:
        raise ValueError(f"expires_seconds: {value!r} is not a number in (0, {LONGEST_EXPIRY_SECONDS:.0f}]")
    return float(value)


class Desk:
    """
    ``GuardDesk`` of one guard.

    Args:
        read_journal: Reads (after, limit) from the store; blocking. None when there is no store.
        journal_seconds: How long a read of the journal is waited for.
        acknowledge: None when there is no store.
        canaries: None when no canary can come back: no store, or no webhook.
        deaf: Why the webhook takes no alerts in, as a sentence; "": it does, or there is none.
    """

    def __init__(
        self,
        guard: Guard,
        policy: Policy,
        clock: Clock,
        read_journal: Callable[[int, int], Sequence[JournalRow]] | None = None,
        *,
        journal_seconds: float = CALL_SECONDS,
        acknowledge: Acknowledgements | None = None,
        canaries: Canaries | None = None,
        deaf: Callable[[], str] = lambda: "",
    ) -> None:
        self._deaf = deaf
        self._acknowledge, self._canaries = acknowledge, canaries
        self._guard, self._policy, self._clock, self._read_journal = guard, policy, clock, read_journal
        self._calls = BlockingCalls("journal", seconds=journal_seconds)

    def status(self) -> dict[str, Any]:
        guard, now = self._guard, self._clock.monotonic()
        decision, snapshot = guard.decision, guard.snapshot
        health = guard.health
        pause = guard.state.pause
        seen = snapshot.engines if snapshot else {}
        return {
            "tick_age_seconds": None if guard.ticked_at is None else round(now - guard.ticked_at, 3),
            "mode": self._policy.mode,
            "store_up": health.store_up,
            "problem": health.problem,
            "webhook_problem": self._deaf() or None,
            "paused": None if pause is None else {"owner": pause.owner, "reason": pause.reason},
            "supervisor_reachable": bool(snapshot and snapshot.supervisor_reachable),
            "gateway_reachable": bool(snapshot and snapshot.gateway and snapshot.gateway.reachable),
            "pools": {
                name: {
                    "state": pool.state.value,
                    "reject_percent": pool.pool.reject_percent,
                    "reason": pool.pool.reason.value if pool.pool.reason else None,
                }
                for name, pool in (decision.pools if decision else {}).items()
            },
            "engines": {name: self._engine(name, engine, now) for name, engine in seen.items()},
            "incidents": [_plain(i) for i in guard.state.incidents.values()],
        }

    def _engine(self, name: str, engine: EngineSeen, now: float) -> dict[str, Any]:
        guard = self._guard
        breaker = guard.state.breakers.get(name, EngineBreaker())
        memory = guard.memory.engines.get(name, EngineMemory())
        ramp = breaker.ramp_index
        desired = guard.decision.desired.engines if guard.decision else ()
        weight = next((0 if e.draining else e.weight_percent for e in desired if e.engine == name), None)
        return {
            "state": breaker.effective.value,
            "reason": breaker.reason.value if breaker.reason else None,
            "detail": breaker.detail,
            "since_seconds": round(now - breaker.since, 3),
            "open_for_seconds": round(max(0.0, breaker.open_until - now), 3)
            if breaker.effective is BreakerState.OPEN
            else None,
            "ramp_percent": None if ramp is None else self._policy.half_open.ramp_percents[ramp],
            "weight_percent": weight,
            "restarts_left": restarts_left(guard.state, name, self._policy),
            "latched": breaker.latched,
            "openings": breaker.openings,
            "override": _plain(breaker.override),
            "pool": engine.pool,
            "acting": self._policy.acts_on(engine.managed),
            "process": engine.process.value,
            "in_flight": _reading(engine.in_flight, now),
            "hang": memory.hang.verdict.value,
            "blind": sorted(memory.blind_told),
            "hang_after_seconds": memory.hang.hang_after_seconds,
            "incident_id": guard.state.incidents[name].id if name in guard.state.incidents else None,
        }

    def explain(self, engine: str) -> dict[str, Any] | None:
        """Everything the breaker of ``engine`` rests on now; None when there is no such engine."""
        guard, now = self._guard, self._clock.monotonic()
        seen = guard.snapshot.engines.get(engine) if guard.snapshot else None
        if seen is None:
            return None
        memory = guard.memory.engines.get(engine, EngineMemory())
        rules = []
        for rule in self._policy.rules:
            for key, state in memory.rules.items():
                if key.partition("/")[0] == rule.name:
                    condition = f"{rule.signal} {rule.comparison} {rule.threshold:g} for {rule.for_seconds:g} s"
                    rules.append(
                        {
                            "rule": key,
                            "condition": condition,
                            "verdict": state.verdict.value,
                            "value": state.value,
                            "beyond_for_seconds": None if state.beyond_since is None else now - state.beyond_since,
                            "on_missing": rule.on_missing,
                            "blind": state.blind,
                        }
                    )
        readings = {"requests in flight": seen.in_flight, "engine steps": seen.steps_total, **seen.signals}
        canary = memory.canary
        return {
            **self._engine(engine, seen, now),
            "rules": rules,
            "signals": {name: _reading(reading, now) for name, reading in readings.items()},
            "outcomes": _plain(seen.outcomes),
            "paused_engine": seen.paused,
            "no_step_for_seconds": None if memory.hang.flat_since is None else now - memory.hang.flat_since,
            "canary": {
                "last": canary.last_verdict.value if canary.last_verdict else None,
                "detail": canary.last_detail,
                "failures_in_row": canary.failures_in_row,
                "under_way": canary.awaiting is not None,
            },
        }

    def trace(self) -> list[dict[str, Any]]:
        return [to_json(s) for s in self._guard.trace]

    async def journal(self, after: int, limit: int) -> list[dict[str, Any]]:
        """Raises StateError when the store cannot be read, or does not answer in time."""
        read = self._read_journal
        if read is None:
            return []
        rows = await self._calls(lambda: read(after, limit))
        return [{"seq": row.seq, "boot_id": row.boot_id, **_plain(row.entry)} for row in rows]

    async def order(self, order: Mapping[str, Any]) -> dict[str, Any]:
        began = self._clock.monotonic()
        command = Command(
            verb=_text(order, "verb"),
            target=_text(order, "target"),
            owner=_text(order, "owner"),
            reason=_text(order, "reason"),
            expires_seconds=_expiry(order),
        )
        decision = await self._guard.order(command)
        milliseconds = round((self._clock.monotonic() - began) * 1000, 1)
        return {
            "changed": any(e.kind == "transition" for e in decision.journal),
            "milliseconds": milliseconds,
            "engines": {
                n: b.effective.value for n, b in decision.state.breakers.items() if command.target in (n, self._pool(n))
            },
        }

    async def acknowledge(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Raises StateError when it cannot be written down."""
        if self._acknowledge is None:
            raise StateError("guard state: it cannot be trusted, so nothing can be acknowledged; see sre guard status")
        found = await self._acknowledge(_text(order, "incident"), _text(order, "by"), _text(order, "note", False))
        return acknowledgement_json(found)

    def canary(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Send a canary alert on its way (see ``sre.control.notify_proof``), or with 0 seconds end it."""
        if self._canaries is None:
            raise StateError("guard: no webhook takes a canary in; set webhook.enabled and restart the guard")
        seconds = order.get("seconds", 0)
        if not isinstance(seconds, int | float) or isinstance(seconds, bool):
            raise ValueError("the order needs 'seconds', a number")
        identifier = _text(order, "id")
        self._canaries.send(identifier, float(seconds))
        return self._canaries.report(identifier) or {}

    def canary_report(self, identifier: str) -> dict[str, Any] | None:
        """What is known of a canary; None when nothing is."""
        return None if self._canaries is None else self._canaries.report(identifier)

    def _pool(self, engine: str) -> str | None:
        seen = self._guard.snapshot.engines.get(engine) if self._guard.snapshot else None
        return seen.pool if seen else None

    async def pause(self, order: Mapping[str, Any] | None) -> dict[str, Any]:
        if order is None:
            return {"changed": await self._guard.set_pause(None)}
        expires = _expiry(order)
        until = None if expires is None else self._clock.monotonic() + expires
        wanted = Pause(_text(order, "owner"), _text(order, "reason"), self._clock.wall(), until)
        return {"changed": await self._guard.set_pause(wanted)}


def acknowledgement_json(found: Acknowledgement) -> dict[str, Any]:
    """Return what became of an acknowledgement as a JSON-able mapping."""
    return {
        "outcome": found.outcome.value, "incidents": list(found.incidents), "by": found.by, "at_wall": found.at_wall,
        "quieted": found.quieted,
    }  # fmt: skip


def _reading(reading: Reading, now: float) -> dict[str, Any]:
    age = now - reading.sampled_at
    return {
        "value": reading.value,
        "seen": reading.seen.value,
        "age_seconds": None if reading.seen is Seen.NEVER else round(age, 3),
    }
