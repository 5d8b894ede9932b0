"""What becomes of a message: decisions, each with its reason; and a channel's life under any traffic."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sre.actions.records import OutboxRow, OutboxState
from sre.actions.types import Message
from sre.control.notify_proof import LONGEST_SECONDS
from sre.notify.delivery import Verdict
from sre.notify.policy import (
    NO_STORMS,
    TEST_MAX_AGE_SECONDS,
    Because,
    Dispatch,
    Follow,
    Next,
    Plan,
    Policy,
    Storm,
    Take,
    Traffic,
    Why,
    after_try,
    is_down,
    is_page,
    is_urgent,
    max_age_of,
    plan,
    policy_of,
    rank_of,
)
from sre.settings.notify import ChannelSettings, NotifySettings, StormSettings
from tests.store.samples import message

STORM = Storm(3, 100.0)


@pytest.mark.parametrize(
    ("traffic", "wanted"),
    [
        (Traffic(), Plan(Take.NOTHING, Why.NOTHING_WAITS)),
        (Traffic(pages=1), Plan(Take.PAGE, Why.WITHIN_LIMIT)),
        (Traffic(pages=1, others=2), Plan(Take.PAGE, Why.WITHIN_LIMIT)),
        (Traffic(others=1), Plan(Take.OTHER, Why.WITHIN_LIMIT)),
        (Traffic(others=1, begun=2), Plan(Take.OTHER, Why.WITHIN_LIMIT)),
        (Traffic(others=1, begun=3), Plan(Take.LAST, Why.IN_PLACE_OF_DIGEST)),
        (Traffic(others=2, begun=3), Plan(Take.DIGEST, Why.STORM)),
        (Traffic(others=2, begun=3, since_slot_seconds=9.9), Plan(Take.NOTHING, Why.NEXT_DIGEST_LATER)),
        (Traffic(others=2, begun=3, since_slot_seconds=10), Plan(Take.DIGEST, Why.STORM)),
        # Whatever others did, a page goes at once until there are too many pages.
        (Traffic(pages=1, others=2, begun=9, pages_begun=2), Plan(Take.PAGE, Why.WITHIN_LIMIT)),
        (Traffic(pages=1, begun=9, pages_begun=3), Plan(Take.LAST, Why.IN_PLACE_OF_DIGEST)),
        (Traffic(pages=2, begun=9, pages_begun=3), Plan(Take.DIGEST, Why.STORM)),
        # A channel so slow that it never comes to its limit.
        (Traffic(pages=4, pages_waited_seconds=10.1), Plan(Take.DIGEST, Why.TOO_SLOW)),
        (Traffic(pages=3, pages_waited_seconds=99.0), Plan(Take.PAGE, Why.WITHIN_LIMIT)),
        (Traffic(pages=4, pages_waited_seconds=10.0), Plan(Take.PAGE, Why.WITHIN_LIMIT)),
        (Traffic(pages=4, pages_waited_seconds=99.0, since_slot_seconds=5), Plan(Take.PAGE, Why.WITHIN_LIMIT)),
        (Traffic(pages=1, others=4, others_waited_seconds=99.0), Plan(Take.PAGE, Why.WITHIN_LIMIT)),
        (Traffic(others=4, others_waited_seconds=99.0), Plan(Take.DIGEST, Why.TOO_SLOW)),
        (Traffic(others=4, others_waited_seconds=99.0, since_slot_seconds=5), Plan(Take.OTHER, Why.WITHIN_LIMIT)),
        (Traffic(others=3, from_quiet_hours=3), Plan(Take.OTHER, Why.WITHIN_LIMIT)),
        (Traffic(others=4, from_quiet_hours=4), Plan(Take.DIGEST, Why.QUIET_HOURS_OVER)),
        (Traffic(pages=1, others=4, from_quiet_hours=4), Plan(Take.PAGE, Why.WITHIN_LIMIT)),
    ],
)
def test_what_a_channel_is_sent_next(traffic: Traffic, wanted: Plan) -> None:
    assert plan(traffic, STORM) == wanted


def test_without_a_limit_only_the_morning_is_digested() -> None:
    assert plan(Traffic(others=2, begun=10**6), NO_STORMS).take is Take.OTHER
    assert plan(Traffic(others=4, from_quiet_hours=4), NO_STORMS) == Plan(Take.DIGEST, Why.QUIET_HOURS_OVER)
    assert NO_STORMS.digest_seconds == 60


@dataclass
class Channel:
    """A channel that delivers at once, driven by ``plan``; what the outbox does, in a few lines."""

    storm: Storm
    now: float = 0.0
    waiting: deque[tuple[float, bool]] = field(default_factory=deque)  # (since, page)
    begun: list[tuple[float, bool]] = field(default_factory=list)
    slot: float | None = None
    waited: list[tuple[float, bool]] = field(default_factory=list)

    def look(self) -> bool:
        recent = [(at, page) for at, page in self.begun if at > self.now - self.storm.window_seconds]
        pages = [one for one in self.waiting if one[1]]
        others = [one for one in self.waiting if not one[1]]
        since = None if self.slot is None else self.now - self.slot
        found = plan(
            Traffic(
                begun=len(recent), pages_begun=sum(page for _, page in recent), pages=min(2, len(pages)),
                others=min(2, len(others)), since_slot_seconds=since,
            ),
            self.storm,
        )  # fmt: skip
        told = {
            Take.NOTHING: [], Take.PAGE: pages[:1], Take.OTHER: others[:1], Take.LAST: list(self.waiting),
            Take.DIGEST: list(self.waiting),
        }[found.take]  # fmt: skip
        if not told:
            return False
        if found.take in (Take.LAST, Take.DIGEST):
            assert (found.take is Take.LAST) is (len(told) == 1)
            self.slot = self.now
        for one in told:
            self.waiting.remove(one)
            self.waited.append((self.now - one[0], one[1]))
        self.begun.append((self.now, any(page for _, page in told)))
        return True


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.1, 1.0, 7.0, 30.0, 200.0]), st.integers(0, 60), st.booleans())),
    st.integers(1, 5),
)
def test_under_any_traffic_nothing_is_lost_nothing_is_late_and_no_one_is_flooded(
    arrivals: list[tuple[float, int, bool]], most: int
) -> None:
    channel = Channel(Storm(most, 100.0))
    told = 0
    for pause, count, page in arrivals:
        until = channel.now + pause
        while channel.now < until:
            channel.now = min(until, channel.now + 1.0)
            while channel.look():
                pass
        channel.waiting.extend([(channel.now, page)] * count)
        told += count
        while channel.look():
            pass
    for _ in range(30):
        channel.now += 1.0
        while channel.look():
            pass
    assert not channel.waiting
    assert len(channel.waited) == told
    # A tenth of the window, and the second between two looks.
    assert max((waited for waited, _ in channel.waited), default=0.0) <= channel.storm.digest_seconds + 1.0
    for at, _ in channel.begun:
        within = [page for begun, page in channel.begun if at <= begun < at + 100.0]
        # Each kind up to its limit, and a digest a tenth of the window.
        assert len(within) <= 2 * most + 11


POLICY = Policy(fallback_after_attempts=3, max_attempts=5)


def follow(
    verdict: Verdict,
    attempts: int = 1,
    row: int = 1,
    wait: float | None = None,
    old: bool = False,
    page: bool = False,
    policy: Policy = POLICY,
    unknown: int = 0,
) -> Follow:
    return after_try(
        verdict, policy, attempts=attempts, failures_in_row=row, page=page, retry_after_seconds=wait, too_old=old,
        unknown_outcomes=unknown,
    )  # fmt: skip


def test_what_follows_a_try() -> None:
    assert follow(Verdict.DELIVERED, attempts=9, row=0) == Follow(Next.SENT, Because.DELIVERED)
    assert follow(Verdict.FAILED) == follow(Verdict.UNKNOWN, 2, 2) == Follow(Next.REPEAT, Because.MAY_PASS)
    again = Follow(Next.REPEAT, Because.FAILS_AGAIN, fallback=True)
    assert follow(Verdict.FAILED, attempts=3, row=1) == again
    assert follow(Verdict.UNKNOWN, attempts=4, row=2) == again
    assert follow(Verdict.FAILED, attempts=5) == Follow(Next.GIVE_UP, Because.TRIES_SPENT, fallback=True)


@pytest.mark.parametrize("verdict", [Verdict.FAILED, Verdict.UNKNOWN])
def test_no_number_of_tries_ends_a_page_only_its_age_does(verdict: Verdict) -> None:
    """A mail server that is down for two hours is asked some thirty times."""
    for attempts in (POLICY.max_attempts, 30, 300):
        assert attempts is not None
        assert follow(verdict, attempts, page=True) == Follow(Next.REPEAT, Because.FAILS_AGAIN, fallback=True)
    assert follow(Verdict.IMPOSSIBLE, 300, page=True, old=True) == Follow(Next.GIVE_UP, Because.TOO_OLD)


def test_without_a_limit_of_tries_a_ticket_lasts_as_long_as_a_page() -> None:
    assert follow(Verdict.FAILED, 300, policy=policy_of(NotifySettings())).next is Next.REPEAT


def test_the_end_of_a_page_is_tried_as_long_as_the_page() -> None:
    page, ticket = message(), replace(message(), severity="ticket")
    end = replace(message(event="resolve"), severity="info")
    assert is_page(row_of(page, "page"))
    assert is_page(row_of(end, "info", opened=page))
    assert is_page(row_of(end, "page")), "also where the page itself went out before, by itself"
    assert not is_page(row_of(end, "ticket", opened=ticket))
    assert not is_page(row_of(ticket, "ticket"))


def test_an_end_or_an_acknowledgement_is_not_worth_calling_somebody_again_and_again() -> None:
    page = message()
    assert is_urgent(row_of(page, "page"))
    assert is_urgent(row_of(replace(page, event="blind"), "page")), "a notice has nobody else to tell it"
    for event in ("resolve", "acknowledge"):
        assert not is_urgent(row_of(replace(page, event=event, severity="info"), "page")), event
    given_up = after_try(
        Verdict.UNKNOWN, POLICY, attempts=3, failures_in_row=3, page=True, urgent=False, unknown_outcomes=3
    )
    assert given_up == Follow(Next.GIVE_UP, Because.OUTCOME_UNKNOWN, fallback=True)


def row_of(told: Message, severity: str, opened: Message | None = None) -> OutboxRow:
    return OutboxRow(
        id=1, message=told, opened=opened, channel="mail", level=0, state=OutboxState.SENDING, attempts=1,
        due_in_seconds=0.0, last_error=None, created_wall=0.0, age_seconds=0.0, sent_wall=None, severity=severity,
    )  # fmt: skip


def test_what_may_have_arrived_a_few_times_ends_for_a_ticket_and_gets_rare_for_a_page() -> None:
    policy = Policy(max_unknown_outcomes=2)
    assert follow(Verdict.UNKNOWN, unknown=1, policy=policy).because is Because.MAY_PASS
    given_up = Follow(Next.GIVE_UP, Because.OUTCOME_UNKNOWN, fallback=True)
    assert follow(Verdict.UNKNOWN, unknown=2, policy=policy) == given_up
    waits = [follow(Verdict.UNKNOWN, unknown=n, page=True, policy=policy).wait_seconds for n in (2, 3, 4)]
    assert waits == [300, 600, 1200]
    day = [follow(Verdict.UNKNOWN, unknown=n, page=True, policy=Policy()).wait_seconds for n in range(1, 12)]
    assert sum(day[:10]) < 86400 <= sum(day), "eleven times in a day, and not three hundred times"
    assert follow(Verdict.UNKNOWN, unknown=10**6, page=True, policy=policy).next is Next.REPEAT
    assert follow(Verdict.FAILED, unknown=9, policy=policy).because is Because.MAY_PASS, "it certainly did not arrive"


def test_a_test_is_not_told_when_nobody_waits_for_it_any_more() -> None:
    test, policy = replace(message(), event="test"), policy_of(NotifySettings())
    assert max_age_of(message(), policy) == 86400
    assert max_age_of(test, policy) == TEST_MAX_AGE_SECONDS >= LONGEST_SECONDS
    assert max_age_of(test, policy_of(NotifySettings(max_age_seconds=60))) == 60


def test_what_is_refused_for_good_goes_to_the_fallback_at_once() -> None:
    assert follow(Verdict.REJECTED) == Follow(Next.GIVE_UP, Because.REFUSED_FOR_GOOD, fallback=True)


@pytest.mark.parametrize("verdict", [Verdict.REFUSED_NOW, Verdict.IMPOSSIBLE])
def test_a_refusal_that_may_pass_goes_to_the_fallback_at_once_and_is_repeated_until_it_is_too_old(
    verdict: Verdict,
) -> None:
    for attempts in (1, 5, 300):
        assert follow(verdict, attempts) == Follow(Next.REPEAT, Because.REFUSED_NOW, fallback=True)
    assert follow(Verdict.IMPOSSIBLE, old=True).next is Next.GIVE_UP


def test_what_waits_behind_a_channel_that_is_down_does_not_wait_for_failures_of_its_own() -> None:
    assert follow(Verdict.FAILED, attempts=1, row=3) == Follow(Next.REPEAT, Because.CHANNEL_DOWN, fallback=True)
    assert [is_down(row, POLICY) for row in (0, 2, 3)] == [False, False, True]


def test_a_provider_that_asks_for_a_long_wait_does_not_hold_the_page() -> None:
    assert follow(Verdict.FAILED, wait=300.0).because is Because.MAY_PASS
    assert follow(Verdict.FAILED, wait=301.0) == Follow(Next.REPEAT, Because.TOLD_TO_WAIT_LONG, fallback=True)


def test_what_is_too_old_is_told_to_nobody() -> None:
    assert follow(Verdict.IMPOSSIBLE, old=True) == Follow(Next.GIVE_UP, Because.TOO_OLD)


@given(st.sampled_from(Verdict), st.integers(1, 50), st.integers(0, 50), st.none() | st.floats(0, 1e6), st.booleans())
def test_a_message_is_sent_repeated_or_shown_as_given_up_and_never_forgotten(
    verdict: Verdict, attempts: int, row: int, wait: float | None, old: bool
) -> None:
    found = follow(verdict, attempts, row, wait, old)
    assert (found.next is Next.SENT) is (verdict is Verdict.DELIVERED)
    if found.next is Next.GIVE_UP and found.because is not Because.TOO_OLD:
        assert found.fallback
    if found.next is Next.REPEAT:
        assert attempts < 5 or found.because is Because.REFUSED_NOW


def test_an_unknown_severity_is_as_urgent_as_a_ticket() -> None:
    assert [rank_of(name) for name in ("page", "critical", "ticket", "info")] == [0, 1, 1, 2]


def test_the_policy_is_as_the_configuration_says() -> None:
    channels = (
        ChannelSettings(name="a", kind="sms", url="env:A", fallback="b"),
        ChannelSettings(name="b", kind="email", url="env:B"),
    )
    found = policy_of(NotifySettings(channels=channels, storm=StormSettings(max_messages=7, window_seconds=50)))
    assert found.fallbacks == {"a": "b"}
    assert found.dispatch == Dispatch(Storm(7, 50.0), max_age_seconds=86400.0)
    assert policy_of(NotifySettings(storm=None)).dispatch == Dispatch(NO_STORMS, max_age_seconds=86400.0)


def test_random_orders_of_a_storm_leave_no_page_behind_tickets() -> None:
    """Tickets without end; the page that comes is the next message."""
    rng = random.Random(5)
    channel = Channel(Storm(3, 100.0))
    for _ in range(200):
        channel.waiting.extend([(channel.now, False)] * rng.randrange(5))
        if rng.random() < 0.02:
            channel.waiting.append((channel.now, True))
        while channel.look():
            pass
        channel.now += 1.0
    pages = [waited for waited, page in channel.waited if page]
    assert pages
    assert max(pages) == 0.0
