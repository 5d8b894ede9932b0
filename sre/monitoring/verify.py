"""
Which of our alerts can ever fire against what was seen, and why the others cannot.

Each expression is followed down to its selectors: ``a or b`` needs one of them, ``a / b`` and ``a and b`` both,
``a unless b`` the first; ``absent(…)`` needs nothing. Recorded names are followed into their expressions: whether the
rules are loaded does not matter. A zero that only fills a gap (``x or 0 * y``) keeps a sum alive but never exceeds
a threshold by itself; a divisor, and a quantile, need something to have been counted.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sre.metrics.catalogue import CATALOGUE, Release
from sre.metrics.types import Exporter, Metric
from sre.monitoring.evidence import (
    BUILD_INFO,
    FINE,
    HEARTBEATS,
    Cause,
    Evidence,
    Outcome,
    Reason,
    Verdict,
)
from sre.monitoring.lint.syntax import Problem
from sre.monitoring.lint.tree import Aggregate, Binary, Call, Negative, Node, Selector, Subquery, constant
from sre.monitoring.meeting import Meeting, tree
from sre.monitoring.model import Alert, Group, Record
from sre.monitoring.promql import Selection
from sre.monitoring.seen import Seen, fits

_NEVER = Outcome(Verdict.CANNOT_FIRE)
_ABSENCE = frozenset({"absent", "absent_over_time"})


class Need(enum.Enum):
    """What is asked of an expression."""

    EXISTS = "exists"
    """It returns something."""
    RISES = "rises"
    """It can become something else than zero."""
    COUNTED = "counted"
    """Something has been counted: it is no zero now."""


@dataclass(frozen=True, slots=True)
class Finding:
    """
    What becomes of one rule.

    Attributes:
        severity: Of an alert; "" for a record.
    """

    name: str
    severity: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ExporterSeen:
    """
    One exporter that is there.

    Attributes:
        release: As a sentence.
        metrics: How many of the catalogue's metrics it exposes.
        problems: What is not as the catalogue says of this release, whether or not a rule uses it.
    """

    exporter: Exporter
    release: str
    metrics: int
    problems: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The answer."""

    exporters: tuple[ExporterSeen, ...]
    alerts: tuple[Finding, ...]
    records: tuple[Finding, ...]

    def count(self, verdict: Verdict) -> int:
        """Alerts of this verdict."""
        return sum(finding.outcome.verdict is verdict for finding in self.alerts)

    @property
    def blind(self) -> bool:
        """Nothing that was seen says anything about any alert."""
        return not self.exporters or all(finding.outcome.verdict is Verdict.NOT_LOOKED_AT for finding in self.alerts)

    @property
    def good(self) -> bool:
        """Every alert that could be judged can fire, as it is meant to."""
        return all(finding.outcome.verdict in (Verdict.CAN_FIRE, Verdict.NOT_LOOKED_AT) for finding in self.alerts)


def wanted_samples(groups: Iterable[Group], selection: Selection) -> frozenset[str]:
    """Every sample name that must be asked for: what the rules read, and what tells of an exporter's state."""
    rules = [rule for group in groups for rule in group.rules]
    recorded = {rule.name for rule in rules if isinstance(rule, Record)}
    used = {name for rule in rules for name in rule.expr.uses if name not in recorded}
    return frozenset(used) | {selection.name(one.sample) for one in (*BUILD_INFO.values(), *HEARTBEATS.values())}


def verify(seen: Seen, groups: Sequence[Group], selection: Selection) -> Report:
    """Hold every rule and the catalogue against what was seen."""
    evidence = Evidence(seen, selection)
    rules = [rule for group in groups for rule in group.rules]
    judge = _Judge(evidence, [rule for rule in rules if isinstance(rule, Record)])
    alerts = [
        Finding(rule.name, rule.severity.value, judge.alert(rule.expr.text))
        for rule in rules
        if isinstance(rule, Alert)
    ]
    records: dict[str, Finding] = {}
    for rule in rules:
        if isinstance(rule, Record):
            outcome = judge.expression(rule.expr.text, Need.EXISTS)
            known = records.get(rule.name)
            if known is None or outcome.verdict.rank > known.outcome.verdict.rank:
                records[rule.name] = Finding(rule.name, "", outcome)
    return Report(tuple(_exporters(evidence, selection)), tuple(alerts), tuple(records.values()))


