"""
Alertmanager's webhook payload, version 4: bytes in, alerts or a named refusal out.

Strict about what is relied on (version, alerts, labels, times), tolerant of everything else: a payload may be
customised. What a refusal costs decides where the line is: Alertmanager never repeats what was refused. So a payload
is refused only if none of it can be used, one bad alert is left out and reported, and what is merely too long is cut.

Wire shape: {"version": "4", "status", "receiver", "groupKey", "truncatedAlerts", "groupLabels", "commonLabels",
"commonAnnotations", "externalURL", "alerts": [{"status": "firing" | "resolved", "labels": {name: value},
"annotations": {name: value}, "startsAt": RFC 3339, "endsAt": RFC 3339 or 0001-01-01T00:00:00Z, "generatorURL",
"fingerprint": 16 hex digits}]}.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn

VERSION = "4"

MOST_PARTS = 200_000
"""Objects and arrays in one body: 4 MiB of real alerts have 50,000; of "[[[[" they would take a gigabyte."""
MOST_LABELS = 128
LONGEST_NAME = 200
LONGEST_LABEL = 1_000
LONGEST_ANNOTATION = 4_000
LONGEST_FINGERPRINT = 64

NANOSECONDS = 1_000_000_000
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)
_FINGERPRINT = re.compile(rf"[0-9A-Za-z_-]{{1,{LONGEST_FINGERPRINT}}}", re.ASCII)


class Refusal(enum.Enum):
    """Why a payload can never be used, whoever sends it how often."""

    EMPTY = "empty"
    NOT_UTF8 = "not_utf8"
    NOT_JSON = "not_json"
    TOO_DEEP = "too_deep"
    TOO_MANY_PARTS = "too_many_parts"
    DUPLICATE_KEY = "duplicate_key"
    NOT_AN_OBJECT = "not_an_object"
    WRONG_VERSION = "wrong_version"
    NO_ALERTS = "no_alerts"  # "alerts" is missing or no list
    NO_READABLE_ALERT = "no_readable_alert"


class Unreadable(enum.Enum):
    """Why one alert of a payload cannot be used."""

    NOT_AN_OBJECT = "not_an_object"
    NO_LABELS = "no_labels"
    BAD_STATUS = "bad_status"
    BAD_STARTS_AT = "bad_starts_at"


class PayloadError(ValueError):
    """The payload is refused; the text is a sentence for whoever looks after Alertmanager."""

    def __init__(self, refusal: Refusal, sentence: str) -> None:
        self.refusal = refusal
        super().__init__(sentence)


EpisodeKey = tuple[str, int]
"""Fingerprint and start in nanoseconds: one firing of one alert."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert, every text bounded and encodable."""

    fingerprint: str
    starts_ns: int
    """Nanoseconds since 1970."""
    firing: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)
    ends_ns: int | None = None
    """None while it fires."""
    cut: bool = False
    """Something of it was too long or too much, and is shortened."""

    @property
    def key(self) -> EpisodeKey:
        return self.fingerprint, self.starts_ns

    @property
    def name(self) -> str:
        return self.labels.get("alertname") or "unnamed"

    @property
    def starts_wall(self) -> float:
        return self.starts_ns / NANOSECONDS


@dataclass(frozen=True, slots=True)
class BadAlert:
    """An alert of the payload that cannot be used."""

    index: int
    why: Unreadable
    name: str
    """Its alertname as far as there is one."""


@dataclass(frozen=True, slots=True)
class Payload:
    """One notification."""

    alerts: tuple[Alert, ...]
    bad: tuple[BadAlert, ...] = ()
    truncated: int = 0
    """Alerts of the group that Alertmanager left out (max_alerts)."""
    receiver: str = ""
    group_key: str = ""


def parse(body: bytes) -> Payload:
    """
    Return the notification that ``body`` is.

    Raises:
        PayloadError: It is none; nothing else leaves, whatever the bytes are.
    """
    document = _document(body)
    if not isinstance(document, dict):
        _refuse(Refusal.NOT_AN_OBJECT, "the body must be a JSON object, Alertmanager's webhook payload")
    version = document.get("version")
    if version != VERSION:
        shown = _short(version) if "version" in document else "none"
        _refuse(
            Refusal.WRONG_VERSION,
            f'payload version {shown} is not "{VERSION}"; send with Alertmanager 0.16 or later (webhook_configs)',
        )
    listed = document.get("alerts")
    if not isinstance(listed, list):
        _refuse(Refusal.NO_ALERTS, '"alerts" is missing or no list')
    status = document.get("status")
    alerts, bad = [], []
    for index, one in enumerate(listed):
        read = _alert(one, status)
        if isinstance(read, Alert):
            alerts.append(read)
        else:
            bad.append(BadAlert(index, read, _alertname(one)))
    if bad and not alerts:
        first = bad[0]
        _refuse(
            Refusal.NO_READABLE_ALERT,
            f"none of {len(bad)} alerts can be read; alerts[{first.index}]: {first.why.value}",
        )
    truncated = document.get("truncatedAlerts", 0)
    counted = isinstance(truncated, int) and not isinstance(truncated, bool) and 0 < truncated < 2**31
    return Payload(
        alerts=tuple(alerts),
        bad=tuple(bad),
        truncated=truncated if counted else 0,
        receiver=_text(document.get("receiver"), LONGEST_NAME)[0],
        group_key=_text(document.get("groupKey"), LONGEST_LABEL)[0],
    )


