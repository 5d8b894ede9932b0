"""
The standing proof: a canary alert on its way through Prometheus, Alertmanager and webhook to every channel.

Nothing is restarted or reloaded for it: the guard exports ``sre_canary_alert{id="…"} 1`` for a while, the generated
rule SreCanary makes an alert of it, the generated Alertmanager configuration sends that to the webhook, and the webhook
sends a test message to every channel. Each hop is then asked when it saw the canary.
"""

from __future__ import annotations

import contextlib
import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sre.actions.records import OutboxRow, OutboxState
from sre.clock import Clock
from sre.errors import DependencyError, SreError

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


# ---- The proof, as the command sees it -------------------------------------------------------------------------------

EXPORTED, PROMETHEUS, ALERTMANAGER, WEBHOOK, COMMITTED = "exported", "prometheus", "alertmanager", "webhook", "stored"
CHANNEL = "channel "
GIVEN_UP = "given up"
POLL_SECONDS = 0.5
LEFT_SECONDS = 30.0
"""The guard ends the canary by itself so long after nobody waits for it any more."""


@dataclass(frozen=True, slots=True)
class Hop:
    """
    One stage. ``wall``: when the canary was there, by that stage's own clock; None: not seen there, and ``problem`` may
    say why. ``unseen``: nobody could look.
    """

    name: str
    wall: float | None = None
    problem: str = ""
    unseen: bool = False


class Ended(enum.Enum):
    """How a proof ends."""

    ARRIVED = "arrived"
    STOPPED = "stopped"
    UNKNOWN = "unknown"  # it did not arrive, and where it stopped could not be seen


@dataclass(frozen=True, slots=True)
class Proof:
    """How far a canary came."""

    id: str
    hops: tuple[Hop, ...]
    ended: Ended
    at: str
    """The hop at which it stopped; "" when it arrived."""
    why: str


class Pipeline(Protocol):
    """
    What the proof asks of the world. Every method may raise DependencyError; those of the guard (``send``, ``report``,
    ``deliveries``) any SreError.
    """

    async def send(self, identifier: str, seconds: float) -> None: ...

    async def report(self, identifier: str) -> Mapping[str, Any]:
        """What ``Canaries.report`` says."""
        ...

    async def fired(self, identifier: str) -> float | None:
        """When Prometheus began to fire the canary's alert; None: it does not."""
        ...

    async def taken(self, identifier: str) -> float | None:
        """When Alertmanager was told of it; None: it was not."""
        ...

    async def deliveries(self, identifier: str) -> Sequence[OutboxRow]: ...


async def prove(
    pipeline: Pipeline, clock: Clock, identifier: str, channels: Sequence[str], *, wait_seconds: float
) -> Proof:
    """
    Send a canary and follow it until it is delivered on every channel, given up, or ``wait_seconds`` are over.

    Raises:
        SreError: The guard cannot be asked.
    """
    await pipeline.send(identifier, min(wait_seconds + LEFT_SECONDS, LONGEST_SECONDS))
    deadline = clock.monotonic() + wait_seconds
    seen: dict[str, Hop] = {}
    try:
        while True:
            hops = await _look(pipeline, identifier, channels, seen)
            ended, at, why = judge(hops)
            if ended is Ended.ARRIVED or clock.monotonic() >= deadline or _given_up(hops):
                return Proof(identifier, hops, ended, at, why)
            await clock.sleep(POLL_SECONDS)
    finally:
        with contextlib.suppress(SreError):
            await pipeline.send(identifier, 0.0)