def _exporters(evidence: Evidence, selection: Selection) -> Iterator[ExporterSeen]:
    seen = evidence.seen
    for exporter, release in evidence.releases.items():
        there: list[Metric] = []
        problems: list[Reason] = []
        for metric in CATALOGUE.of(exporter):
            name = selection.name(metric.sample)
            if name in seen.names:
                there.append(metric)
                problems += evidence.wrong(name, metric, seen.series(name))
            elif _expected(metric, release) and exporter is not Exporter.PROMETHEUS:
                outcome, _ = evidence.look(Selector(name, (), None, 0.0))
                problems += outcome.reasons
        yield ExporterSeen(exporter, str(release), len(there), tuple(dict.fromkeys(problems)))


def _expected(metric: Metric, release: Release) -> bool:
    """Whether a healthy exporter of this release must expose it, for all that is known."""
    since = metric.since
    here = since is None or (release.version is not None and since <= release.version)
    return here and metric.removed is None and not metric.optional


@dataclass(slots=True)
class _Judge:
    """Follows expressions down to their selectors."""

    evidence: Evidence
    records: Sequence[Record]
    _by_name: Mapping[str, list[Record]] = field(default_factory=dict)
    _known: dict[tuple[str, Need], Outcome] = field(default_factory=dict)
    _meeting: Meeting = field(init=False)

    def __post_init__(self) -> None:
        by_name: dict[str, list[Record]] = {}
        for record in self.records:
            by_name.setdefault(record.name, []).append(record)
        self._by_name = by_name
        self._meeting = Meeting(self.evidence, by_name)

    def alert(self, text: str) -> Outcome:
        """Whether a condition can hold."""
        read = tree(text)
        if isinstance(read, Problem):
            return Outcome(Verdict.CANNOT_FIRE, (Reason(Cause.MISSING, "", f"the expression {read.message}"),))
        return self._condition(read.root)

    def expression(self, text: str, need: Need) -> Outcome:
        """What a recorded expression gives."""
        known = self._known.get((text, need))
        if known is None:
            self._known[text, need] = _NEVER  # a record that reads itself has no beginning
            read = tree(text)
            known = (
                Outcome(Verdict.CANNOT_FIRE, (Reason(Cause.MISSING, "", f"the expression {read.message}"),))
                if isinstance(read, Problem)
                else self._at(read.root, need)
            )
            self._known[text, need] = known
        return known

    def _condition(self, node: Node) -> Outcome:
        """A condition at the top: set operators join conditions; can a comparison's left side get there?"""
        match node:
            case Binary(operator="or"):
                return any_of(self._condition(node.left), self._condition(node.right))
            case Binary(operator="and"):
                return self._met(node, all_of(self._condition(node.left), self._condition(node.right)))
            case Binary(operator="unless"):
                return self._condition(node.left)
            case Binary() if node.compares and not node.as_bool:
                if constant(node.left) is not None:
                    return self._at(node.right, Need.EXISTS)
                bound = constant(node.right)
                rises = node.operator in (">", ">=", "!=") or (node.operator == "==" and bound != 0)
                zero_is_enough = node.operator == ">=" and bound is not None and bound <= 0
                left = self._at(node.left, Need.RISES if rises and not zero_is_enough else Need.EXISTS)
                return left if bound is not None else self._met(node, all_of(left, self._at(node.right, Need.EXISTS)))
            case Aggregate() if node.operator not in ("count", "group"):
                return self._condition(node.expr)
            case Call() if node.function in ("label_replace", "label_join"):
                return self._condition(node.args[0])
        return self._at(node, Need.EXISTS)

    def _at(self, node: Node, need: Need) -> Outcome:
        value = constant(node)
        if value is not None:
            return _NEVER if value == 0 and need is not Need.EXISTS else FINE
        match node:
            case Selector():
                return self._selector(node, need)
            case Subquery() | Negative():
                return self._at(node.expr, need)
            case Aggregate():
                return self._at(node.expr, Need.EXISTS if node.operator in ("count", "group") else need)
            case Call():
                return self._call(node, need)
            case Binary():
                return self._binary(node, need)
        return FINE

    def _selector(self, node: Selector, need: Need) -> Outcome:
        records = self._by_name.get(node.name)
        if records is None:
            exists, counted = self.evidence.look(node)
            return counted if need is Need.COUNTED else exists
        fitting = [
            record for record in records
            if all(fits(record.labels, matcher) for matcher in node.matchers if matcher.label in record.labels)
        ]  # fmt: skip
        return any_of(*(self.expression(record.expr.text, need) for record in fitting))

    def _call(self, node: Call, need: Need) -> Outcome:
        if node.function in _ABSENCE:
            # What is not there makes it fire; but what nobody looked at says nothing.
            inside = self._at(node.args[0], Need.EXISTS)
            return inside if inside.verdict is Verdict.NOT_LOOKED_AT else FINE
        if node.function == "histogram_quantile":
            return self._at(node.args[-1], Need.COUNTED)
        if node.function in ("label_replace", "label_join"):
            return self._at(node.args[0], need)
        vectors = [arg for arg in node.args if constant(arg) is None]
        return all_of(*(self._at(arg, need) for arg in vectors))

    def _binary(self, node: Binary, need: Need) -> Outcome:
        left, right = node.left, node.right
        if node.operator == "or":
            return any_of(self._at(left, need), self._at(right, need))
        if node.operator == "and":
            return self._met(node, all_of(self._at(left, need), self._condition(right)))
        if node.operator == "unless":
            return self._at(left, need)
        if node.compares:
            return self._filter(node)
        exist = self._met(node, all_of(self._at(left, Need.EXISTS), self._at(right, Need.EXISTS)))
        if need is Need.EXISTS:
            return exist
        if node.operator == "*" and 0 in (constant(left), constant(right)):
            return _NEVER
        if node.operator == "+":
            return all_of(exist, any_of(self._at(left, need), self._at(right, need)))
        if node.operator == "*":
            return all_of(exist, self._at(left, need), self._at(right, need))
        return all_of(exist, self._at(left, need))

    def _met(self, node: Binary, outcome: Outcome) -> Outcome:
        """``outcome`` of both sides, unless they have data that never meet."""
        if outcome.verdict not in (Verdict.CAN_FIRE, Verdict.NO_TRAFFIC):
            return outcome
        apart = self._meeting.apart(node)
        return outcome if apart is None else Outcome(Verdict.CANNOT_FIRE, (apart,))

    def _filter(self, node: Binary) -> Outcome:
        """A comparison inside an expression, such as a divisor's ``> 0``: what fails it is left out."""
        bound = constant(node.right)
        if node.as_bool or bound is None:
            return self._met(node, all_of(self._at(node.left, Need.EXISTS), self._at(node.right, Need.EXISTS)))
        above_zero = (node.operator == ">" and bound >= 0) or (node.operator == ">=" and bound > 0)
        return self._at(node.left, Need.COUNTED if above_zero else Need.EXISTS)


