"""What is not seen is told once; that it is seen again, too, and never before it is."""

from __future__ import annotations

import json
from dataclasses import replace

from sre.actions.types import Message
from sre.breaker.memory import Memory
from sre.breaker.state import decode, encode
from sre.signals.types import ProcessState
from tests.breaker.scenes import POLICY, Scene


def told(scene: Scene) -> list[Message]:
    return [message for decision in scene.decisions for message in decision.told]


def without_steps() -> Scene:
    scene = Scene()
    scene.ticks(5)
    scene.engines["e0"].steps = None
    scene.ticks(60)
    return scene


def restart(scene: Scene, *, boot_id: str = "boot") -> None:
    """A new guard knows what is on disk, and nothing else."""
    kept = json.loads(json.dumps(encode(scene.state, boot_id="boot", at=scene.at, wall=scene.wall)))
    scene.state, scene.memory = decode(kept, boot_id=boot_id, at=scene.at, wall=scene.wall), Memory()


def test_it_ends_under_the_same_id_when_it_is_seen_again() -> None:
    scene = without_steps()
    (begun,) = told(scene)
    assert (begun.event, begun.severity, begun.summary) == ("open", "ticket", "not seen: engine steps")
    scene.engines["e0"].steps = 9.0
    scene.tick()
    assert told(scene)[1:] == [
        Message(
            begun.incident_id, "resolve", "info", begun.scope, "blind", "seen again: engine steps", scene.wall,
            (("since", f"{begun.at_wall:.0f}"),),
        )
    ]  # fmt: skip
    assert not scene.state.blind
    scene.ticks(60)
    assert len(told(scene)) == 2


def test_each_time_is_told_and_ended_by_itself() -> None:
    scene = without_steps()
    scene.engines["e0"].steps = 9.0
    scene.ticks(5)
    scene.engines["e0"].steps = None
    scene.ticks(60)
    assert [m.event for m in told(scene)] == ["open", "resolve", "open"]
    assert len({m.incident_id for m in told(scene)}) == 2


def test_a_restart_tells_nothing_twice_and_forgets_no_end() -> None:
    for boot_id in ("boot", "another boot"):
        scene = without_steps()
        restart(scene, boot_id=boot_id)
        scene.ticks(60)
        assert [m.event for m in told(scene)] == ["open"]
        assert scene.memory.engines["e0"].blind_told == {"engine steps"}
        scene.engines["e0"].steps = 9.0
        scene.tick()
        assert [m.event for m in told(scene)] == ["open", "resolve"]


def test_an_engine_that_stops_is_not_seen_again_by_that() -> None:
    scene = without_steps()
    scene.engines["e0"].process = ProcessState.STOPPED
    scene.ticks(60)
    assert [m.event for m in told(scene) if m.reason == "blind"] == ["open"]
    scene.engines["e0"].process, scene.engines["e0"].steps = ProcessState.READY, 0.0
    scene.tick()
    assert [m.event for m in told(scene) if m.reason == "blind"] == ["open", "resolve"]


def test_what_is_missing_for_a_moment_is_not_seen_again() -> None:
    """After a restart the guard has not been blind for long enough yet; it has not seen it either."""
    scene = Scene(gpu_temperature=None)
    scene.ticks(60)
    (begun,) = told(scene)
    restart(scene)
    scene.tick()
    assert told(scene) == [begun]


def test_all_of_it_must_be_seen_again() -> None:
    scene = Scene(gpu_temperature=None, gpu_memory=None)
    scene.ticks(60)
    events = [m.event for m in told(scene)]
    scene.gpu_temperature = 60.0
    scene.ticks(5)
    assert [m.event for m in told(scene)] == events
    scene.gpu_memory = 0.6
    scene.ticks(5)
    assert [m.event for m in told(scene)] == [*events, *["resolve"] * len(events)]
    assert not scene.state.blind


def test_a_rule_that_left_the_configuration_is_not_looked_for_any_more() -> None:
    scene = Scene(gpu_temperature=None)
    scene.ticks(60)
    scene.policy = replace(POLICY, rules=tuple(r for r in POLICY.rules if r.signal != "gpu_temperature_celsius"))
    restart(scene)
    scene.tick()
    assert told(scene)[-1].summary == "seen again, or not looked for any more: rule gpu-temperature/gpu0"


def test_an_engine_that_left_the_configuration_takes_it_along() -> None:
    scene = without_steps()
    scene.engines["e1"] = replace(scene.engines.pop("e0"), name="e1", steps=0.0)
    scene.tick()
    assert [m.summary for m in told(scene)][1:] == [
        "e0 left the configuration; the incident is closed unproven",
    ]
    assert not scene.state.blind
