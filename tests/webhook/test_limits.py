"""What a limit keeps back is told later, and keeps nobody else back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sre.actions import facts
from sre.actions.types import Message
from sre.notify.alert_decide import Intake
from sre.notify.alert_later import Later
from sre.notify.alert_limits import INCIDENT_ACTION, NOTICE_ACTION
from sre.notify.alert_records import Verdict, Wanted
from sre.notify.alert_routes import Routes
from sre.settings.webhook import ActionSettings, RouteSettings, WebhookSettings
from tests.webhook.scenes import Desk, one


def limited(*, incidents: int | None = None, notices: int | None = None) -> WebhookSettings:
    actions = (ActionSettings(do="incident", max_per_hour=incidents), ActionSettings(do="notify", max_per_hour=notices))
    return WebhookSettings(routes=(RouteSettings(name="few", actions=actions),))


@contextmanager
def desk_of(folder: Path, chosen: WebhookSettings) -> Iterator[Desk]:
    made = Desk(folder, chosen)
    try:
        yield made
    finally:
        made.close()


def catch_up(desk: Desk, limit: int = 1000) -> bool:
    """As the webhook does; return whether anything was told."""
    before = len(desk.messages())
    for route, (rows, more) in desk.book.left_out(limit).items():
        may: list[bool] = []

        def tell(later: Later, route: str = route, rows=rows, more: int = more, may: list[bool] = may) -> None:  # type: ignore[no-untyped-def]
            may.append(later.may_tell(route, rows[:1]))
            if may[-1]:
                later.tell_left_out(route, rows, more)

        desk.later(
            Wanted(
                keys=frozenset(row.key for row in rows),
                intents=frozenset({(INCIDENT_ACTION, route), (NOTICE_ACTION, route)}),
                incidents=frozenset(row.incident_id for row in rows if row.incident_id),
            ),
            tell,
        )
    return len(desk.messages()) > before


def test_a_limit_holds_across_restarts_and_what_it_keeps_back_is_told_when_the_window_opens(tmp_path: Path) -> None:
    chosen = limited(incidents=2, notices=2)
    with desk_of(tmp_path, chosen) as desk:
        assert desk.take(one(node="n1")) == [Verdict.OPENED]
    with desk_of(tmp_path, chosen) as desk:
        assert desk.take(one(node="n2"), one(node="n3"), one("Other", node="n4", severity="ticket")) == [
            Verdict.OPENED, Verdict.OVER_LIMIT, Verdict.OVER_LIMIT,
        ]  # fmt: skip
        assert [m.event for m in desk.messages()] == ["open", "open", "blind"]
        assert "limit of 2 per hour" in desk.messages()[2].summary
        assert not catch_up(desk), "the window is shut"
    with desk_of(tmp_path, chosen) as desk:
        desk.clock.advance(3601)
        assert catch_up(desk)
        told = desk.messages()[-1]
        assert (told.event, told.severity, told.reason) == ("open", "page", "over_limit")
        assert "2 alerts were over the limit per hour" in told.summary
        assert dict(told.facts)[facts.RULE] == "VllmQueueGrowing, Other"
        assert not catch_up(desk), "once"
        assert desk.take(one(node="n5")) == [Verdict.OPENED]
        assert desk.take(one(node="n6")) == [Verdict.OVER_LIMIT], "telling late counts, too"
        # Its end is told with the last of them.
        desk.take(one(node="n3", status="resolved"))
        assert desk.events()[-1] != "resolve"
        desk.take(one("Other", node="n4", severity="ticket", status="resolved"))
        assert (desk.messages()[-1].event, desk.messages()[-1].incident_id) == ("resolve", told.incident_id)


def test_what_is_over_by_then_is_told_all_the_same_and_has_no_end_to_come(tmp_path: Path) -> None:
    with desk_of(tmp_path, limited(incidents=1, notices=1)) as desk:
        desk.take(one(node="n1"), one(node="n2"))
        desk.take(one(node="n2", status="resolved"))
        desk.clock.advance(3601)
        assert catch_up(desk)
        assert desk.messages()[-1].event == "blind"
        assert "all are over" in desk.messages()[-1].summary
        assert desk.open_incidents() == 1, "that of n1"


def test_incidents_that_nobody_was_told_of_are_named_and_end_together(tmp_path: Path) -> None:
    with desk_of(tmp_path, limited(notices=1)) as desk:
        assert desk.take(one(node="n1"), one(node="n2"), one(node="n3")) == [Verdict.OPENED] * 3
        assert desk.take(one(node="n2", gpu="1")) == [Verdict.JOINED], "what joins passes no limit"
        assert desk.events() == ["open", "blind"]
        desk.clock.advance(3601)
        assert catch_up(desk)
        told = desk.messages()[-1]
        untold = dict(told.facts)[facts.INCIDENTS].split(", ")
        assert len(untold) == 2
        assert "2 go on" in told.summary
        before = len(desk.messages())
        desk.take(one(node="n3", status="resolved"))
        desk.take(one(node="n2", status="resolved"))
        assert len(desk.messages()) == before, "one that joined n2 goes on"
        desk.take(one(node="n2", gpu="1", status="resolved"))
        assert [(m.event, m.incident_id) for m in desk.messages()[before:]] == [("resolve", told.incident_id)]
        desk.take(one(node="n1", status="resolved"))
        assert desk.open_incidents() == 0


def tickets_to_mail(message: Message) -> Sequence[str]:
    """As ``Policy.listeners`` where the one channel wants pages only, and the other tickets only."""
    begins = message.event in ("open", "escalate", "blind")
    return {"page": ["sms"], "ticket": ["mail"]}.get(message.severity, []) if begins else ["mail", "sms"]


def test_the_end_goes_to_who_was_told_with_others_and_to_nobody_else(tmp_path: Path) -> None:
    with desk_of(tmp_path, limited(notices=1)) as desk:
        desk.intake = Intake(desk.settings, Routes(desk.settings), tickets_to_mail)
        desk.take(one(node="n1", severity="ticket"), one(node="n2", severity="ticket"))
        desk.clock.advance(3601)
        assert catch_up(desk)
        told = desk.messages()[-1]
        desk.take(one(node="n2", severity="ticket", status="resolved"))
        assert desk.events("sms") == [], "it never heard of any of it"
        assert [(m.event, m.incident_id) for m in desk.messages()][-2:] == [
            ("open", told.incident_id),
            ("resolve", told.incident_id),
        ], "what a paging service opened under this name closes under it"


def test_what_got_worse_after_it_was_told_with_others_ends_by_itself_where_that_was_told(tmp_path: Path) -> None:
    with desk_of(tmp_path, limited(notices=1)) as desk:
        desk.intake = Intake(desk.settings, Routes(desk.settings), tickets_to_mail)
        desk.take(one(node="n1", severity="ticket"), one(node="n2", severity="ticket"))
        desk.clock.advance(3601)
        assert catch_up(desk)
        desk.take(one(node="n2", gpu="1", severity="page"))
        assert desk.events("sms") == ["escalate"]
        desk.take(
            one(node="n2", severity="ticket", status="resolved"),
            one(node="n2", gpu="1", severity="page", status="resolved"),
        )
        assert desk.events("sms") == ["escalate", "resolve"]
        assert desk.messages("sms")[1].incident_id == desk.messages("sms")[0].incident_id
        assert desk.events()[-2:] == ["open", "resolve"], "of what was told together"


def test_a_limit_of_nothing_is_told_within_the_hour_though_its_window_never_opens(tmp_path: Path) -> None:
    with desk_of(tmp_path, limited(incidents=0, notices=0)) as desk:
        assert desk.take(one(node="n1")) == [Verdict.OVER_LIMIT]
        desk.clock.advance(3500)
        assert not catch_up(desk)
        desk.clock.advance(101)
        assert catch_up(desk)


def test_what_waited_through_a_reboot_waits_no_longer(tmp_path: Path) -> None:
    """Whatever the wall clock says after it."""
    with desk_of(tmp_path, limited(incidents=0, notices=0)) as desk:
        desk.take(one(node="n1"))
        desk.store._boot_id = "another"
        desk.clock.jump_wall(-50 * 365 * 86400)
        assert catch_up(desk)


def test_more_than_one_message_stands_for_comes_with_the_next(tmp_path: Path) -> None:
    with desk_of(tmp_path, limited(incidents=0, notices=0)) as desk:
        desk.take(*(one(node=f"n{n}") for n in range(25)))
        desk.clock.advance(3601)
        for left in (15, 5, 0):
            assert catch_up(desk, 10)
            waits = dict(desk.messages()[-1].facts).get("more", "0 ")
            assert int(waits.split()[0]) == left
        assert not catch_up(desk, 10)


def test_one_route_keeps_no_other_back(tmp_path: Path) -> None:
    names = ("one", "two")
    routes = tuple(
        RouteSettings(name=name, match={"team": name}, actions=(ActionSettings(do="notify", max_per_hour=0),))
        for name in names
    )
    with desk_of(tmp_path, WebhookSettings(routes=routes)) as desk:
        desk.take(*(one(node=f"n{n}", team="one") for n in range(20)), one(node="x", team="two"))
        desk.clock.advance(3601)
        assert catch_up(desk, 5)
        assert {m.scope for m in desk.messages()[-2:]} == {"webhook route one", "webhook route two"}


def test_a_limit_that_is_gone_from_the_configuration_keeps_nothing_back(tmp_path: Path) -> None:
    with desk_of(tmp_path, limited(incidents=0, notices=0)) as desk:
        desk.take(one(node="n1"))
    with desk_of(tmp_path, WebhookSettings()) as desk:
        assert catch_up(desk)


STEP = st.tuples(st.sampled_from(["fire", "end", "wait", "catch up"]), st.integers(0, 5), st.integers(0, 2))


@pytest.mark.parametrize("chosen", [limited(incidents=1, notices=1), limited(notices=1), limited(incidents=0)])
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(STEP, min_size=1, max_size=15))
def test_whatever_fires_is_told_by_name_or_waits_to_be(
    tmp_path_factory: pytest.TempPathFactory, chosen: WebhookSettings, steps: list[tuple[str, int, int]]
) -> None:
    """Each firing is told: by its own incident, one that it joined, or a message about what was kept back."""
    with desk_of(tmp_path_factory.mktemp("any"), chosen) as desk:
        fired: set[str] = set()
        for what, node, start in steps:
            name = f"A{node}"
            if what == "fire":
                desk.take(one(name, node="n", starts=1_800_000_000.0 + start))
                fired.add(name)
            elif what == "end":
                desk.take(one(name, node="n", starts=1_800_000_000.0 + start, status="resolved"))
            elif what == "wait":
                desk.clock.advance(1300)
            else:
                catch_up(desk)
        desk.clock.advance(4000)
        while catch_up(desk, 2):
            pass
        assert not desk.book.left_out(10)
        told = " ".join(f"{m.reason} {dict(m.facts).get(facts.RULE, '')}" for m in desk.messages())
        known = {e.target for e in desk.journal() if e.reason in ("ended_before",)}
        for name in fired - known:
            assert name in told, (name, told)
