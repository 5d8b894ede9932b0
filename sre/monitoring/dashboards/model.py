"""What a dashboard is: typed values, checked when they are made. ``document`` turns them into Grafana's JSON."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from sre.metrics.types import Unit
from sre.monitoring.promql import LE, Expr, ExpressionError

GRID_WIDTH = 24
"""Columns of Grafana's grid."""
MAX_UID = 40
"""Longest uid that Grafana accepts."""
ID_RANGE = 1_000_000


class Shown(enum.Enum):
    """Grafana's unit of a panel."""

    COUNT = "short"
    STATE = "none"
    FACTOR = "suffix:x"
    RATIO = "percentunit"
    SECONDS = "s"
    BYTES = "bytes"
    BYTES_PER_SECOND = "Bps"
    CELSIUS = "celsius"
    WATTS = "watt"
    PER_SECOND = "cps"
    REQUESTS_PER_SECOND = "reqps"
    TOKENS_PER_SECOND = "suffix: tok/s"
    OPERATIONS_PER_SECOND = "iops"
    PACKETS_PER_SECOND = "pps"


_COUNTED = frozenset({Unit.ONE, Unit.STATE, Unit.REQUESTS, Unit.TOKENS, Unit.STEPS, Unit.OPERATIONS, Unit.PACKETS})
FITS: Mapping[Shown, frozenset[Unit]] = {
    Shown.COUNT: _COUNTED | {Unit.SEGMENTS},
    Shown.STATE: frozenset({Unit.ONE, Unit.STATE}),
    Shown.FACTOR: frozenset({Unit.ONE, Unit.RATIO}),
    Shown.RATIO: frozenset({Unit.RATIO}),
    Shown.SECONDS: frozenset({Unit.SECONDS}),
    Shown.BYTES: frozenset({Unit.BYTES}),
    # The rate of a counter keeps the counter's unit in ``Expr``: "per second" is understood.
    Shown.BYTES_PER_SECOND: frozenset({Unit.BYTES_PER_SECOND, Unit.BYTES}),
    Shown.CELSIUS: frozenset({Unit.CELSIUS}),
    Shown.WATTS: frozenset({Unit.WATTS}),
    Shown.PER_SECOND: _COUNTED,
    Shown.REQUESTS_PER_SECOND: frozenset({Unit.REQUESTS, Unit.ONE}),
    Shown.TOKENS_PER_SECOND: frozenset({Unit.TOKENS}),
    Shown.OPERATIONS_PER_SECOND: frozenset({Unit.OPERATIONS}),
    Shown.PACKETS_PER_SECOND: frozenset({Unit.PACKETS}),
}
"""Which unit of an expression each of Grafana's can show without lying."""


class Kind(enum.Enum):
    """Grafana's type of a panel."""

    LINES = "timeseries"
    STAT = "stat"
    STATES = "state-timeline"
    HEATMAP = "heatmap"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Query:
    """
    One query of a panel.

    Attributes:
        legend: Name of a series, with ``{{label}}``; only labels that the expression keeps.

    Raises:
        ExpressionError: The legend names a label that is not there.
    """

    expr: Expr
    legend: str

    def __post_init__(self) -> None:
        for label in re.findall(r"\{\{\s*(\w+)\s*\}\}", self.legend):
            if label not in self.expr.labels:
                has = ", ".join(sorted(self.expr.labels)) or "none"
                raise ExpressionError(f"legend {self.legend!r}: {self.expr.text} has no label {label}; it has {has}")


@dataclass(frozen=True, slots=True)
class Limit:
    """
    A line drawn at ``value``, coloured on the bad side.

    Attributes:
        below: What is bad lies below.
        alert: The alert with this threshold; "" where none has it.
    """

    value: float
    alert: str = ""
    below: bool = False
    color: str = "red"


@dataclass(frozen=True, slots=True)
class State:
    """Text and colour of one value."""

    value: int
    text: str
    color: str


