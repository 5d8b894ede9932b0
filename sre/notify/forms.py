"""One message, in the form each kind of channel needs."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from sre.actions.types import Message
from sre.notify.envelope import message_to_json
from sre.notify.gsm7 import SINGLE_SMS, to_gsm7

ChannelKind = Literal["email", "sms", "webhook", "chat"]

LONGEST_TITLE = 140
LONGEST_SCOPE_IN_SMS = 48
LONGEST_REASON_IN_SMS = 24
LONGEST_ID_IN_SMS = 48
"""Of these three, the severity and the event nothing is cut off by a long summary: together below 160."""
LONGEST_BODY = 20_000
"""Characters; a chat service cuts or refuses more."""

EVENT_WORDS = {
    "open": "OPEN",
    "escalate": "ESCALATED",
    "resolve": "RESOLVED",
    "blind": "BLIND",
    "test": "TEST",
}


class Tone(enum.Enum):
    """How a channel that has colours shows it; values are Apprise's notify types."""

    FAILURE = "failure"
    WARNING = "warning"
    SUCCESS = "success"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Rendered:
    """What is handed to one channel. ``body`` is never empty: an empty one is refused by every service."""

    title: str
    body: str
    tone: Tone


def render(message: Message, kind: ChannelKind, opened: Message | None = None) -> Rendered:
    """
    Return ``message`` for a channel of this kind.

    Args:
        opened: The "open" message that was never sent and is told here too, in one message.
    """
    tone = _tone(message)
    if kind == "sms":
        return Rendered("", sms(message, opened), tone)
    if kind == "webhook":
        document: dict[str, object] = {"version": 1, **message_to_json(message)}
        document["opened"] = None if opened is None else message_to_json(opened)
        return Rendered(title(message), json.dumps(document, sort_keys=True), tone)
    return Rendered(title(message), long_text(message, opened), tone)


def sms(message: Message, opened: Message | None = None) -> str:
    """
    Return one line of at most 160 characters that are both ASCII and GSM-7: severity, event, scope, reason and
    incident id first, then as much of the summary as fits.
    """
    head = " ".join(
        (
            to_gsm7(message.severity)[:10].upper() or "?",
            to_gsm7(_event_word(message))[:12] or "?",
            _cut(to_gsm7(message.scope), LONGEST_SCOPE_IN_SMS) + ":",
            _cut(to_gsm7(message.reason), LONGEST_REASON_IN_SMS),
            _cut(to_gsm7(message.incident_id), LONGEST_ID_IN_SMS),
        )
    )
    tail = to_gsm7(message.summary)
    if opened is not None:
        tail = to_gsm7(f"began {_clock_time(opened.at_wall)}, {tail}")
    return _cut(f"{head}; {tail}" if tail else head, SINGLE_SMS)


def title(message: Message) -> str:
    """Return one line for the subject: event, scope and reason."""
    line = f"[{message.severity}] {_event_word(message)} {message.scope}: {message.reason}"
    return _cut(_one_line(line), LONGEST_TITLE)


def long_text(message: Message, opened: Message | None = None) -> str:
    """Return the message with all its facts, one per line."""
    lines = [_one_line(message.summary) or _one_line(message.reason) or message.event, ""]
    if opened is not None:
        lines += [
            f"This incident began and ended before a first message could be sent; it began {_moment(opened.at_wall)}:",
            _one_line(opened.summary),
            "",
        ]
    lines += _aligned(
        [
            ("incident", message.incident_id),
            ("event", message.event),
            ("severity", message.severity),
            ("scope", message.scope),
            ("reason", message.reason),
            ("at", _moment(message.at_wall)),
        ]
    )
    facts = list(message.facts) or (list(opened.facts) if opened is not None else [])
    if facts:
        lines += ["", *_aligned(facts)]
    if message.event != "test":
        lines += ["", f"More: sre incident show {message.incident_id}"]
    text = "\n".join(lines)
    return text if len(text) <= LONGEST_BODY else text[: LONGEST_BODY - 15] + "\n... (cut off)"


def _tone(message: Message) -> Tone:
    if message.event == "resolve":
        return Tone.SUCCESS
    if message.event == "test":
        return Tone.INFO
    return Tone.FAILURE if message.severity == "page" else Tone.WARNING


def _event_word(message: Message) -> str:
    return EVENT_WORDS.get(message.event, message.event.upper())


def _aligned(pairs: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in pairs)
    return [f"{_one_line(name) + ':':<{width + 1}} {_one_line(value)}" for name, value in pairs]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3].rstrip() + "..."


def _moment(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _clock_time(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%H:%M:%S")
