"""What an alert is about, of what the guard knows: engine, pool, open incident; and whether a trip of it may be."""

from __future__ import annotations

from collections.abc import Mapping

from sre.notify.alert_records import GuardNow, TripRefusal
from sre.notify.alert_routes import Trip


def place_of(labels: Mapping[str, str], guard: GuardNow) -> tuple[str | None, str | None]:
    """Return (engine, pool) that the alert is about, as far as its labels name one that the guard knows."""
    scope, target = labels.get("scope"), labels.get("target", "")
    if scope == "engine" and target in guard.engines:
        return target, guard.engines[target].pool
    named = labels.get("engine", "")
    if named in guard.engines:
        return named, guard.engines[named].pool
    instance = labels.get("instance")
    for name, engine in guard.engines.items():
        if instance and instance == engine.address:
            return name, engine.pool
    wanted = target if scope == "pool" else labels.get("pool") or labels.get("model_name")
    return None, wanted if any(engine.pool == wanted for engine in guard.engines.values()) else None


def guard_incident(labels: Mapping[str, str], guard: GuardNow) -> str | None:
    """
    Return the guard's open incident that the alert belongs to: that of its engine. An alert about a whole pool belongs
    to one of an engine only if that engine is the pool, or if it is what the guard itself says of the pool.
    """
    engine, pool = place_of(labels, guard)
    if engine is not None:
        return guard.incidents.get(engine)
    if pool is None:
        return None
    members = [name for name, one in guard.engines.items() if one.pool == pool]
    if len(members) > 1 and labels.get("scope") != "pool":
        return None
    return next((guard.incidents[name] for name in members if name in guard.incidents), None)


def trip_refusal(trip: Trip, guard: GuardNow, age_seconds: float) -> TripRefusal | None:
    """Return why ``trip`` must not be carried out now; None if it may."""
    if not trip.target:
        return TripRefusal.NO_LABEL
    if not guard.engines:
        return TripRefusal.NO_GUARD
    hit = {n: e for n, e in guard.engines.items() if trip.target == (n if trip.scope == "engine" else e.pool)}
    if not hit:
        return TripRefusal.NO_TARGET
    if age_seconds > trip.max_evidence_age_seconds:
        return TripRefusal.TOO_OLD
    if guard.paused:
        return TripRefusal.PAUSED
    if not all(engine.acting for engine in hit.values()):
        return TripRefusal.ONLY_OBSERVED
    if any(engine.state in ("disabled", "forced_open") for engine in hit.values()):
        return TripRefusal.HELD_BY_HAND
    if all(engine.state != "closed" for engine in hit.values()):
        return TripRefusal.ALREADY_OPEN
    if trip.scope == "engine":
        pools = {engine.pool for engine in hit.values()}
        others = [e for n, e in guard.engines.items() if n not in hit and e.pool in pools and e.state == "closed"]
        if not others:
            return TripRefusal.LAST_ENGINE
    return None
