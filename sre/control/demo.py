"""
The demo's eyes and its verdict: what happened, when, and who says so.

No mark is a wish of ours. The fault comes from the chaos runner's evidence, the refusal from the client load, the
contexts from the disk, the mail and the SMS from the servers that received them, the restart from the supervisor, the
breaker's states from the guard's journal. All times are CLOCK_MONOTONIC, the same in every process of a boot.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sre.clock import Clock
from sre.signals.types import ProcessIdentity

POLL_SECONDS = 0.05
LOG_LAG_SECONDS = 1.0
"""The gateway writes a request into its log at once and again every second; the guard reads it every tick."""

MEDIAN_REFUSAL_SECONDS = 0.25
"""What "refused at once" means here."""


class Event(enum.Enum):
    """What the timeline shows, in the words it uses."""

    REQUESTED = "fault requested"
    EFFECTIVE = "fault in effect"
    DETECTED = "hang detected, breaker open"
    REFUSED = "first new request refused"
    CONTEXTS = "contexts of requests in flight saved"
    MAIL = "e-mail received"
    SMS = "SMS received"
    RESTART = "restart decided"
    RESTARTED = "engine restarted"
    HALF_OPEN = "half-open: canaries"
    RAMP = "traffic ramps up"
    ANSWERED = "first new request answered again"
    CLOSED = "closed: all traffic back"
    RESOLVED_MAIL = "resolved: e-mail received"
    RESOLVED_SMS = "resolved: SMS received"


@dataclass(frozen=True, slots=True)
class Mark:
    """One moment. ``source``: who saw it."""

    event: Event
    at: float
    source: str
    detail: str = ""


@dataclass(slots=True)
class Stream:
    """One request of the client load, as the client saw it. Times are monotonic seconds."""

    sent_at: float
    request_id: str | None = None
    """As the gateway named it; known when the answer has begun."""
    status: int | None = None
    first_token_at: float | None = None
    ended_at: float | None = None
    complete: bool = False
    """Ended with a valid finish_reason and [DONE]."""
    refusal: str | None = None
    """Value of x-sre-reason, when the gateway refused."""
    retry_after: str | None = None
    error_type: str | None = None
    """error.type of the JSON body of a refusal."""
    given_up: bool = False
    """The client itself ended it, at the end of the demo."""

    @property
    def refused(self) -> bool:
        return self.status == 503 and self.refusal is not None


@dataclass(frozen=True, slots=True)
class Received:
    """A message at its destination: an SMTP server or an HTTP endpoint."""

    at: float
    text: str


class DemoWorld(Protocol):
    """What the demo looks at. Every method returns quickly; what is not there yet is empty, not an error."""

    def streams(self) -> Sequence[Stream]:
        """Requests of the client load so far."""
        ...

    async def journal(self, after: int) -> Sequence[Mapping[str, Any]]:
        """Entries of the guard's journal with a sequence number above ``after``."""
        ...

    async def engine(self, name: str) -> tuple[ProcessIdentity | None, float | None]:
        """Process of the engine and when it became ready, as the supervisor knows it."""
        ...

    def contexts(self, incident_id: str) -> tuple[float, tuple[str, ...]] | None:
        """When the contexts of the incident were found on disk, and their request ids; None while they are not."""
        ...

    def mails(self) -> Sequence[Received]: ...
    def texts(self) -> Sequence[Received]: ...