@dataclass(frozen=True, slots=True)
class Panel:
    """
    One panel.

    Attributes:
        key: What its id is made of: unique in the dashboard, and never changed, so that links to the panel stay.
        about: What is shown, one or two sentences.
        bad: What to worry about.
        empty: Text where there is no data, such as "no traffic".
        alerts: Alerts that fire on what is shown, those of ``limits`` not repeated.
        top: Largest value of the axis.
        states: Text and colour per value, for ``Kind.STATES`` and ``Kind.STAT``.
        columns: Labels in the order in which a table shows them.
        shown: Unit of the values; of a heatmap, of its buckets.

    Raises:
        ExpressionError: Query and unit do not fit together, or a text is missing.
    """

    key: str
    title: str
    kind: Kind
    shown: Shown
    queries: tuple[Query, ...]
    about: str
    bad: str
    empty: str = "no traffic"
    width: int = 8
    height: int = 8
    bottom: float | None = 0.0
    top: float | None = None
    limits: tuple[Limit, ...] = ()
    alerts: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    columns: tuple[str, ...] = ()
    stacked: bool = False

    def __post_init__(self) -> None:
        where = f"panel {self.title!r}"
        if not re.fullmatch(r"[a-z][a-z0-9-]*", self.key):
            raise ExpressionError(f"{where}: key {self.key!r} is not written like disk-await")
        if not all((self.title, self.about, self.bad, self.empty, self.queries)):
            raise ExpressionError(f"{where}: title, about, bad, empty and queries are all needed")
        if not 1 <= self.width <= GRID_WIDTH or self.height < 2:
            raise ExpressionError(f"{where}: {self.width} x {self.height} does not fit into {GRID_WIDTH} columns")
        for query in self.queries:
            if self.kind is Kind.HEATMAP:
                if LE not in query.expr.labels:
                    raise ExpressionError(f"{where}: a heatmap needs buckets; {query.expr.text} has no label {LE}")
            elif query.expr.unit not in FITS[self.shown]:
                raise ExpressionError(
                    f"{where}: {query.expr.text} is in {query.expr.unit.value}, which {self.shown.value} does not show"
                )
        if (self.kind is Kind.STATES) != bool(self.states) and self.kind is not Kind.STAT:
            raise ExpressionError(f"{where}: states belong to a state timeline or a stat")
        if (self.kind is Kind.TABLE) != bool(self.columns):
            raise ExpressionError(f"{where}: a table, and nothing else, has columns")

    @property
    def id(self) -> int:
        """Number of the panel: the same in every generation, wherever the panel moves."""
        return int.from_bytes(sha256(self.key.encode()).digest()[:8], "big") % ID_RANGE + 1

    @property
    def all_alerts(self) -> tuple[str, ...]:
        """Alerts on what it shows, in order, each once."""
        return tuple(dict.fromkeys([*(limit.alert for limit in self.limits if limit.alert), *self.alerts]))

    @property
    def names(self) -> tuple[str, ...]:
        """Records and samples it reads."""
        return tuple(sorted(frozenset().union(*(query.expr.uses for query in self.queries))))


@dataclass(frozen=True, slots=True)
class Row:
    """A headline with the panels below it. Collapsed ones hold raw metrics, for drilling down, queried when opened."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False

    @property
    def id(self) -> int:
        """Number of the row, made of its title."""
        return int.from_bytes(sha256(b"row " + self.title.encode()).digest()[:8], "big") % ID_RANGE + 1


@dataclass(frozen=True, slots=True)
class Variable:
    """
    A choice at the top of the dashboard.

    Attributes:
        query: Grafana's ``label_values(…)`` or ``query_result(…)``.
        uses: Names the query reads.
        regex: Cuts the value out of a query's result.
    """

    name: str
    label: str
    about: str
    query: str
    uses: frozenset[str]
    regex: str = ""

    @property
    def matcher(self) -> str:
        """What stands behind a label's name in a selector: every choice, and ``.*`` (or no such label) for All."""
        return f'=~"${self.name}"'


@dataclass(frozen=True, slots=True)
class Annotation:
    """
    Events drawn into every panel: one region per stretch in which the query has a positive value.

    Attributes:
        enabled: Shown from the start; the others are switched on at the top of the dashboard.
        tags: Labels that become tags.
    """

    name: str
    expr: Expr
    title: str
    text: str
    color: str
    tags: tuple[str, ...] = ()
    enabled: bool = True

    def __post_init__(self) -> None:
        for label in (*re.findall(r"\{\{\s*(\w+)\s*\}\}", self.title + self.text), *self.tags):
            if label not in self.expr.labels:
                raise ExpressionError(f"annotation {self.name}: {self.expr.text} has no label {label}")


@dataclass(frozen=True, slots=True)
class Dashboard:
    """
    One dashboard; ``uid`` is the stem of its file.

    Raises:
        ExpressionError: A uid that Grafana refuses, or two panels with one number.
    """

    uid: str
    title: str
    about: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...]
    annotations: tuple[Annotation, ...] = ()
    since: str = "now-1h"
    refresh: str = "30s"
    tags: tuple[str, ...] = field(default=("sre",))

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9-]+", self.uid) or len(self.uid) > MAX_UID:
            raise ExpressionError(f"dashboard uid {self.uid!r}: a-z, 0-9 and -, {MAX_UID} characters at the most")
        seen: dict[int, str] = {}
        for number, name in self._numbers():
            if number in seen:
                raise ExpressionError(f"dashboard {self.uid}: {seen[number]} and {name} get one id; change a key")
            seen[number] = name

    def _numbers(self) -> Iterator[tuple[int, str]]:
        for row in self.rows:
            yield row.id, f"row {row.title}"
            yield from ((panel.id, f"panel {panel.key}") for panel in row.panels)

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Every panel, those of collapsed rows included."""
        return tuple(panel for row in self.rows for panel in row.panels)

    @property
    def uses(self) -> frozenset[str]:
        """Records and samples that it reads anywhere."""
        parts = [frozenset(panel.names) for panel in self.panels]
        parts += [variable.uses for variable in self.variables]
        parts += [annotation.expr.uses for annotation in self.annotations]
        return frozenset().union(*parts)
