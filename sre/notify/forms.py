"""One message, in the form each kind of channel needs."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sre.actions.types import Message
from sre.notify.envelope import message_to_json
from sre.notify.gsm7 import SINGLE_SMS, UCS2_SMS, to_gsm7, to_ucs2
from sre.notify.links import NOWHERE, Links
from sre.notify.mail import html_form
from sre.notify.templates import Template, values_of
from sre.notify.view import View, cut, view, without_secrets
from sre.settings.notify import Language

ChannelKind = Literal["email", "sms", "webhook", "chat", "pagerduty"]

LONGEST_TITLE = 140
LONGEST_BODY = 20_000
"""Characters of a long text."""
LONGEST_CHAT_BYTES = 2_000
"""UTF-8 bytes of title and body: WeCom refuses more than 2048, Discord more than 2000 characters."""
LONGEST_SUMMARY = 1_024
"""Characters of a PagerDuty summary."""


@dataclass(frozen=True, slots=True)
class SmsLimits:
    """
    How long an SMS and its parts may be: together severity, event, scope, rule, value and id, with what joins them,
    are no longer than the whole, so that nothing of these is cut off by a long summary.
    """

    whole: int
    severity: int
    event: int
    scope: int
    rule: int
    value: int
    id: int


SHORTEST_TAIL = 8
"""Less of a summary than this says nothing."""

SMS_LIMITS: Mapping[Language, SmsLimits] = {
    "en": SmsLimits(whole=SINGLE_SMS, severity=10, event=12, scope=48, rule=24, value=12, id=48),
    "zh": SmsLimits(whole=UCS2_SMS, severity=3, event=3, scope=13, rule=8, value=7, id=27),
}


class Tone(enum.Enum):
    """How a channel that has colours shows it; values are Apprise's notify types."""

    FAILURE = "failure"
    WARNING = "warning"
    SUCCESS = "success"
    INFO = "info"


class Act(enum.Enum):
    """What a message does to the incident of a paging service."""

    TRIGGER = "trigger"
    ACKNOWLEDGE = "acknowledge"
    RESOLVE = "resolve"


@dataclass(frozen=True, slots=True)
class Rendered:
    """What is handed to one channel. ``body`` is never empty: an empty one is refused by every service."""

    title: str
    body: str
    tone: Tone
    html: str = ""
    """The same as ``body`` in HTML; "" for a kind of channel that has none."""
    key: str = ""
    """What all messages of one incident share; <= 255 characters."""
    act: Act = Act.TRIGGER
    parameters: Mapping[str, str] = field(default_factory=dict)
    """The message in pieces, for services that take no free text: severity, event, scope, rule, value, id …"""


@dataclass(frozen=True, slots=True)
class Style:
    """How a channel speaks."""

    language: Language = "en"
    links: Links = NOWHERE
    templates: Mapping[str, Template] = field(default_factory=dict)
    """The user's own forms, by ``sms``, ``title``, ``text``, ``html``; a form that is not here is ours."""


PLAIN = Style()


def render(message: Message, kind: ChannelKind, opened: Message | None = None, style: Style = PLAIN) -> Rendered:
    """
    Return ``message`` for a channel of this kind.

    Args:
        opened: The "open" message that was never sent and is told here too, in one message.
    """
    seen = view(message, opened, style.language, style.links)
    line = _title(seen, style)
    tone, key, act = _tone(message), seen.id[:255], _act(message)
    parameters = values_of(seen, line)
    if kind == "sms":
        return Rendered("", _sms(seen, style), tone, key=key, act=act, parameters=parameters)
    if kind == "webhook":
        document: dict[str, object] = {"version": 1, **message_to_json(without_secrets(message))}
        document["opened"] = None if opened is None else message_to_json(without_secrets(opened))
        return Rendered(line, json.dumps(document, sort_keys=True), tone, key=key, act=act, parameters=parameters)
    if kind == "pagerduty":
        return Rendered("", _page(seen, line), tone, key=key, act=act, parameters=parameters)
    own = style.templates.get("text")
    if kind == "chat":
        body = own.render(parameters) if own is not None else _chat(seen)
        line = _harmless(line)
        return Rendered(line, _fitting_chat(line, body or line), tone, key=key, act=act, parameters=parameters)
    text = own.render(parameters) if own is not None else _long(seen, message)
    template = style.templates.get("html")
    html = template.render(parameters) if template is not None else html_form(seen, line)
    return Rendered(
        line, _fitting_text(text or line, seen), tone, html=html, key=key, act=act, parameters=parameters
    )  # fmt: skip


def sms(message: Message, opened: Message | None = None, style: Style = PLAIN) -> str:
    """
    Return one line: severity, event, scope, rule, value and incident id first, then as much of the summary as fits.

    English: at most 160 characters that are both ASCII and GSM-7. Chinese: at most 67 of UCS-2.
    """
    return _sms(view(message, opened, style.language, style.links), style)


def title(message: Message, style: Style = PLAIN) -> str:
    """Return one line for the subject: event, scope and reason."""
    return _title(view(message, None, style.language, style.links), style)


def long_text(message: Message, opened: Message | None = None, style: Style = PLAIN) -> str:
    """Return the message with all its facts, one per line."""
    seen = view(message, opened, style.language, style.links)
    return _fitting_text(_long(seen, message), seen)


