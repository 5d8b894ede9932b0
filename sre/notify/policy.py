"""
What becomes of a message and when: (what is seen, policy) → decision with a named reason. Pure; the outbox and the
sender carry it out.

``plan`` chooses what a channel is sent next: a message, one digest of many, or nothing yet. ``after_try`` says what
follows a try. ``quiet_ranks`` says what waits for the morning. Escalation is in ``sre.notify.escalation``.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from sre.actions.records import OutboxRow
from sre.actions.types import Message
from sre.notify.escalation import Escalation, escalation_of
from sre.notify.outcomes import Verdict
from sre.notify.quiet_hours import QuietHours, quiet_hours_of
from sre.settings.notify import NotifySettings

RANKS: Mapping[str, int] = {"page": 0, "ticket": 1, "info": 2}
"""What is sent first has the lowest."""
NAMES: Mapping[int, str] = {rank: name for name, rank in RANKS.items()}
PAGE_RANK = 0
ALL_RANKS = tuple(RANKS.values())

TEST_MAX_AGE_SECONDS = 900.0
"""The longest that ``sre notify test`` waits: a test that arrives later, when nobody thinks of it, is a false page."""

DIGEST_SHARE = 0.1
"""Of a storm's window: so often at most one digest goes out."""
CALM_DIGEST_SECONDS = 60.0
"""The same where storms are not limited."""
SELDOM_SECONDS = 300.0
"""
A page that may have arrived ``max_unknown_outcomes`` times is sent again after this long, then after twice as long, and
so on. It may also never have arrived (a server that takes connections and hangs), so it is not given up; and who gets
it each time, from a provider that answers too late, is called eleven times in a day and not every five minutes. No more
than the back-off's usual end at first: a server that hung for ten minutes costs a page no half hour.
"""
MANY_IN_THE_MORNING = 3
"""More messages than this that waited for the end of quiet hours come as one."""


def rank_of(severity: str) -> int:
    """Return how urgent a severity is; one that we do not know is as urgent as a ticket."""
    return RANKS.get(severity, RANKS["ticket"])


@dataclass(frozen=True, slots=True)
class Storm:
    """So many new messages a channel gets in a window; the rest is digested."""

    max_messages: float
    window_seconds: float

    @property
    def digest_seconds(self) -> float:
        """A digest goes out at most once in this time."""
        return self.window_seconds * DIGEST_SHARE if math.isfinite(self.window_seconds) else CALM_DIGEST_SECONDS