async def _look(pipeline: Pipeline, identifier: str, channels: Sequence[str], seen: dict[str, Hop]) -> tuple[Hop, ...]:
    report = await pipeline.report(identifier)
    hops = [Hop(EXPORTED, report["sent_wall"])]
    for name, ask in ((PROMETHEUS, pipeline.fired), (ALERTMANAGER, pipeline.taken)):
        # The first answer counts: later ones tell of repetitions.
        if seen.get(name, Hop(name)).wall is None:
            try:
                seen[name] = Hop(name, await ask(identifier))
            except DependencyError as error:
                seen[name] = Hop(name, problem=str(error), unseen=True)
        hops.append(seen[name])
    hops += [Hop(WEBHOOK, report["received_wall"]), Hop(COMMITTED, report["committed_wall"])]
    rows = {row.channel: row for row in await pipeline.deliveries(identifier) if row.message.event == "test"}
    for channel in channels:
        row = rows.get(channel)
        wall = None if row is None else row.sent_wall
        problem = "" if row is None or wall is not None else f"{row.state.value}: {row.last_error or 'not sent yet'}"
        if row is not None and row.state is OutboxState.DEAD:
            problem = f"{GIVEN_UP}: {row.last_error}"
        hops.append(Hop(CHANNEL + channel, wall, problem))
    return tuple(hops)


def _given_up(hops: Sequence[Hop]) -> bool:
    """Whether no channel can still change."""
    channels = [hop for hop in hops if hop.name.startswith(CHANNEL)]
    stored = any(hop.name == COMMITTED and hop.wall is not None for hop in hops)
    return stored and all(hop.wall is not None or hop.problem.startswith(GIVEN_UP) for hop in channels)


def judge(hops: Sequence[Hop]) -> tuple[Ended, str, str]:
    """Return how it ended, the hop at which it stopped, and why."""
    channels = [hop for hop in hops if hop.name.startswith(CHANNEL)]
    way = [hop for hop in hops if not hop.name.startswith(CHANNEL)]
    reached = max((number for number, hop in enumerate(way) if hop.wall is not None), default=-1)
    if reached == len(way) - 1:
        if not channels:
            return Ended.STOPPED, "channel", "no channel is configured: nobody would be told"
        missing = [hop for hop in channels if hop.wall is None]
        if not missing:
            return Ended.ARRIVED, "", ""
        return Ended.STOPPED, missing[0].name, missing[0].problem or "not queued"
    after = way[reached + 1]
    if not after.unseen:
        return Ended.STOPPED, after.name, REMEDIES.get(after.name, "")
    seen = next((hop.name for hop in way[reached + 2 :] if not hop.unseen), way[-1].name)
    return Ended.UNKNOWN, after.name, f"between {way[max(reached, 0)].name} and {seen}: {after.problem}"


REMEDIES: Mapping[str, str] = {
    PROMETHEUS: "does it scrape the guard, and has it the rules of sre rules generate? See its /targets and /alerts",
    ALERTMANAGER: "does Prometheus know it (alerting.alertmanagers), and is nothing of it silenced on the way?",
    WEBHOOK: "has it a route for SreCanary (sre rules generate --format alertmanager), the webhook's address and token?"
    " Its log names refusals",
    COMMITTED: "the guard's state cannot be written; see sre guard status",
}


def proof_json(proof: Proof) -> dict[str, Any]:
    """Return ``proof`` as JSON-able data, with the time each hop took."""
    hops = []
    before: float | None = None
    for hop in proof.hops:
        since = None if hop.wall is None or before is None else round(hop.wall - before, 3)
        hops.append(
            {"hop": hop.name, "wall": hop.wall, "seconds": since, "problem": hop.problem, "looked": not hop.unseen}
        )
        if hop.wall is not None and not hop.name.startswith(CHANNEL):
            before = hop.wall
    first = next((hop.wall for hop in proof.hops if hop.wall is not None), None)
    last = max((hop.wall for hop in proof.hops if hop.wall is not None and hop.name.startswith(CHANNEL)), default=None)
    return {
        "id": proof.id,
        "ended": proof.ended.value,
        "stopped_at": proof.at or None,
        "why": proof.why or None,
        "seconds": None if first is None or last is None else round(last - first, 3),
        "hops": hops,
    }