@dataclass(frozen=True, slots=True)
class Budgets:
    """Promised times, in seconds after the fault took effect unless said otherwise."""

    refused: float = 5.0
    """Of the issue "hang ≤ 5 s with default settings"."""
    contexts_after_trip: float = 2.0
    notified: float = 10.0
    restarted: float = 45.0
    closed: float = 75.0
    resolved_after_closed: float = 10.0


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the verdict."""

    name: str
    measured: str
    wanted: str
    passed: bool


@dataclass(slots=True)
class Story:
    """Marks so far, each event once (a ramp step is an event each), in the order of their time."""

    on_mark: Callable[[Mark], None]
    marks: list[Mark] = field(default_factory=list)
    incident_id: str | None = None
    saved_ids: tuple[str, ...] = ()

    def add(self, mark: Mark) -> None:
        """Add ``mark`` unless its event is known already."""
        known = any(
            m.event is mark.event and (m.event is not Event.RAMP or m.detail == mark.detail) for m in self.marks
        )
        if not known:
            self.marks.append(mark)
            self.marks.sort(key=lambda m: m.at)
            self.on_mark(mark)

    def at(self, event: Event) -> float | None:
        """Time of the (first) mark of ``event``; None while there is none."""
        return next((mark.at for mark in self.marks if mark.event is event), None)


class Observer:
    """Turns what the world shows into marks."""

    def __init__(self, world: DemoWorld, story: Story, engine: str, ramp_percents: Sequence[int]) -> None:
        self._world, self._story, self._engine = world, story, engine
        self._ramp_percents = ramp_percents
        self._seq = 0
        self._before: ProcessIdentity | None = None

    async def baseline(self) -> None:
        """Remember what is there before the fault."""
        self._before, _ = await self._world.engine(self._engine)
        await self._read_journal(record=False)

    async def look(self) -> None:
        """One look at everything."""
        await self._read_journal(record=True)
        self._look_at_load()
        self._look_at_disk()
        self._look_at_inboxes()
        await self._look_at_engine()

    async def follow(self, clock: Clock, give_up_at: float) -> bool:
        """Look until the story is told or time is up; return whether it is told."""
        while not self.told:
            await self.look()
            if clock.monotonic() >= give_up_at:
                return self.told
            await clock.sleep(POLL_SECONDS)
        return True

    @property
    def told(self) -> bool:
        """Whether the last chapter was seen."""
        last = (Event.CLOSED, Event.ANSWERED, Event.RESOLVED_MAIL, Event.RESOLVED_SMS)
        return all(self._story.at(event) is not None for event in last)

    async def _read_journal(self, *, record: bool) -> None:
        for entry in await self._world.journal(self._seq):
            self._seq = max(self._seq, int(entry["seq"]))
            if record and entry["target"] == self._engine:
                self._take(entry)

    def _take(self, entry: Mapping[str, Any]) -> None:
        story, at = self._story, float(entry["at_monotonic"])
        data = entry.get("data") or {}
        if entry["kind"] == "transition":
            state = data.get("to")
            if state == "open":
                story.incident_id = story.incident_id or entry.get("incident_id")
                story.add(
                    Mark(Event.DETECTED, at, "guard journal", str(data.get("detail") or data.get("reason") or ""))
                )
            elif state == "half_open" and data.get("ramp_index") is None:
                story.add(Mark(Event.HALF_OPEN, at, "guard journal"))
            elif state == "half_open":
                percent = self._ramp_percents[int(data["ramp_index"])]
                story.add(Mark(Event.RAMP, at, "guard journal", f"{percent} %"))
            elif state == "closed":
                story.add(Mark(Event.CLOSED, at, "guard journal"))
        elif entry["kind"] == "intent" and entry.get("action") == "restart":
            story.add(Mark(Event.RESTART, at, "guard journal", str(entry.get("reason") or "")))

    def _look_at_load(self) -> None:
        story, effective = self._story, self._story.at(Event.EFFECTIVE)
        if effective is None:
            return
        streams = self._world.streams()
        refused = [s for s in streams if s.refused and s.ended_at is not None and s.sent_at >= effective]
        if refused:
            first = min(refused, key=lambda s: s.ended_at or 0.0)
            detail = f"503, x-sre-reason {first.refusal}, Retry-After {first.retry_after}"
            story.add(Mark(Event.REFUSED, first.ended_at or first.sent_at, "client load", detail))
        refused_at = story.at(Event.REFUSED)
        if refused_at is None:
            return
        answered = [s for s in streams if s.complete and s.ended_at is not None and s.sent_at > refused_at]
        if answered:
            first = min(answered, key=lambda s: s.ended_at or 0.0)
            story.add(Mark(Event.ANSWERED, first.ended_at or first.sent_at, "client load", "200, whole answer"))

    def _look_at_disk(self) -> None:
        story = self._story
        if story.incident_id is None:
            return
        found = self._world.contexts(story.incident_id)
        if found is not None and story.at(Event.CONTEXTS) is None:
            at, story.saved_ids = found
            story.add(Mark(Event.CONTEXTS, at, "incident folder", f"{len(story.saved_ids)} requests"))

    def _look_at_inboxes(self) -> None:
        requested = self._story.at(Event.REQUESTED)
        if requested is None:
            return
        for inbox, source, opened, resolved in (
            (self._world.mails(), "SMTP server", Event.MAIL, Event.RESOLVED_MAIL),
            (self._world.texts(), "HTTP endpoint", Event.SMS, Event.RESOLVED_SMS),
        ):
            for message in inbox:
                event = resolved if "resolve" in message.text.lower() else opened
                if message.at >= requested:
                    self._story.add(Mark(event, message.at, source, message.text))

    async def _look_at_engine(self) -> None:
        if self._story.at(Event.EFFECTIVE) is None:
            return
        identity, ready_at = await self._world.engine(self._engine)
        if identity is not None and ready_at is not None and identity != self._before and self._before is not None:
            detail = f"pid {self._before.pid} → {identity.pid}, ready"
            self._story.add(Mark(Event.RESTARTED, ready_at, "supervisor", detail))


@dataclass(frozen=True, slots=True)
class Cut:
    """What became of the requests that were open when refusing began."""

    open: int
    cut_by_trip: int
    """Ended without a whole answer between the trip and the restart: the trip must not do that."""
    ended_by_restart: int
    """Stalled on the hung engine and ended with it: nothing could save them."""


def open_at(streams: Sequence[Stream], sent_before: float, at: float) -> list[Stream]:
    """Admitted requests sent before ``sent_before`` that were still open at ``at``."""
    return [
        s for s in streams if s.sent_at < sent_before and not s.refused and (s.ended_at is None or s.ended_at >= at)
    ]


def count_cut(streams: Sequence[Stream], refused_at: float, restart_at: float | None) -> Cut:
    """Sort the requests that were open at ``refused_at`` by how they ended."""
    open_then = open_at(streams, refused_at, refused_at)
    ended = [s for s in open_then if s.ended_at is not None and not s.complete and not s.given_up]
    by_trip = [s for s in ended if restart_at is None or (s.ended_at or 0.0) < restart_at]
    return Cut(len(open_then), len(by_trip), len(ended) - len(by_trip))


def verdict(story: Story, streams: Sequence[Stream], budgets: Budgets) -> tuple[Check, ...]:
    """The lines of the table. What was not seen fails its line."""
    effective = story.at(Event.EFFECTIVE)
    if effective is None:
        return (Check("fault took effect", "not seen", "seen", passed=False),)
    refused, closed = story.at(Event.REFUSED), story.at(Event.CLOSED)

    def within(name: str, event: Event, since: float | None, limit: float) -> Check:
        at = story.at(event)
        if at is None or since is None:
            return Check(name, "not seen", f"≤ {limit:g} s", passed=False)
        return Check(name, f"{at - since:.2f} s", f"≤ {limit:g} s", passed=at - since <= limit)

    checks = [
        within("fault → first new request refused", Event.REFUSED, effective, budgets.refused),
        within("trip → contexts on disk", Event.CONTEXTS, story.at(Event.DETECTED), budgets.contexts_after_trip),
        within("fault → e-mail at the SMTP server", Event.MAIL, effective, budgets.notified),
        within("fault → SMS at the HTTP endpoint", Event.SMS, effective, budgets.notified),
        within("fault → engine restarted and ready", Event.RESTARTED, effective, budgets.restarted),
        within("fault → all traffic back", Event.CLOSED, effective, budgets.closed),
        within("closed → resolved e-mail", Event.RESOLVED_MAIL, closed, budgets.resolved_after_closed),
        within("closed → resolved SMS", Event.RESOLVED_SMS, closed, budgets.resolved_after_closed),
    ]
    if refused is not None:
        checks += _about_requests(story, streams, refused)
    return tuple(checks)


def _about_requests(story: Story, streams: Sequence[Stream], refused_at: float) -> list[Check]:
    cut = count_cut(streams, refused_at, story.at(Event.RESTART))
    refusals = [s for s in streams if s.refused]
    clear = [s for s in refusals if s.retry_after and s.error_type]
    took = sorted((s.ended_at or s.sent_at) - s.sent_at for s in refusals)
    # The median: on a busy machine a single answer waits for the client's own turn on the processor.
    typical, slowest = (took[len(took) // 2], took[-1]) if took else (0.0, 0.0)
    detected = story.at(Event.DETECTED) or refused_at
    # The gateway's log reaches the guard within a second: what was sent later than that may not be in the folder.
    open_then = open_at(streams, detected - LOG_LAG_SECONDS, detected)
    known = {s.request_id for s in open_then if s.request_id is not None}
    missing = known - set(story.saved_ids)
    saved = len(story.saved_ids)
    return [
        Check("running streams cut by the trip", f"{cut.cut_by_trip} of {cut.open}", "0", passed=not cut.cut_by_trip),
        Check(
            "contexts of requests in flight saved",
            f"{saved}, {len(missing)} missing",
            f"≥ {len(open_then)}, 0 missing",
            passed=not missing and saved >= len(open_then) > 0,
        ),
        Check(
            "refusals with reason, Retry-After, JSON",
            f"{len(clear)} of {len(refusals)}",
            "all",
            passed=bool(refusals) and len(clear) == len(refusals),
        ),
        Check(
            "time of a refusal, median",
            f"{typical * 1000:.0f} ms (slowest {slowest * 1000:.0f})",
            f"≤ {MEDIAN_REFUSAL_SECONDS * 1000:.0f} ms",
            passed=bool(took) and typical <= MEDIAN_REFUSAL_SECONDS,
        ),
    ]


async def until(event: asyncio.Event, clock: Clock, seconds: float) -> bool:
    """Wait at most ``seconds``; return whether ``event`` was set meanwhile."""
    deadline = clock.monotonic() + seconds
    while not event.is_set() and clock.monotonic() < deadline:
        await clock.sleep(min(POLL_SECONDS, max(0.0, deadline - clock.monotonic())))
    return event.is_set()
