"""The proof: where a canary stopped, whatever could or could not be seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from sre.actions.records import OutboxRow, OutboxState
from sre.cli.notify_proof import proof_text
from sre.control.notify_proof import Canaries, Ended, Hop, Proof, judge, proof_json, prove
from sre.errors import Unreachable
from sre.notify.alert_messages import canary_message
from sre.testing.clock import ManualClock

WAY = ("exported", "prometheus", "alertmanager", "webhook", "stored")


def hops(reached: int, *channels: float | None, unseen: tuple[str, ...] = ()) -> tuple[Hop, ...]:
    way = [
        Hop(name, None if name in unseen or n >= reached else float(n), "no answer" if name in unseen else "",
            name in unseen)
        for n, name in enumerate(WAY)
    ]  # fmt: skip
    return (*way, *(Hop(f"channel c{n}", wall) for n, wall in enumerate(channels)))


@pytest.mark.parametrize(
    ("seen", "ended", "at"),
    [
        (hops(5, 9.0, 9.0), Ended.ARRIVED, ""),
        (hops(5, 9.0, 9.0, unseen=("prometheus", "alertmanager")), Ended.ARRIVED, ""),
        (hops(5, 9.0, None), Ended.STOPPED, "channel c1"),
        (hops(5), Ended.STOPPED, "channel"),
        (hops(4, None), Ended.STOPPED, "stored"),
        (hops(3, None), Ended.STOPPED, "webhook"),
        (hops(2, None), Ended.STOPPED, "alertmanager"),
        (hops(1, None), Ended.STOPPED, "prometheus"),
        (hops(1, None, unseen=("prometheus",)), Ended.UNKNOWN, "prometheus"),
        (hops(1, None, unseen=("prometheus", "alertmanager")), Ended.UNKNOWN, "prometheus"),
        (hops(2, None, unseen=("alertmanager",)), Ended.UNKNOWN, "alertmanager"),
        (hops(3, None, unseen=("prometheus",)), Ended.STOPPED, "webhook"),
    ],
)
def test_where_it_stopped(seen: tuple[Hop, ...], ended: Ended, at: str) -> None:
    found = judge(seen)
    assert found[:2] == (ended, at)
    assert bool(found[2]) == (ended is not Ended.ARRIVED)


@pytest.mark.parametrize(
    ("seen", "last"),
    [
        (hops(3, None), "stopped at webhook: has it a route for SreCanary "),
        # Nobody could look there: it may have been there already.
        (
            hops(2, None, unseen=("alertmanager",)),
            "stopped at alertmanager or after it: between prometheus and webhook: ",
        ),
        (hops(5, 9.0), "arrived on every channel, 9.00 s after it was exported"),
    ],
)
def test_the_last_line_names_the_place(seen: tuple[Hop, ...], last: str) -> None:
    assert proof_text(proof_json(Proof("c1", seen, *judge(seen)))).splitlines()[-1].startswith(last)


class World:
    """A pipeline on a clock: each stage answers after its time; None: never."""

    def __init__(self, clock: ManualClock, **after: float | None) -> None:
        self.clock, self.after, self.canaries = clock, after, Canaries(clock)
        self.began = clock.monotonic()

    def _at(self, stage: str) -> float | None:
        after = self.after.get(stage)
        passed = self.clock.monotonic() - self.began
        return None if after is None or passed < after else self.clock.wall() - passed + after

    async def send(self, identifier: str, seconds: float) -> None:
        self.canaries.send(identifier, seconds)

    async def report(self, identifier: str) -> Mapping[str, Any]:
        stored = self._at("stored")
        if stored is not None:
            self.canaries.heard(identifier, received=stored, committed=stored)
        return self.canaries.report(identifier) or {}

    async def fired(self, identifier: str) -> float | None:
        if "fired" not in self.after:
            raise Unreachable("prometheus http://p", "does not answer")
        return self._at("fired")

    async def taken(self, identifier: str) -> float | None:
        return self._at("taken")

    async def deliveries(self, identifier: str) -> Sequence[OutboxRow]:
        if self._at("stored") is None:
            return ()
        sent, dead = self._at("sent"), self._at("dead") is not None
        state = OutboxState.DEAD if dead else OutboxState.SENT if sent is not None else OutboxState.PENDING
        row = OutboxRow(
            id=1, message=canary_message(identifier, 0.0), opened=None, channel="mail", level=0, state=state,
            attempts=1, due_in_seconds=0.0, last_error="535 who are you" if dead else None, created_wall=0.0,
            age_seconds=0.0, sent_wall=None if dead else sent,
        )  # fmt: skip
        return [row]


async def proof_of(channels: Sequence[str] = ("mail",), **after: float | None) -> tuple[World, Proof]:
    clock = ManualClock()
    world = World(clock, **after)
    return world, await prove(world, clock, "c0ffee", channels, wait_seconds=60)


async def test_each_hop_is_measured_and_the_canary_ends() -> None:
    world, proof = await proof_of(fired=15.0, taken=16.0, stored=17.0, sent=20.0)
    assert proof.ended is Ended.ARRIVED
    told = proof_json(proof)
    assert [hop["seconds"] for hop in told["hops"]] == [None, 15.0, 1.0, 1.0, 0.0, 3.0]
    assert told["seconds"] == 20.0
    assert world.canaries.active() == frozenset()


async def test_a_hop_nobody_could_look_at_does_not_spoil_the_proof() -> None:
    _, proof = await proof_of(taken=16.0, stored=17.0, sent=20.0)
    assert proof.ended is Ended.ARRIVED
    assert not proof_json(proof)["hops"][1]["looked"]


async def test_a_channel_that_gave_up_ends_it_at_once() -> None:
    world, proof = await proof_of(fired=1.0, taken=1.0, stored=1.0, dead=2.0)
    assert (proof.ended, proof.at) == (Ended.STOPPED, "channel mail")
    assert "535 who are you" in proof.why
    assert world.clock.monotonic() - world.began < 5


async def test_a_canary_that_never_comes_is_waited_for_so_long() -> None:
    world, proof = await proof_of(fired=None, taken=None)
    assert (proof.ended, proof.at) == (Ended.STOPPED, "prometheus")
    assert 60 <= world.clock.monotonic() - world.began < 62


async def test_without_channels_nobody_is_told() -> None:
    _, proof = await proof_of((), fired=1.0, taken=1.0, stored=1.0)
    assert (proof.ended, proof.at) == (Ended.STOPPED, "channel")


def test_canaries_are_bounded_and_end_by_themselves() -> None:
    clock = ManualClock()
    canaries = Canaries(clock)
    for number in range(8):
        canaries.send(f"c{number}aa", 60)
    with pytest.raises(ValueError, match="on their way"):
        canaries.send("one-more", 60)
    for bad in (("x", 1.0), ("UPPER", 1.0), ("good-one", -1.0), ("good-one", 1e6), ('a"b{}', 1.0)):
        with pytest.raises(ValueError):
            canaries.send(*bad)
    clock.advance(61)
    assert canaries.active() == frozenset()
    assert canaries.report("c0aa") is not None
    clock.advance(4000)
    canaries.send("later", 60)
    assert canaries.report("c0aa") is None
