"""What is generated, as values: records, alerts, groups, and the cases that prove an alert."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sre.metrics.types import Unit
from sre.monitoring.levels import LEVELS
from sre.monitoring.promql import Expr, ExpressionError


class Severity(enum.Enum):
    PAGE = "page"
    """Wakes a person: users are hurt, or soon will be."""
    TICKET = "ticket"
    """Work for the day."""
    INFO = "info"
    """Worth knowing when looking; goes nowhere by itself."""


class Dimension(enum.Enum):
    RESOURCE = "resource"
    BATCHING = "batching"
    REQUEST = "request"
    SLO = "slo"


@dataclass(frozen=True, slots=True)
class Record:
    """
    A recording rule. Its name is ``level:metric:operation``; the level's labels are exactly those of the expression.

    Attributes:
        labels: Added to the series (``slo``).
        source_name: One of the names from the source material, exempt from the naming rule.

    Raises:
        ExpressionError: Name and expression do not fit together.
    """

    name: str
    expr: Expr
    help: str
    labels: Mapping[str, str] = field(default_factory=dict)
    source_name: bool = False

    def __post_init__(self) -> None:
        if self.source_name:
            return
        if not re.fullmatch(r"[a-z_]+:[a-z0-9_]+:[a-z0-9_]+", self.name):
            raise ExpressionError(f"record {self.name!r} is not level:metric:operation")
        level = LEVELS.get(self.name.split(":")[0])
        if level is None:
            raise ExpressionError(f"record {self.name}: no level {self.name.split(':')[0]!r}; see LEVELS")
        if frozenset(level) != self.expr.labels | self.labels.keys():
            has = sorted(self.expr.labels | self.labels.keys())
            raise ExpressionError(f"record {self.name}: its level has {sorted(level)}, its expression {has}")

    @property
    def unit(self) -> Unit:
        return self.expr.unit

    @property
    def uses(self) -> frozenset[str]:
        return self.expr.uses

    def __call__(self, *matchers: str) -> Expr:
        """The recorded series, for use in another expression; ``matchers`` such as ``slo="ttft"``."""
        text = self.name + ("{" + ",".join(matchers) + "}" if matchers else "")
        return Expr(text, self.unit, self.expr.labels | self.labels.keys(), frozenset({self.name}))


# ---- Cases: series over time, in steps of the test's interval -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Steady:
    """A gauge that stands at ``value``."""

    value: float


@dataclass(frozen=True, slots=True)
class Rising:
    """A counter that grows by ``per_step``; binary-exact values keep promtool's comparison of floats exact."""

    per_step: float


@dataclass(frozen=True, slots=True)
class Missing:
    """No sample."""


@dataclass(frozen=True, slots=True)
class Raw:
    """
    promtool's own notation, for what the others cannot say. ``then`` continues it in the case "resolves".

    The text must fill exactly the steps of the phase it stands for.
    """

    text: str


Shape = Steady | Rising | Missing | Raw


@dataclass(frozen=True, slots=True)
class Input:
    """
    One series of a scenario.

    Attributes:
        series: With all labels, e.g. ``up{job="vllm",instance="a:1"}``.
        firing, quiet: Its shape while the alert should fire, and while all is well with traffic.
        idle: Its shape without traffic, or without what it is about; default: as quiet for gauges, flat for counters.
            Over all inputs it must differ from quiet: the same samples twice prove nothing.
    """

    series: str
    firing: Shape
    quiet: Shape
    idle: Shape | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """
    What makes an alert fire and what does not. Four promtool cases are made of it: fires, quiet, no traffic, resolves.

    Attributes:
        fires_after: Duration of the firing phase after which the alert is expected: range + ``for`` and slack.
        resolves_after: Duration of the quiet phase after which it is gone (``keep_firing_for`` and ranges included).
        labels: Labels of the expected alert beside the rule's own (severity, dimension …).
        value: ``$value`` as the annotations show it: replaces ``{{ $value | … }}`` in the expected text.
        interval: Step of the series and of evaluation.
    """

    inputs: tuple[Input, ...]
    fires_after: str
    resolves_after: str
    labels: Mapping[str, str]
    value: str = ""
    interval: str = "15s"


@dataclass(frozen=True, slots=True)
class Alert:
    """
    An alerting rule.

    Attributes:
        for_: How long the condition must hold; "0s" only for events.
        keep_firing_for: How long it stays after the condition ended; "" = not at all. Events only.
        component: gpu, node, engine, gateway, sre.
        summary: One sentence.
        description: What it means, with ``{{ $value | humanize }}`` or a sibling; only labels the expression keeps.
        dashboard: uid of the dashboard that shows it.
        labels: Further labels, such as ``slo``.
    """

    name: str
    expr: Expr
    for_: str
    severity: Severity
    dimension: Dimension
    component: str
    summary: str
    description: str
    dashboard: str
    scenario: Scenario
    keep_firing_for: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"(?:[A-Z][a-z0-9]*)+", self.name) or len(self.name) > 40:
            raise ExpressionError(f"alert {self.name!r}: CamelCase, 40 characters at the most")
        if not self.expr.condition:
            raise ExpressionError(f"alert {self.name}: its expression is no condition and would always fire")
        for label in re.findall(r"\$labels\.(\w+)", self.summary + self.description):
            if label not in self.expr.labels:
                raise ExpressionError(f"alert {self.name}: label {label} does not survive in {self.expr.text}")

    @property
    def uses(self) -> frozenset[str]:
        return self.expr.uses


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated in order: at most 20, records before the alerts that use them."""

    name: str
    rules: tuple[Record | Alert, ...]
    interval: str = ""

    def __post_init__(self) -> None:
        if len(self.rules) > 20:
            raise ExpressionError(f"group {self.name} has {len(self.rules)} rules; split it at 20")
