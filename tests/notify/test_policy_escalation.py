"""Who is told that nobody acknowledged, when, and in which words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.actions import facts
from sre.notify.escalation import (
    Escalation,
    Step,
    Unanswered,
    acknowledge_message,
    escalation_message,
    escalation_of,
    step,
    told_of_acknowledgement,
)
from sre.notify.forms import Style, long_text, render
from sre.notify.samples import HANG
from sre.settings.notify import ChannelSettings, EscalationSettings

ESCALATION = Escalation(after_seconds=900, repeat_seconds=300, max_levels=2, channels=("boss",))


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        (Unanswered("page", False, False, 0, 899.9), Step.NOT_YET),
        (Unanswered("page", False, False, 0, 900.0), Step.TELL),
        (Unanswered("page", False, False, 1, 299.9), Step.NOT_YET),
        (Unanswered("page", False, False, 1, 300.0), Step.TELL),
        (Unanswered("page", False, False, 2, 1e9), Step.ALL_TOLD),
        (Unanswered("page", True, False, 0, 1e9), Step.RESOLVED),
        (Unanswered("page", False, True, 0, 1e9), Step.ACKNOWLEDGED),
        (Unanswered("ticket", False, False, 0, 1e9), Step.NO_PAGE),
    ],
)
def test_when_the_next_level_is_told(seen: Unanswered, wanted: Step) -> None:
    assert step(seen, ESCALATION) is wanted


@given(st.lists(st.floats(0, 5000), max_size=40))
def test_however_time_passes_no_level_is_told_twice_or_too_early(waits: list[float]) -> None:
    level, since, told = 0, 0.0, []
    now = 0.0
    for wait in waits:
        now += wait
        if step(Unanswered("page", False, False, level, now - since), ESCALATION) is Step.TELL:
            level, since = level + 1, now
            told.append(now)
    assert len(told) <= 2
    if told:
        assert told[0] >= 900
    if len(told) == 2:
        assert told[1] - told[0] >= 300


def test_what_is_told_names_what_to_do() -> None:
    message = escalation_message(HANG, 2, HANG.at_wall + 1800)
    assert (message.event, message.severity, message.incident_id) == ("escalate", "page", HANG.incident_id)
    assert message.summary == f"not acknowledged for 30 min (level 2): {HANG.summary}"
    assert dict(message.facts)[facts.NEXT] == f"sre incident ack {HANG.incident_id}"
    assert len(render(message, "sms").body) <= 160
    chinese = long_text(message, None, Style("zh"))
    assert "30 分钟无人确认（第 2 级）：vllm-0 熔断：引擎挂起" in chinese
    soon = escalation_message(HANG, 1, HANG.at_wall + 90)
    assert soon.summary.startswith("not acknowledged for 90 s (level 1): ")
    assert "90 秒无人确认（第 1 级）" in long_text(soon, None, Style("zh"))


def test_an_acknowledgement_says_by_whom() -> None:
    message = acknowledge_message(HANG, "alice", "looking at the GPU", HANG.at_wall + 60)
    assert (message.event, message.severity) == ("acknowledge", "info")
    assert message.summary == "acknowledged by alice: looking at the GPU"
    assert acknowledge_message(HANG, "alice", "", 0.0).summary == "acknowledged by alice"
    assert "已由 alice 确认：looking at the GPU" in long_text(message, None, Style("zh"))


def test_only_channels_where_somebody_waits_for_it_hear_of_an_acknowledgement() -> None:
    kinds = ("email", "sms", "webhook", "chat", "pagerduty")
    channels = [ChannelSettings(name=kind, kind=kind, url="env:X") for kind in kinds]  # type: ignore[arg-type]
    assert told_of_acknowledgement(channels) == ("webhook", "chat", "pagerduty")


def test_the_configuration_names_it() -> None:
    assert escalation_of(EscalationSettings(channels=("a", "b"))) == Escalation(900.0, 900.0, 3, ("a", "b"))