def moment_ns(text: object) -> int | None:
    """
    Return nanoseconds since 1970 of an RFC 3339 time; None for anything else, and for Go's zero time (0001-01-01).
    """
    found = _TIME.fullmatch(text) if isinstance(text, str) and len(text) <= 64 else None
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    fraction, sign, off_hours, off_minutes = found.groups()[6:]
    if year <= 1 or (off_hours is not None and (int(off_hours) > 23 or int(off_minutes) > 59)):
        return None
    try:
        # A leap second is the second after 59.
        whole = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC)
    except ValueError:
        return None
    if second > 60:
        return None
    seconds = int((whole - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) + (second == 60)
    if sign is not None:
        seconds -= (1 if sign == "+" else -1) * (int(off_hours) * 3600 + int(off_minutes) * 60)
    nanoseconds = seconds * NANOSECONDS + int((fraction or "0").ljust(9, "0"))
    # Beyond what a 64-bit count of nanoseconds holds (1677 to 2262) is no time of an alert.
    return nanoseconds if abs(nanoseconds) < 2**63 else None


def fingerprint_of(labels: Mapping[str, str]) -> str:
    """Return a name of these labels, for an alert that came without one. Not Alertmanager's: it begins with "l"."""
    text = json.dumps(sorted(labels.items()), ensure_ascii=True, separators=(",", ":"))
    return "l" + hashlib.sha256(text.encode()).hexdigest()[:31]


# ---- Reading ---------------------------------------------------------------------------------------------------------


def _refuse(refusal: Refusal, sentence: str) -> NoReturn:
    raise PayloadError(refusal, sentence)


def _document(body: bytes) -> Any:
    if not body.strip():
        _refuse(Refusal.EMPTY, "the body is empty")
    if body.count(b"{") + body.count(b"[") > MOST_PARTS:
        _refuse(Refusal.TOO_MANY_PARTS, f"the body has more than {MOST_PARTS} objects and arrays")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse(Refusal.NOT_UTF8, f"the body is not UTF-8 (byte {error.start})")
    try:
        return json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant, parse_int=_integer)
    except RecursionError:
        _refuse(Refusal.TOO_DEEP, "the body is nested too deeply")
    except PayloadError:
        raise
    except ValueError as error:
        _refuse(Refusal.NOT_JSON, f"the body is not JSON: {error}")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        _refuse(Refusal.DUPLICATE_KEY, f"the key {_short(twice)} is there twice in one object")
    return made


def _constant(text: str) -> NoReturn:
    _refuse(Refusal.NOT_JSON, f"the body is not JSON: {text} is no number")


def _integer(text: str) -> int | float:
    """Whole numbers of a sane length; longer ones cost time that grows with their square."""
    return int(text) if len(text) <= 20 else float(text)


def _alert(one: object, group_status: object) -> Alert | Unreadable:
    if not isinstance(one, dict):
        return Unreadable.NOT_AN_OBJECT
    raw = one.get("labels")
    if not isinstance(raw, dict) or not raw:
        return Unreadable.NO_LABELS
    status = one.get("status", group_status)
    if status not in ("firing", "resolved"):
        return Unreadable.BAD_STATUS
    starts = moment_ns(one.get("startsAt"))
    if starts is None:
        return Unreadable.BAD_STARTS_AT
    labels, labels_cut = _map(raw, LONGEST_LABEL)
    annotations, annotations_cut = _map(one.get("annotations"), LONGEST_ANNOTATION)
    given = one.get("fingerprint")
    fingerprint = given if isinstance(given, str) and _FINGERPRINT.fullmatch(given) else fingerprint_of(labels)
    return Alert(
        fingerprint=fingerprint,
        starts_ns=starts,
        firing=status == "firing",
        labels=labels,
        annotations=annotations,
        ends_ns=moment_ns(one.get("endsAt")) if status == "resolved" else None,
        cut=labels_cut or annotations_cut,
    )


def _alertname(one: object) -> str:
    labels = one.get("labels") if isinstance(one, dict) else None
    return _text(labels.get("alertname"), LONGEST_NAME)[0] if isinstance(labels, dict) else ""


def _map(raw: object, longest: int) -> tuple[dict[str, str], bool]:
    """Names and values that can be kept, and whether something was cut or left out."""
    if not isinstance(raw, dict):
        return {}, raw is not None
    kept: dict[str, str] = {}
    cut = len(raw) > MOST_LABELS
    # What tells an alert is kept whatever else there is.
    names = sorted(raw, key=lambda name: (name not in ("alertname", "severity"), name))[:MOST_LABELS]
    for name in names:
        clean, name_cut = _text(name, LONGEST_NAME)
        value, value_cut = _text(raw[name], longest)
        cut = cut or name_cut or value_cut
        if clean:
            kept[clean] = value
    return kept, cut


def _text(value: object, longest: int) -> tuple[str, bool]:
    """``value`` as text that any file can hold, and whether something was lost. No text is ""."""
    if value is None:
        return "", False
    if isinstance(value, bool | int | float):
        return str(value)[:longest], True
    if not isinstance(value, str):
        return "", True
    shown = value[:longest]
    if not shown.isascii() or "\0" in shown:
        # Half a surrogate pair is JSON and no text; a zero byte ends texts in C.
        shown = shown.encode("utf-8", "replace").decode("utf-8").replace("\0", "�")
    return shown, len(value) > longest


def _short(value: object) -> str:
    """``value`` for a sentence, as JSON has it."""
    if isinstance(value, str):
        return json.dumps(_text(value, 40)[0])
    return str(value)[:40] if isinstance(value, int | float) else type(value).__name__