NO_STORMS = Storm(math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """What decides which message a channel is sent next."""

    storm: Storm = NO_STORMS
    quiet_hours: QuietHours | None = None
    max_age_seconds: float = math.inf
    """What is older is not sent."""


@dataclass(frozen=True, slots=True)
class Policy:
    """All of it, as the configuration sets it."""

    dispatch: Dispatch = Dispatch()
    escalation: Escalation | None = None
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    """Channel → the one that takes over what it cannot deliver."""
    fallback_after_attempts: int = 3
    max_attempts: int | None = None
    """Of what is no page; None: until it is too old."""
    max_backoff_seconds: float = 300.0
    max_unknown_outcomes: int = 3
    """Of one message; see ``SELDOM_SECONDS``."""


def policy_of(settings: NotifySettings) -> Policy:
    """Return the policy that ``settings`` set."""
    storm, hours = settings.storm, settings.quiet_hours
    return Policy(
        dispatch=Dispatch(
            NO_STORMS if storm is None else Storm(storm.max_messages, storm.window_seconds),
            None if hours is None else quiet_hours_of(hours),
            settings.max_age_seconds,
        ),
        escalation=None if settings.escalation is None else escalation_of(settings.escalation),
        fallbacks={c.name: c.fallback for c in settings.channels if c.fallback is not None},
        fallback_after_attempts=settings.fallback_after_attempts,
        max_attempts=settings.max_attempts,
        max_backoff_seconds=settings.max_backoff_seconds,
        max_unknown_outcomes=settings.max_unknown_outcomes,
    )


def is_page(row: OutboxRow) -> bool:
    """Whether ``row`` is a page, or ends one: of an end, the severity of the row is that of its incident."""
    known = (row.severity, row.message.severity, None if row.opened is None else row.opened.severity)
    return PAGE_RANK in (rank_of(severity) for severity in known if severity is not None)


def is_urgent(row: OutboxRow) -> bool:
    """
    Whether ``row`` is worth the risk of calling somebody once more: a page is, but not that it ended, or that somebody
    has it.
    """
    return is_page(row) and row.message.event not in ("resolve", "acknowledge")


def max_age_of(message: Message, policy: Policy) -> float:
    """Return the seconds after which ``message`` is not sent any more."""
    longest = policy.dispatch.max_age_seconds
    return min(longest, TEST_MAX_AGE_SECONDS) if message.event == "test" else longest


def too_old(max_age_seconds: float) -> str:
    """Return why a message was not sent."""
    return f"not sent: older than {max_age_seconds:g} s"


def quiet_ranks(hours: QuietHours | None, wall: float) -> frozenset[int]:
    """Return the ranks that wait now. A page never does, whatever the hours say."""
    if hours is None or hours.until(wall) is None:
        return frozenset()
    return frozenset(rank_of(severity) for severity in hours.severities) - {PAGE_RANK}


# ---- what a channel is sent next


@dataclass(frozen=True, slots=True)
class Traffic:
    """
    One channel at one moment. A message is new until its first try.

    Not counted is what quiet hours hold back, and the end of what the channel was told by itself: that goes out by
    itself, and there is no more of it than beginnings. Those that wait are counted up to one more than the limit (or up
    to a few, if that is less): more does not matter.
    """

    begun: int = 0
    """New messages, and digests, begun within the window."""
    pages_begun: int = 0
    pages: int = 0
    others: int = 0
    """New ones that are no pages."""
    from_quiet_hours: int = 0
    """Of the others: those that waited for the end of quiet hours."""
    pages_waited_seconds: float = 0.0
    """So long the page waits that waits longest; ``others_waited_seconds`` is the same of the others."""
    others_waited_seconds: float = 0.0
    since_slot_seconds: float | None = None
    """Since the last digest (or what went out in its place) was begun; None: not within the window."""


class Take(enum.Enum):
    """What of the new messages is begun now."""

    NOTHING = "nothing"
    PAGE = "page"  # the oldest page
    OTHER = "other"  # the most urgent and oldest that is no page
    LAST = "last"  # the only one that waits
    DIGEST = "digest"  # all that wait, as one


class Why(enum.Enum):
    """Reason of a plan."""

    NOTHING_WAITS = "nothing_waits"
    WITHIN_LIMIT = "within_limit"
    IN_PLACE_OF_DIGEST = "in_place_of_digest"  # over the limit, and a digest of one would say less
    STORM = "storm"
    TOO_SLOW = "too_slow"  # one by one they would all be late
    QUIET_HOURS_OVER = "quiet_hours_over"
    NEXT_DIGEST_LATER = "next_digest_later"


@dataclass(frozen=True, slots=True)
class Plan:
    take: Take
    why: Why


def plan(traffic: Traffic, storm: Storm) -> Plan:
    """
    Return what is begun now.

    Pages first, within a limit of their own; then the others within theirs; what is over a limit goes out together, at
    most once in ``storm.digest_seconds``: so nothing waits longer than that on a channel that works. On one that is so
    slow that more than the limit wait longer than that, they go out together, too.
    """
    waiting = traffic.pages + traffic.others
    if not waiting:
        return Plan(Take.NOTHING, Why.NOTHING_WAITS)
    slot_free = traffic.since_slot_seconds is None or traffic.since_slot_seconds >= storm.digest_seconds
    if slot_free and _too_slow(traffic.pages, traffic.pages_waited_seconds, storm):
        return Plan(Take.DIGEST, Why.TOO_SLOW)
    if traffic.pages and traffic.pages_begun < storm.max_messages:
        return Plan(Take.PAGE, Why.WITHIN_LIMIT)
    if slot_free and _too_slow(traffic.others, traffic.others_waited_seconds, storm):
        return Plan(Take.DIGEST, Why.TOO_SLOW)
    morning = traffic.from_quiet_hours > MANY_IN_THE_MORNING
    if traffic.others and not morning and traffic.begun < storm.max_messages:
        return Plan(Take.OTHER, Why.WITHIN_LIMIT)
    if not slot_free:
        return Plan(Take.NOTHING, Why.NEXT_DIGEST_LATER)
    if waiting == 1:
        return Plan(Take.LAST, Why.IN_PLACE_OF_DIGEST)
    return Plan(Take.DIGEST, Why.QUIET_HOURS_OVER if morning else Why.STORM)


def _too_slow(waiting: int, waited_seconds: float, storm: Storm) -> bool:
    return waiting > storm.max_messages and waited_seconds > storm.digest_seconds


# ---- what follows a try


class Next(enum.Enum):
    """What becomes of the message on its own channel."""

    SENT = "sent"
    REPEAT = "repeat"
    GIVE_UP = "give_up"  # dead: a person has to look


class Because(enum.Enum):
    """Reason of what follows a try."""

    DELIVERED = "delivered"
    MAY_PASS = "may_pass"
    FAILS_AGAIN = "fails_again"  # the fallback is told, and the channel is tried on
    CHANNEL_DOWN = "channel_down"  # nothing gets through there: no message waits for its own failures
    TOLD_TO_WAIT_LONG = "told_to_wait_long"
    REFUSED_FOR_GOOD = "refused_for_good"
    REFUSED_NOW = "refused_now"  # the fallback is told, and it is repeated until it is too old
    OUTCOME_UNKNOWN = "outcome_unknown"  # it may have arrived so often that sending it again does more harm than good
    TRIES_SPENT = "tries_spent"
    TOO_OLD = "too_old"


@dataclass(frozen=True, slots=True)
class Follow:
    next: Next
    because: Because
    fallback: bool = False
    """Whether the channel's fallback is told, should there be one. Repeating it does no harm."""
    wait_seconds: float = 0.0
    """It is not repeated sooner than this."""


def is_down(failures_in_row: int, policy: Policy) -> bool:
    """Whether a channel with so many failed tries in a row is down: what waits for it goes to its fallback, too."""
    return failures_in_row >= policy.fallback_after_attempts


def seldom_seconds(unknown_outcomes: int, policy: Policy) -> float:
    """Return how long to wait before what may have arrived so often is sent again; 0 where it is not too often yet."""
    beyond = unknown_outcomes - policy.max_unknown_outcomes
    return 0.0 if beyond < 0 else SELDOM_SECONDS * 2.0 ** min(beyond, 60)


def after_try(
    verdict: Verdict,
    policy: Policy,
    *,
    attempts: int,
    failures_in_row: int,
    page: bool,
    urgent: bool | None = None,
    unknown_outcomes: int = 0,
    retry_after_seconds: float | None = None,
    too_old: bool = False,
) -> Follow:
    """
    Return what follows a try.

    Args:
        attempts: Tries of this message, this one included.
        failures_in_row: Tries on this channel that did not deliver since one last did, this one included.
        page: No number of tries ends it: a mail server may be down for hours, and then somebody is to hear of it.
        urgent: It is sent again, however often it may have arrived; None: as ``page``.
        unknown_outcomes: Tries of this message that may have arrived, this one included.
        retry_after_seconds: What the provider asks to wait.
        too_old: It was not tried: it is older than anybody wants to hear.
    """
    if verdict is Verdict.DELIVERED:
        return Follow(Next.SENT, Because.DELIVERED)
    if too_old:
        return Follow(Next.GIVE_UP, Because.TOO_OLD)
    if verdict is Verdict.REJECTED:
        return Follow(Next.GIVE_UP, Because.REFUSED_FOR_GOOD, fallback=True)
    if verdict in (Verdict.REFUSED_NOW, Verdict.IMPOSSIBLE):
        # However often: what stands in its way may take a person hours to clear, and then it is to arrive.
        return Follow(Next.REPEAT, Because.REFUSED_NOW, fallback=True)
    if verdict is Verdict.UNKNOWN and unknown_outcomes >= policy.max_unknown_outcomes:
        if not (page if urgent is None else urgent):
            return Follow(Next.GIVE_UP, Because.OUTCOME_UNKNOWN, fallback=True)
        wait = seldom_seconds(unknown_outcomes, policy)
        return Follow(Next.REPEAT, Because.OUTCOME_UNKNOWN, fallback=True, wait_seconds=wait)
    if not page and policy.max_attempts is not None and attempts >= policy.max_attempts:
        return Follow(Next.GIVE_UP, Because.TRIES_SPENT, fallback=True)
    if attempts >= policy.fallback_after_attempts:
        return Follow(Next.REPEAT, Because.FAILS_AGAIN, fallback=True)
    if is_down(failures_in_row, policy):
        return Follow(Next.REPEAT, Because.CHANNEL_DOWN, fallback=True)
    if retry_after_seconds is not None and retry_after_seconds > policy.max_backoff_seconds:
        return Follow(Next.REPEAT, Because.TOLD_TO_WAIT_LONG, fallback=True)
    return Follow(Next.REPEAT, Because.MAY_PASS)
