"""What the guard must not forget: durable state, and its JSON form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sre.actions.types import RejectReason
from sre.breaker.machine import BreakerState, EngineBreaker, Override
from sre.signals.types import ProcessIdentity

STATE_VERSION = 1


class StateVersionError(ValueError):
    """The stored state is not of a version this program reads."""


@dataclass(frozen=True, slots=True)
class Incident:
    """An incident that is not over: from the trip of an engine until it is closed again."""

    id: str
    engine: str
    pool: str
    reason: str
    opened_wall: float
    contexts_saved: bool = False
    process: ProcessIdentity | None = None
    """The process that was judged when the breaker last opened."""
    restart_of: ProcessIdentity | None = None
    """The process whose restart was asked for: never asked twice for the same one, unless the first is not done."""
    restart_done: bool = False
    escalated: bool = False


@dataclass(frozen=True, slots=True)
class Blindness:
    """What a person was told is not seen of an engine, until it is seen again."""

    engine: str
    pool: str
    signals: tuple[str, ...]
    since_wall: float


@dataclass(frozen=True, slots=True)
class Pause:
    """A person stopped the guard's hands: it watches, it changes nothing."""

    owner: str
    reason: str
    set_wall: float
    until: float | None = None


@dataclass(frozen=True, slots=True)
class GuardState:
    """Durable state. Committed together with the journal and the outbox, never alone."""

    breakers: Mapping[str, EngineBreaker] = field(default_factory=dict)
    incidents: Mapping[str, Incident] = field(default_factory=dict)
    """By engine name: an engine has one open incident at the most."""
    identities: Mapping[str, ProcessIdentity] = field(default_factory=dict)
    """The process last seen ready, by engine."""
    restarts: tuple[tuple[str, float], ...] = ()
    """(engine, monotonic) of restarts asked for in the last hour: the budget."""
    armed: Mapping[str, bool] = field(default_factory=dict)
    """By rule/target: whether the rule may act, decided once on the steady state."""
    steady: Mapping[str, float] = field(default_factory=dict)
    """By rule/target: the level that decision was made on."""
    incident_number: int = 0
    pause: Pause | None = None
    blind: Mapping[str, Blindness] = field(default_factory=dict)
    """By the id under which it was told."""


def encode(state: GuardState, *, boot_id: str, at: float, wall: float) -> dict[str, Any]:
    """Return ``state`` as JSON-able data with the clock it was taken by."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, RejectReason | BreakerState):
            return value.value
        if isinstance(value, Mapping):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, tuple):
            return [plain(v) for v in value]
        return value

    return {"version": STATE_VERSION, "boot_id": boot_id, "at": at, "wall": wall, "state": plain(state)}


def _identity(data: Any) -> ProcessIdentity | None:
    return ProcessIdentity(data["pid"], data["start_ticks"]) if data else None


def _breaker(data: Mapping[str, Any]) -> EngineBreaker:
    override = data["override"]
    return EngineBreaker(
        **{
            **data,
            "state": BreakerState(data["state"]),
            "reason": RejectReason(data["reason"]) if data["reason"] else None,
            "override": Override(**{**override, "state": BreakerState(override["state"])}) if override else None,
        }
    )


def decode(data: Mapping[str, Any], *, boot_id: str, at: float, wall: float) -> GuardState:
    """
    Return the state that ``encode`` wrote.

    After a reboot the monotonic clock starts anew: times are shifted by the wall time that passed (none, if the wall
    clock went back), so waits go on rather than start over. Process identities of another boot mean nothing.

    Raises:
        StateVersionError: Another version, or not such data.
    """
    if data.get("version") != STATE_VERSION:
        raise StateVersionError(f"state version {data.get('version')!r}, this program reads {STATE_VERSION}")
    try:
        raw = data["state"]
        state = GuardState(
            breakers={k: _breaker(v) for k, v in raw["breakers"].items()},
            incidents={
                k: Incident(**{**v, "restart_of": _identity(v["restart_of"]), "process": _identity(v.get("process"))})
                for k, v in raw["incidents"].items()
            },
            identities={k: ProcessIdentity(**v) for k, v in raw["identities"].items()},
            restarts=tuple((r[0], float(r[1])) for r in raw["restarts"]),
            armed={k: bool(v) for k, v in raw["armed"].items()},
            steady={k: float(v) for k, v in raw.get("steady", {}).items()},
            incident_number=int(raw["incident_number"]),
            pause=Pause(**raw["pause"]) if raw["pause"] else None,
            blind={
                k: Blindness(v["engine"], v["pool"], tuple(v["signals"]), float(v["since_wall"]))
                for k, v in raw.get("blind", {}).items()
            },
        )
        if data["boot_id"] == boot_id:
            return state
        elapsed = max(0.0, wall - float(data["wall"]))
        return _shift(state, at - elapsed - float(data["at"]))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise StateVersionError(f"not a guard state: {type(error).__name__}: {error}") from error


def _shift(state: GuardState, by: float) -> GuardState:
    def later(value: float | None) -> float | None:
        return None if value is None else value + by

    def breaker(b: EngineBreaker) -> EngineBreaker:
        override = replace(b.override, until=later(b.override.until)) if b.override else None
        return replace(
            b,
            since=b.since + by,
            open_until=b.open_until + by,
            fault_since=later(b.fault_since),
            ramp_since=b.ramp_since + by,
            override=override,
        )

    return replace(
        state,
        breakers={k: breaker(b) for k, b in state.breakers.items()},
        incidents={k: replace(i, restart_of=None, process=None) for k, i in state.incidents.items()},
        identities={},
        restarts=tuple((e, t + by) for e, t in state.restarts),
        pause=replace(state.pause, until=later(state.pause.until)) if state.pause else None,
    )
