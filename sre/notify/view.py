"""What a message says, in one language and safe to show: the values every form and every template is made of."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sre.actions import facts
from sre.actions.types import Message
from sre.notify.languages import WORDS, Words, said
from sre.notify.links import Links
from sre.redaction import redact
from sre.settings.notify import Language

LONGEST_VALUE = 1_000
"""Characters of one value; an alert's annotation may be a whole page."""
MOST_FACTS = 40
MOST_TIMELINE = 30

PRIVATE_FACTS = frozenset({"prompt", "messages", "completion", "input", "output", "request body", "response body"})
"""A fact of such a name is never shown: what users of the model write or get is not for a mailbox."""


@dataclass(frozen=True, slots=True)
class View:
    """All texts are one line without control characters, secrets hidden; "" is nothing to say."""

    words: Words
    severity: str
    event: str
    scope: str
    reason: str
    rule: str
    """The rule or alert, or else the reason."""
    value: str
    id: str
    summary: str
    at: str
    since: str
    seen: str
    done: str
    next: str
    runbook_url: str
    """A web address, or the command that shows the runbook."""
    dashboard_url: str
    timeline: tuple[str, ...]
    details: tuple[tuple[str, str], ...]
    """Further facts: name and value."""
    told_late: str
    """Says that the beginning was never told; "" where it was."""
    late_summary: str
    began: str
    """The same for an SMS: ``began 08:00:00``."""
    more: str
    """The command that shows more."""


def view(message: Message, opened: Message | None, language: Language, links: Links) -> View:
    """
    Return what ``message`` says.

    Args:
        opened: The "open" message that was never sent and is told here too.
    """
    words = WORDS[language]
    known = {name: clean(value) for name, value in message.facts if name in facts.SHOWN_BY_NAME}
    reason = clean(message.reason)
    rule = known.get(facts.RULE) or words.reasons.get(reason, reason)
    test = message.event == "test"
    done = said(words, known.get(facts.DONE, ""))
    if not done and message.event in ("open", "escalate"):
        done = words.nothing_done
    # What is told once an hour, digests and canaries belong to no incident.
    look = "incident show" if message.incident_id.startswith("inc-") else "notify outbox list --incident"
    command = f"sre {look} {clean(message.incident_id)}"
    return View(
        words=words,
        severity=words.severities.get(message.severity, clean(message.severity)),
        event=words.events.get(message.event, clean(message.event).upper()),
        scope=said(words, clean(message.scope)),
        reason=words.reasons.get(reason, reason),
        rule=rule,
        value=said(words, known.get(facts.VALUE, "")),
        id=clean(message.incident_id),
        summary=said(words, clean(message.summary)) or rule or message.event,
        at=moment(message.at_wall),
        since=_since(message, opened, known.get(facts.SINCE, "")),
        seen=known.get(facts.SEEN, ""),
        done=done,
        next=said(words, known.get(facts.NEXT, "")) or ("" if test else command),
        runbook_url=known.get(facts.RUNBOOK) or links.runbook(message.reason),
        dashboard_url=known.get(facts.DASHBOARD) or links.dashboard(message.reason),
        timeline=_timeline(message, opened, words),
        details=_acknowledging(message, words, links) + _details(message, opened, words),
        told_late="" if opened is None else words.told_late.format(moment=moment(opened.at_wall)),
        late_summary="" if opened is None else said(words, clean(opened.summary)),
        began="" if opened is None else words.began.format(moment=_time_of_day(opened.at_wall)),
        more="" if test else words.more.format(command=command),
    )


def clean(text: str, longest: int = LONGEST_VALUE) -> str:
    """Return ``text`` on one line, without control, direction and private characters and without credentials."""
    # Cut first: what is done to the text takes time that grows with it.
    shown = text[: longest + 1]
    spaced = "".join(" " if unicodedata.category(c).startswith("C") else c for c in shown)
    return cut(" ".join(redact(spaced).split()), longest)


def without_secrets(message: Message) -> Message:
    """Return ``message`` as it may be handed to another program: credentials hidden, private facts left out."""
    return replace(
        message,
        scope=redact(message.scope),
        reason=redact(message.reason),
        summary=redact(message.summary),
        facts=tuple((name, redact(value)) for name, value in message.facts if not _private(name)),
    )


def _private(name: str) -> bool:
    return name.strip().lower() in PRIVATE_FACTS


def cut(text: str, length: int) -> str:
    """Return ``text`` with at most ``length`` characters; where something is missing it ends with three dots."""
    return text if len(text) <= length else text[: max(length - 3, 0)].rstrip() + "..."[:length]


def moment(wall: float) -> str:
    """Return a Unix time as ``2027-01-15 08:00:00 UTC``; "?" for one that no calendar has."""
    try:
        return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return "?"


def _time_of_day(wall: float) -> str:
    return moment(wall)[11:19] or "?"


def _since(message: Message, opened: Message | None, known: str) -> str:
    if known:
        try:
            return moment(float(known))
        except ValueError:
            return known
    if opened is not None:
        return moment(opened.at_wall)
    return moment(message.at_wall) if message.event in ("open", "blind") else ""


def _timeline(message: Message, opened: Message | None, words: Words) -> tuple[str, ...]:
    told = [clean(value) for one in (opened, message) if one is not None for name, value in one.facts
            if name == facts.TIMELINE]  # fmt: skip
    if not told and opened is not None:
        told.append(f"{moment(opened.at_wall)} {said(words, clean(opened.summary))}")
    # A line that is there already: the producer told the message's own moment too.
    now = f"{moment(message.at_wall)} {said(words, clean(message.summary))}"
    return tuple(dict.fromkeys([*told[-MOST_TIMELINE:], now]))


def _acknowledging(message: Message, words: Words, links: Links) -> tuple[tuple[str, str], ...]:
    address = links.acknowledge(message.incident_id, message.event, message.at_wall)
    return ((words.fact_names.get(facts.ACKNOWLEDGE, facts.ACKNOWLEDGE), address),) if address else ()


def _details(message: Message, opened: Message | None, words: Words) -> tuple[tuple[str, str], ...]:
    pairs = [*message.facts] or ([*opened.facts] if opened is not None else [])
    shown = []
    for name, value in pairs:
        # What was seen has no section of its own: it is the first detail.
        if name != facts.SEEN and (name in facts.SHOWN_BY_NAME or _private(name)):
            continue
        known = words.fact_names.get(name)
        if name == facts.OPENED_FOR:
            value = words.reasons.get(value, value)
        shown.append((known or clean(name, 60) or "?", said(words, clean(value)) or "-"))
    return tuple(shown[:MOST_FACTS])