def _sms(seen: View, style: Style) -> str:
    limits = SMS_LIMITS[style.language]
    template = style.templates.get("sms")
    spell = to_ucs2 if style.language == "zh" else to_gsm7
    if template is not None:
        return template.render_within(values_of(seen, ""), limits.whole, spell) or spell(seen.id) or "?"
    value = cut(spell(seen.value), limits.value)
    before = (
        spell(seen.severity)[: limits.severity].upper() or "?",
        spell(seen.event)[: limits.event] or "?",
    )
    after = (cut(spell(seen.rule), limits.rule), *((value,) if value else ()), cut(spell(seen.id), limits.id))
    # What the other parts do not use is the scope's: it stands before the summary.
    room = limits.whole - sum(len(part) + 1 for part in (*before, *after)) - len(":")
    head = " ".join((*before, cut(spell(seen.scope), max(limits.scope, room)) + ":", *after))
    tail = spell(", ".join(filter(None, (seen.began, seen.summary))))
    left = limits.whole - len(head) - len("; ")
    return f"{head}; {cut(tail, left)}" if tail and left >= min(len(tail), SHORTEST_TAIL) else head


def _title(seen: View, style: Style) -> str:
    template = style.templates.get("title")
    if template is not None:
        own = " ".join(template.render(values_of(seen, "")).split())
        if own:
            return cut(own, LONGEST_TITLE)
    return cut(f"[{seen.severity}] {seen.event} {seen.scope}: {seen.rule}", LONGEST_TITLE)


def _page(seen: View, line: str) -> str:
    tail = ", ".join(filter(None, (seen.value, seen.began, seen.summary)))
    return cut(f"{line}; {tail} ({seen.id})", LONGEST_SUMMARY)


def _sections(seen: View) -> list[tuple[str, str]]:
    words = seen.words
    pairs = (
        (words.since, seen.since),
        (words.done, seen.done),
        (words.next, seen.next),
        (words.runbook, seen.runbook_url),
        (words.dashboard, seen.dashboard_url),
    )
    return [(name, value) for name, value in pairs if value]


def _long(seen: View, message: Message) -> str:
    words = seen.words
    lines = [seen.summary, ""]
    if seen.told_late:
        lines += [seen.told_late, seen.late_summary, ""]
    sections = _sections(seen)
    if sections:
        lines += [*_aligned(sections), ""]
    identity = [
        (words.incident, seen.id),
        (words.event, message.event if words.language == "en" else seen.event),
        (words.severity, seen.severity),
        (words.scope, seen.scope),
        (words.reason, seen.reason),
    ]
    if seen.rule != seen.reason:
        identity.append((words.rule, seen.rule))
    if seen.value:
        identity.append((words.value, seen.value))
    lines += _aligned([*identity, (words.at, seen.at)])
    if seen.details:
        lines += ["", *_aligned(seen.details)]
    lines += ["", f"{words.timeline}:", *(f"  {line}" for line in seen.timeline)]
    if seen.more:
        lines += ["", seen.more]
    return "\n".join(lines)


def _chat(seen: View) -> str:
    words = seen.words
    lines = [seen.summary]
    if seen.told_late:
        lines += [f"{seen.told_late} {seen.late_summary}"]
    lines += [f"{name}: {value}" for name, value in _sections(seen)]
    lines += [f"{words.incident}: {seen.id}"]
    if seen.value:
        lines += [f"{words.value}: {seen.value}"]
    lines += [f"{name}: {value}" for name, value in seen.details]
    return "\n".join(line if len(line) <= 300 else cut(line, 300) for line in lines)


def _fitting_text(text: str, seen: View) -> str:
    if len(text) <= LONGEST_BODY:
        return text
    return text[: LONGEST_BODY - len(seen.words.cut) - 1] + "\n" + seen.words.cut


def _fitting_chat(line: str, body: str) -> str:
    """
    Return ``body``, harmless, so that with the title ``line`` it has at most LONGEST_CHAT_BYTES.
    """
    harmless = _harmless(body)
    left = LONGEST_CHAT_BYTES - len(line.encode()) - 2
    raw = harmless.encode()
    if len(raw) <= left:
        return harmless
    return raw[: left - 3].decode("utf-8", "ignore").rstrip() + "..."


def _harmless(text: str) -> str:
    """
    Return ``text`` with nothing in it that is read as a tag or as the name of everybody: what an alert says must not
    ring every phone of the company.
    """
    return text.replace("<", "‹").replace(">", "›").replace("@", "@\u200b")


def _tone(message: Message) -> Tone:
    if message.event in ("resolve", "acknowledge"):
        return Tone.SUCCESS if message.event == "resolve" else Tone.INFO
    if message.event == "test":
        return Tone.INFO
    return Tone.FAILURE if message.severity == "page" else Tone.WARNING


def _act(message: Message) -> Act:
    return {"resolve": Act.RESOLVE, "acknowledge": Act.ACKNOWLEDGE}.get(message.event, Act.TRIGGER)


def _aligned(pairs: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in pairs)
    return [f"{name + ':':<{width + 1}} {value}" for name, value in pairs]
