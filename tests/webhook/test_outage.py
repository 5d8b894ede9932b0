"""A store that takes no alerts: a person is told from memory, once, and of the end."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from sre.actions.records import OutboxMessage
from sre.actions.types import Message
from sre.control.alert_outage import LOOK_SECONDS, TOLD_AFTER_SECONDS, OutageWatch
from sre.notify.forms import Style, long_text, title
from sre.testing.clock import ManualClock


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.problem: str | None = None
        self.sent: list[OutboxMessage] = []
        self.watch = OutageWatch(lambda: self.problem, self._listeners, self.clock, self.sent.extend)

    def _listeners(self, message: Message) -> Sequence[str]:
        return ("sms", "mail") if message.severity == "page" else ()

    def looks(self, seconds: float) -> None:
        for _ in range(int(seconds / LOOK_SECONDS)):
            self.clock.advance(LOOK_SECONDS)
            self.watch.look()

    def told(self, channel: str = "sms") -> list[tuple[str, str, str]]:
        return [(o.message.event, o.message.severity, o.message.summary) for o in self.sent if o.channel == channel]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_what_lasts_is_told_once_and_so_is_its_end_to_the_same(scene: Scene) -> None:
    scene.problem = "the disk is full"
    scene.looks(TOLD_AFTER_SECONDS - LOOK_SECONDS)
    assert scene.sent == [], "Alertmanager comes again"
    scene.looks(3600)
    begun = ("open", "page", "alerts cannot be stored, so nobody is told of them: the disk is full")
    assert scene.told() == scene.told("mail") == [begun]
    scene.problem = None
    scene.looks(60)
    assert scene.told() == scene.told("mail") == [begun, ("resolve", "info", "alerts can be stored again")]
    assert len({o.message.incident_id for o in scene.sent}) == 1
    assert scene.sent[0].message.at_wall - float(dict(scene.sent[0].message.facts)["since"]) >= TOLD_AFTER_SECONDS


def test_it_is_said_in_chinese(scene: Scene) -> None:
    scene.problem = "磁盘已满"
    scene.looks(60)
    scene.problem = None
    scene.looks(60)
    kept = re.compile(r"sre notify outbox list --incident|webhook-[\d-]+|webhook|Alertmanager|\b(UTC|s)\b", re.ASCII)
    for message in {o.message for o in scene.sent}:
        text = title(message, Style("zh")) + "\n" + long_text(message, None, Style("zh"))
        assert re.findall(r"[A-Za-z]{2,}", kept.sub("", text)) == [], text


def test_another_time_is_another_incident(scene: Scene) -> None:
    for _ in range(2):
        scene.problem = "the disk is full"
        scene.looks(60)
        scene.problem = None
        scene.looks(60)
    assert [event for event, *_ in scene.told()] == ["open", "resolve"] * 2
    assert len({o.message.incident_id for o in scene.sent}) == 2


def test_a_moment_is_told_to_nobody(scene: Scene) -> None:
    for _ in range(10):
        scene.problem = "no answer in 5 s"
        scene.looks(TOLD_AFTER_SECONDS - LOOK_SECONDS)
        scene.problem = None
        scene.looks(LOOK_SECONDS)
    assert scene.sent == []
