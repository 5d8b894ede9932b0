"""The slower effects of a decision: canary, contexts, evidence and restart, the end of an incident."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from sre.actions.ports import Gateway, IncidentRecorder, Supervisor
from sre.actions.records import JournalEntry
from sre.actions.types import FinishedRequest, InFlightRequest
from sre.breaker.decide import Decision
from sre.breaker.effects import CloseIncident, RestartEngine, SaveContexts, StartCanary
from sre.breaker.machine import EngineBreaker
from sre.breaker.state import GuardState, Incident
from sre.clock import Clock
from sre.control.observe import Observer
from sre.errors import DependencyError, StateError
from sre.signals.codec import to_json
from sre.signals.types import CanaryResult, Snapshot

log = logging.getLogger("sre.guard")

EVIDENCE_SECONDS = 10.0
"""A process in an uninterruptible state can hold up whoever reads its /proc; the restart does not wait for that."""


class Evidence(Protocol):
    """What is worth keeping before a process is ended. Never raises; bounded in time."""

    async def __call__(self, engine: str) -> dict[str, str]: ...


class Listener(Protocol):
    """Told of what happened; the exporter implements it."""

    def ticked(
        self, seconds: float, snapshot: Snapshot, decision: Decision, finished: Sequence[FinishedRequest]
    ) -> None: ...
    def canary(self, result: CanaryResult, pool: str) -> None: ...
    def acted(self, action: str, outcome: str) -> None: ...
    def failed(self, boundary: str) -> None: ...
    def opened(self, scope: str, target: str, reason: str, incident: bool) -> None: ...


class Watched(Protocol):
    """What effects read of the guard."""

    state: GuardState
    snapshot: Snapshot | None

    @property
    def trace(self) -> Sequence[Snapshot]: ...


class Notebook:
    """What effects have to tell the next commit: journal entries and changes of state."""

    def __init__(self, clock: Clock, listener: Listener) -> None:
        self._clock, self._listener = clock, listener
        self.entries: list[JournalEntry] = []
        self.updates: list[Callable[[GuardState], GuardState]] = []
        self._failing: set[str] = set()

    def note(
        self, kind: str, target: str, reason: str, action: str, data: dict[str, object], incident: str | None = None
    ) -> None:
        """Add a journal entry to the next commit."""
        entry = JournalEntry(
            kind=kind,
            target=target,
            reason=reason,
            action=action,
            at_wall=self._clock.wall(),
            at_monotonic=self._clock.monotonic(),
            incident_id=incident,
            data=data,
        )
        tell(entry, self._listener)
        self.entries.append(entry)

    def fail(self, target: str, action: str, problem: str, incident: str | None = None) -> None:
        """Record a failure once per stretch of failing, not once per tick."""
        self._listener.acted(action, "failed")
        key = f"{target}/{action}"
        if key not in self._failing:
            self._failing.add(key)
            self.note("failed", target, f"{action}_failed", action, {"problem": problem}, incident)

    def recovered(self, target: str, action: str) -> None:
        """The next failure of ``action`` on ``target`` is a new one."""
        self._failing.discard(f"{target}/{action}")


def tell(entry: JournalEntry, listener: Listener) -> None:
    """Log an entry, and let the listener count what it means."""
    log.info("%s %s: %s %s", entry.kind, entry.target, entry.reason, json.dumps(entry.data))
    if entry.kind == "transition" and entry.data.get("to") == "open":
        incident = entry.data.get("from") == "closed"
        listener.opened("engine", entry.target, str(entry.data.get("reason", "unknown")), incident)


class GuardEffects:
    """
    Carries out effects, each of which may be repeated: what is done is noted, and what is noted is not asked for again.

    Args:
        release: Lets the held page of an incident go.
    """

    def __init__(
        self,
        *,
        guard: Watched,
        gateway: Gateway,
        supervisor: Supervisor | None,
        incidents: IncidentRecorder,
        observer: Observer,
        evidence: Evidence,
        listener: Listener,
        notebook: Notebook,
        clock: Clock,
        release: Callable[[str], Awaitable[None]],
    ) -> None:
        self._guard, self._gateway, self._supervisor, self._incidents = guard, gateway, supervisor, incidents
        self._observer, self._evidence, self._listener, self._notebook = observer, evidence, listener, notebook
        self._clock, self._release = clock, release
        self.contexts: dict[str, list[InFlightRequest]] = {}
        """Requests in flight at the trip, by incident, until they are on disk."""

    async def canary(self, effect: StartCanary) -> None:
        result = await self._gateway.probe(
            effect.engine,
            effect.number,
            first_token_timeout_seconds=effect.first_token_timeout_seconds,
            timeout_seconds=effect.timeout_seconds,
        )
        self._observer.canaries[effect.engine] = result
        engine = self._guard.snapshot.engines.get(effect.engine) if self._guard.snapshot else None
        self._listener.canary(result, engine.pool if engine else "")

    async def save_contexts(self, effect: SaveContexts) -> None:
        """Contexts to disk, then the page may go. If the disk refuses, the page goes without them."""
        identifier = effect.incident_id
        requests = self.contexts.get(identifier, [])
        incident = self._guard.state.incidents.get(effect.engine)
        try:
            facts = self._facts(effect, incident)
            await asyncio.to_thread(self._incidents.open, identifier, facts)
            count = await asyncio.to_thread(self._incidents.write_contexts, identifier, requests)
            trace = "\n".join(json.dumps(to_json(s)) for s in list(self._guard.trace)[-120:])
            await asyncio.to_thread(self._incidents.write_evidence, identifier, "trace.jsonl", trace)
        except (StateError, OSError) as error:
            self._notebook.fail(effect.engine, "contexts", str(error), identifier)
            await self._release(identifier)
            return
        self._notebook.recovered(effect.engine, "contexts")
        self.contexts.pop(identifier, None)
        self._notebook.note("applied", effect.engine, "contexts_saved", "contexts", {"requests": count}, identifier)
        self._listener.acted("contexts", "applied")
        self._notebook.updates.append(lambda s: _with_incident(s, effect.engine, identifier, contexts_saved=True))
        await self._release(identifier)

    def _facts(self, effect: SaveContexts, incident: Incident | None) -> dict[str, object]:
        breaker = self._guard.state.breakers.get(effect.engine, EngineBreaker())
        pool = incident.pool if incident else ""
        return {
            "engine": effect.engine,
            "pool": pool,
            "scope": f"engine {effect.engine} (pool {pool})",
            "reason": incident.reason if incident else None,
            "severity": "page",
            "detail": breaker.detail,
            "opened_wall": incident.opened_wall if incident else None,
            "fault_since_monotonic": breaker.fault_since,
        }

    async def restart(self, effect: RestartEngine) -> None:
        """Evidence first: a restart destroys it."""
        supervisor = self._supervisor
        if supervisor is None:
            self._notebook.fail(effect.engine, "restart", "no supervisor to ask", effect.incident_id)
            return
        kept: list[str] = []
        try:
            taken = await asyncio.wait_for(self._evidence(effect.engine), EVIDENCE_SECONDS)
        except Exception as error:  # noqa: BLE001 - no evidence is worth more than the engine's recovery
            self._notebook.fail(
                effect.engine, "evidence", f"not taken: {type(error).__name__}: {error}", effect.incident_id
            )
            taken = {}
        for name, text in taken.items():
            try:
                await asyncio.to_thread(self._incidents.write_evidence, effect.incident_id, name, text)
                kept.append(name)
            except (StateError, OSError) as error:
                self._notebook.fail(effect.engine, "evidence", str(error), effect.incident_id)
        self._notebook.note("applied", effect.engine, "evidence_taken", "evidence", {"files": kept}, effect.incident_id)
        try:
            done = await supervisor.restart(effect.engine, effect.expected, effect.reason)
        except DependencyError as error:
            # The intent stands and its budget is charged once; the next tick asks again.
            self._notebook.fail(effect.engine, "restart", str(error), effect.incident_id)
            return
        reason = "restarted" if done else "already_replaced"
        self._notebook.note(
            "applied", effect.engine, reason, "restart", {"pid": effect.expected.pid}, effect.incident_id
        )
        self._listener.acted("restart", "applied")
        self._notebook.updates.append(lambda s: _with_incident(s, effect.engine, effect.incident_id, restart_done=True))

    async def close_incident(self, effect: CloseIncident) -> None:
        await asyncio.to_thread(self._incidents.resolve, effect.incident_id, at_wall=self._clock.wall())


def _with_incident(
    state: GuardState,
    engine: str,
    identifier: str,
    *,
    contexts_saved: bool | None = None,
    restart_done: bool | None = None,
) -> GuardState:
    """Return ``state`` with the incident changed, or as it is when that incident is over."""
    incident = state.incidents.get(engine)
    if incident is None or incident.id != identifier:
        return state
    incident = replace(
        incident,
        contexts_saved=incident.contexts_saved if contexts_saved is None else contexts_saved,
        restart_done=incident.restart_done if restart_done is None else restart_done,
    )
    return replace(state, incidents={**state.incidents, engine: incident})
