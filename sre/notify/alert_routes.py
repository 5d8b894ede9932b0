"""Which route takes an alert, and why: matching of labels against ``webhook.routes``. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sre.settings.label_expression import LabelExpression
from sre.settings.notify import Severity
from sre.settings.webhook import ActionSettings, RouteSettings, WebhookSettings

TRIPS_PER_HOUR = 3
"""Of one target, where the route says nothing."""

TARGET_LABELS: Mapping[str, str] = {"engine": "engine", "pool": "model_name"}
"""The label that names a trip's target, where the route says nothing."""

KNOWN_SEVERITIES: tuple[Severity, ...] = ("page", "ticket", "info")
RANK: Mapping[str, int] = {"info": 0, "ticket": 1, "page": 2}


class Why(enum.Enum):
    """What became of one alert at one route."""

    MATCHED = "matched"
    OTHER_SEVERITY = "other_severity"
    OTHER_LABEL = "other_label"
    NOT_REACHED = "not_reached"  # a route before it took the alert


@dataclass(frozen=True, slots=True)
class Tried:
    """One route, and why it took the alert or not. ``detail`` names the label."""

    route: str
    why: Why
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Trip:
    """A trip that a route asks for."""

    route: str
    scope: str
    """engine | pool"""
    target: str
    """"" when the alert lacks the label."""
    label: str
    max_per_hour: int
    max_evidence_age_seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What the routes want done about an alert. Nothing of it: it is stored."""

    route: str
    """The first that matched; "" for none."""
    severity: Severity
    incident: bool = False
    notify: bool = False
    incidents_per_hour: int | None = None
    """null: no limit."""
    notices_per_hour: int | None = None
    trips: tuple[Trip, ...] = ()
    tried: tuple[Tried, ...] = ()


@dataclass(frozen=True, slots=True)
class _Compiled:
    settings: RouteSettings
    expressions: tuple[tuple[str, LabelExpression], ...]


class Routes:
    """The routes of a configuration, compiled once."""

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings
        self._routes = tuple(
            _Compiled(route, tuple((label, LabelExpression(text)) for label, text in route.match_re.items()))
            for route in settings.routes
        )

    def severity(self, labels: Mapping[str, str]) -> Severity:
        """Return ours for the alert's: its own word if we know it, else as ``webhook.severities`` says."""
        given = labels.get("severity", "").strip().lower()
        for known in KNOWN_SEVERITIES:
            if given == known:
                return known
        return self._settings.severities.get(given, self._settings.default_severity)

    def plan(self, labels: Mapping[str, str]) -> Plan:
        """Return what is to be done about an alert with these labels."""
        severity = self.severity(labels)
        tried: list[Tried] = []
        taken: list[RouteSettings] = []
        for route in self._routes:
            name = route.settings.name
            if taken and not taken[-1].keep_matching:
                tried.append(Tried(name, Why.NOT_REACHED))
                continue
            found = _tried(route, labels, severity)
            tried.append(found)
            if found.why is Why.MATCHED:
                taken.append(route.settings)
        return _merged(taken, labels, severity, tuple(tried))

    def join_key(self, labels: Mapping[str, str]) -> str:
        """Return what alerts of one incident have in common: ``alertname=X,model_name=m,node=n1``."""
        parts = []
        for entry in self._settings.incident_by:
            for label in entry.split("|"):
                value = labels.get(label.strip(), "")
                if value:
                    # Separators within a value must not make two keys one.
                    parts.append(f"{label.strip()}={value.replace('%', '%25').replace(',', '%2C')}")
                    break
        # An alert that has none of the labels is not of one cause with all others that have none.
        return ",".join(parts) or f"alertname={labels.get('alertname', '')}"


def _tried(route: _Compiled, labels: Mapping[str, str], severity: Severity) -> Tried:
    settings = route.settings
    if settings.severities and severity not in settings.severities:
        return Tried(settings.name, Why.OTHER_SEVERITY, severity)
    for label, wanted in settings.match.items():
        if labels.get(label, "") != wanted:
            return Tried(settings.name, Why.OTHER_LABEL, label)
    for label, expression in route.expressions:
        if not expression.matches(labels.get(label, "")):
            return Tried(settings.name, Why.OTHER_LABEL, label)
    return Tried(settings.name, Why.MATCHED)


def _merged(
    taken: Sequence[RouteSettings], labels: Mapping[str, str], severity: Severity, tried: tuple[Tried, ...]
) -> Plan:
    actions = [(route.name, action) for route in taken for action in route.actions]
    trips: dict[tuple[str, str], Trip] = {}
    for route, action in actions:
        if action.do == "trip":
            trip = _trip(route, action, labels)
            trips.setdefault((trip.scope, trip.target), trip)
    return Plan(
        route=taken[0].name if taken else "",
        severity=severity,
        incident=any(action.do == "incident" for _, action in actions),
        notify=any(action.do == "notify" for _, action in actions),
        incidents_per_hour=_least(action.max_per_hour for _, action in actions if action.do == "incident"),
        notices_per_hour=_least(action.max_per_hour for _, action in actions if action.do == "notify"),
        trips=tuple(trips.values()),
        tried=tried,
    )


def _least(limits: Iterable[int | None]) -> int | None:
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _trip(route: str, action: ActionSettings, labels: Mapping[str, str]) -> Trip:
    label = action.label or TARGET_LABELS[action.target]
    return Trip(
        route=route,
        scope=action.target,
        target=labels.get(label, ""),
        label=label,
        max_per_hour=TRIPS_PER_HOUR if action.max_per_hour is None else action.max_per_hour,
        max_evidence_age_seconds=action.max_evidence_age_seconds,
    )
