"""Recorded snapshots through the same decisions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sre.breaker.decide import decide
from sre.breaker.memory import Memory
from sre.breaker.policy import Policy
from sre.breaker.state import GuardState
from sre.signals.codec import TraceError, from_json


def replay(lines: Iterable[str], policy: Policy) -> list[dict[str, Any]]:
    """
    Return the journal that ``policy`` would have written over the snapshots in ``lines``, oldest first.

    Canaries were answered as they were then: a policy that would have sent others gets no answer to them.

    Raises:
        TraceError: A line is no snapshot (its number is in the text), or time goes back; a torn last line is let be.
    """
    state, memory = GuardState(), Memory()
    events: list[dict[str, Any]] = []
    first: float | None = None
    last = float("-inf")
    problem: TraceError | None = None
    for number, line in enumerate(lines, 1):
        if problem is not None:
            raise problem
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            if not isinstance(data, dict):
                raise TraceError("not a snapshot: no JSON object")
            snapshot = from_json(data)
        except (ValueError, TraceError) as error:
            problem = TraceError(f"line {number}: {error}")
            continue
        if snapshot.at < last:
            raise TraceError(f"line {number}: time goes back; two recordings in one file? split it there")
        last = snapshot.at
        first = snapshot.at if first is None else first
        decision = decide(state, memory, snapshot, policy)
        state, memory = decision.state, decision.memory
        events += [
            {
                "seconds": round(snapshot.at - first, 3),
                "kind": entry.kind,
                "target": entry.target,
                "reason": entry.reason,
                "action": entry.action,
                "incident_id": entry.incident_id,
                "data": dict(entry.data),
            }
            for entry in decision.journal
        ]
    if first is None:
        raise problem or TraceError("no snapshot in it; record one with sre guard run --record FILE")
    return events
