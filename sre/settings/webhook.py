"""Section ``webhook``: where Alertmanager posts, and what its alerts lead to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from sre.settings.base import FilePath, SecretRef, Settings
from sre.settings.label_expression import ExpressionError, LabelExpression
from sre.settings.notify import Severity
from sre.settings.stack import Name, Port, Positive


def _expression(text: str) -> str:
    try:
        LabelExpression(text)
    except ExpressionError as error:
        raise ValueError(f"is no expression that can be matched: {error}") from error
    return text


Expression = Annotated[str, AfterValidator(_expression)]
LabelName = Annotated[str, Field(min_length=1, max_length=200)]

NO_LADDER = "unsupported: no ladder yet; remove this action"
LONGEST_JOIN = 8


class ActionSettings(Settings):
    """One thing that a route lets alerts do."""

    do: Literal["incident", "notify", "trip", "ladder"]
    """
    incident: open an incident, or join the open one. notify: tell the channels when it begins, gets worse and ends.
    trip: open the breaker of the engine or pool that the alert names. ladder: not there yet, refused.
    """
    target: Literal["engine", "pool"] = "engine"
    """trip: one engine, never the last of its pool that serves; or all engines of a pool."""
    label: LabelName | None = None
    """trip: the label that names the target; null: engine for an engine, model_name for a pool."""
    max_per_hour: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """
    Beginnings per route (incident, notify) or trips per target within an hour, restarts of the guard included. null: 3
    for trip; no limit for the others, whose messages notify.storm bounds. What is over it is told in one message when
    it allows that again, an hour later at the latest.
    """
    max_evidence_age_seconds: Positive = 300.0
    """trip: an alert that began earlier trips nothing."""

    @model_validator(mode="after")
    def _possible(self) -> ActionSettings:
        if self.do == "ladder":
            raise ValueError(NO_LADDER)
        return self


class RouteSettings(Settings):
    """Alerts that match all of it get its actions. The first matching route decides, unless it goes on."""

    name: Name
    match: dict[LabelName, str] = Field(default_factory=dict)
    """Label → its value; "" is a label that is not there."""
    match_re: dict[LabelName, Expression] = Field(default_factory=dict)
    """Label → expression for the whole value (RE2's, without what could be slow)."""
    severities: tuple[Severity, ...] = ()
    """Any of these; empty: all."""
    actions: tuple[ActionSettings, ...] = ()
    """None: the alert is stored and nothing else."""
    keep_matching: bool = False
    """Try the routes after this one, too (Alertmanager's "continue")."""

    @model_validator(mode="after")
    def _once(self) -> RouteSettings:
        done = [(a.do, a.target) for a in self.actions]
        for do, target in done:
            if done.count((do, target)) > 1:
                raise ValueError(f"{do} is there twice; keep one")
        return self


DEFAULT_ROUTES: tuple[RouteSettings, ...] = (
    RouteSettings(
        name="page-and-ticket",
        severities=("page", "ticket"),
        actions=(ActionSettings(do="incident"), ActionSettings(do="notify")),
    ),
)
"""Nothing trips by default, and what is only worth knowing is only stored."""


THEIR_SEVERITIES: Mapping[str, Severity] = {"critical": "page", "error": "page", "warning": "ticket", "none": "info"}


class HeartbeatSettings(Settings):
    """An alert that always fires: when it is not heard, Prometheus or Alertmanager is silent, and a person is told."""

    enabled: bool = True
    alertnames: Annotated[tuple[LabelName, ...], Field(min_length=1)] = ("SreWatchdog", "Watchdog")
    timeout_seconds: Annotated[float, Field(ge=1, le=86_400)] = 300.0
    """Must be more than its repeat_interval at Alertmanager, twice."""


def _join(labels: tuple[str, ...]) -> tuple[str, ...]:
    if not labels or len(labels) > LONGEST_JOIN:
        raise ValueError(f"needs 1 to {LONGEST_JOIN} labels, e.g. [alertname, model_name, node|instance]")
    if any(not name.strip() for entry in labels for name in entry.split("|")):
        raise ValueError("has an empty name; write label, or label|label for the first that is there")
    return labels


def _address(url: str) -> str:
    if url and not re.fullmatch(r"https?://[^\s/?#<>\"'@]{1,253}(/[^\s?#<>\"']*)?", url):
        raise ValueError("is no address of a web server; write https://host or https://host:port")
    return url


class WebhookSettings(Settings):
    """Receives Alertmanager's notifications, inside the guard or as ``sre webhook serve``."""

    enabled: bool = False
    """Serve it inside the guard."""
    host: str = "127.0.0.1"
    port: Port = 9401
    token: SecretRef | None = None
    """
    What Alertmanager sends as "Authorization: Bearer …". A file that is replaced is good at once, what was in it before
    for five minutes more.
    """
    basic_user: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    basic_password: SecretRef | None = None
    tls_certificate: FilePath | None = None
    """File with the certificate chain (PEM); null: plain HTTP. Renewed files are taken within a minute."""
    tls_key: FilePath | None = None
    max_body_bytes: Annotated[int, Field(ge=65_536, le=67_108_864)] = 4 * 1024 * 1024
    """A larger notification can never be stored and is refused for good: about 3,000 alerts fit into 4 MiB."""
    max_connections: Annotated[int, Field(ge=4, le=4096)] = 64
    """When all are taken, the one that has been waiting longest without having shown its credentials is closed."""
    request_timeout_seconds: Annotated[float, Field(ge=0.5, le=120)] = 10.0
    """For the headers of a request, and again for its body."""
    incident_by: Annotated[tuple[str, ...], AfterValidator(_join)] = ("alertname", "model_name", "node|instance")
    """Alerts that agree in these labels are one incident. "a|b": the first of the two that is there."""
    default_severity: Severity = "ticket"
    """Of alerts whose label severity is missing or unknown."""
    severities: dict[str, Severity] = Field(default_factory=lambda: dict(THEIR_SEVERITIES))
    """How others call page, ticket and info."""
    max_age_seconds: Positive = 3600.0
    """An alert that began earlier and is heard of only now is told as such."""
    forget_after_seconds: Positive = 172_800.0
    """An alert not heard of for so long is taken for over, and said to be unproven. More than any repeat_interval."""
    public_url: Annotated[str, AfterValidator(_address)] = ""
    """Where people reach this webhook, e.g. https://sre.example:9401: begin of the link that acknowledges a page."""
    ack_secret: SecretRef | None = None
    """Signs that link, at least 16 bytes; null: no link."""
    ack_seconds: Positive = 86_400.0
    """So long a link is good."""
    heartbeat: HeartbeatSettings = HeartbeatSettings()
    routes: tuple[RouteSettings, ...] = DEFAULT_ROUTES

    @model_validator(mode="after")
    def _consistent(self) -> WebhookSettings:
        if (self.basic_user is None) != (self.basic_password is None):
            raise ValueError("basic_user and basic_password belong together; set both, or token alone")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key belong together; set both or none")
        if (self.ack_secret is None) != (not self.public_url):
            raise ValueError("public_url and ack_secret belong together; set both, or none for messages without a link")
        if self.enabled and self.token is None and self.basic_user is None:
            raise ValueError("anybody could page and trip: set token, or basic_user and basic_password")
        names = [route.name for route in self.routes]
        for name in sorted({n for n in names if names.count(n) > 1}):
            raise ValueError(f"two routes are named {name!r}; names must differ")
        return self
