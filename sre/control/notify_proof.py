"""
The standing proof: a canary alert on its way through Prometheus, Alertmanager and webhook to every channel.

Nothing is restarted or reloaded for it: the guard exports ``sre_canary_alert{id="…"} 1`` for a while, the generated
rule SreCanary makes an alert of it, the generated Alertmanager configuration sends that to the webhook, and the webhook
sends a test message to every channel. Each hop is then asked when it saw the canary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sre.actions.records import OutboxRow
from sre.clock import Clock

MOST_CANARIES = 8
"""On their way at once."""
LONGEST_SECONDS = 900.0
KEPT_SECONDS = 3600.0
"""What became of a canary is told so long."""
ID = re.compile(r"[0-9a-z-]{4,40}", re.ASCII)


@dataclass(slots=True)
class _Canary:
    sent_wall: float
    sent: float
    ends: float
    received_wall: float | None = None
    committed_wall: float | None = None


class Canaries:
    """The canaries of one guard."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, _Canary] = {}

    def send(self, identifier: str, seconds: float) -> None:
        """
        Export the canary for so long; 0 ends it.

        Raises:
            ValueError: No such id, too long, or too many on their way.
        """
        if not ID.fullmatch(identifier):
            raise ValueError("id: 4 to 40 of a-z, 0-9 and -")
        if not 0 <= seconds <= LONGEST_SECONDS:
            raise ValueError(f"seconds: not a number from 0 to {LONGEST_SECONDS:g}")
        now = self._clock.monotonic()
        self._known = {name: one for name, one in self._known.items() if now - one.ends < KEPT_SECONDS}
        known = self._known.get(identifier)
        if known is not None:
            known.ends = min(known.ends, now + seconds)
            return
        if seconds and len(self.active()) >= MOST_CANARIES:
            raise ValueError(f"{MOST_CANARIES} canaries are on their way; wait for one of them")
        self._known[identifier] = _Canary(self._clock.wall(), now, now + seconds)

    def active(self) -> frozenset[str]:
        """Ids that are exported now."""
        now = self._clock.monotonic()
        return frozenset(name for name, one in self._known.items() if now < one.ends)

    def heard(self, identifier: str, *, received: float, committed: float) -> None:
        """The webhook took the canary in; the first time counts."""
        one = self._known.get(identifier)
        if one is not None and one.received_wall is None:
            one.received_wall, one.committed_wall = received, committed

    def report(self, identifier: str) -> dict[str, Any] | None:
        """What is known of it; None when nothing is."""
        one = self._known.get(identifier)
        if one is None:
            return None
        return {
            "id": identifier,
            "sent_wall": one.sent_wall,
            "active": identifier in self.active(),
            "received_wall": one.received_wall,
            "committed_wall": one.committed_wall,
        }


# ---- The proof, as seen by the command -------------------------------------------------------------------------------

HOPS = ("exported", "prometheus", "alertmanager", "webhook", "committed", "channel")


@dataclass(frozen=True, slots=True)
class Hop:
    """One stage. ``wall`` None: not reached, or not seen there; ``problem`` then says which."""

    name: str
    wall: float | None
    problem: str = ""
    unseen: bool = False
    """It could not be looked at."""


@dataclass(frozen=True, slots=True)
class Proof:
    """How far a canary came."""

    id: str
    hops: tuple[Hop, ...]

    @property
    def arrived(self) -> bool:
        """Whether every channel delivered."""
        channels = [hop for hop in self.hops if hop.name.startswith("channel")]
        return bool(channels) and all(hop.wall is not None for hop in channels)

    @property
    def stopped_at(self) -> Hop | None:
        """The first hop that it did not reach though it could be looked at; None if it arrived."""
        reached = max((i for i, hop in enumerate(self.hops) if hop.wall is not None), default=-1)
        after = (
            self.hops[reached + 1 :]
            if not any(h.name.startswith("channel") and h.wall for h in self.hops)
            else [hop for hop in self.hops if hop.wall is None and not hop.unseen]
        )
        return None if self.arrived else next(iter(after), None)


class Pipeline(Protocol):
    """What the proof asks of the world. Every method may raise DependencyError."""

    async def send(self, identifier: str, seconds: float) -> None: ...
    async def report(self, identifier: str) -> Mapping[str, Any] | None: ...
    async def prometheus_active_at(self, identifier: str) -> float | None: ...
    async def alertmanager_starts_at(self, identifier: str) -> float | None: ...
    async def deliveries(self, identifier: str) -> Sequence[OutboxRow]: ...