def all_of(*outcomes: Outcome) -> Outcome:
    """Everything is needed: the worst decides."""
    worst = max((outcome.verdict.rank for outcome in outcomes), default=0)
    verdict = list(Verdict)[worst]
    return Outcome(verdict, _reasons(outcome for outcome in outcomes if outcome.verdict is verdict))


def any_of(*outcomes: Outcome) -> Outcome:
    """One is enough: the best decides. But data that misleads stands in the way of what comes after it."""
    if any(outcome.verdict is Verdict.MISLEADS for outcome in outcomes):
        return Outcome(
            Verdict.MISLEADS, _reasons(outcome for outcome in outcomes if outcome.verdict is Verdict.MISLEADS)
        )
    best = min((outcome.verdict.rank for outcome in outcomes), default=Verdict.CANNOT_FIRE.rank)
    verdict = list(Verdict)[best]
    reasons = _reasons(outcome for outcome in outcomes if outcome.verdict is verdict)
    # That a name of another release is absent is no news beside why the name of this release is.
    news = tuple(reason for reason in reasons if reason.cause not in (Cause.REMOVED, Cause.COMES_LATER))
    return Outcome(verdict, news or reasons)


def _reasons(outcomes: Iterable[Outcome]) -> tuple[Reason, ...]:
    return tuple(dict.fromkeys(reason for outcome in outcomes for reason in outcome.reasons))
