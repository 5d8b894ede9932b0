"""Checks of an alert's condition as a whole: is there one, does it burn a budget, does it ask for absence?"""

from __future__ import annotations

from sre.metrics.types import Unit
from sre.monitoring.lint.known import SampleType
from sre.monitoring.lint.on_metrics import RATES
from sre.monitoring.lint.on_values import burn_threshold
from sre.monitoring.lint.subject import Role, Subject, comparison, number
from sre.monitoring.lint.tree import Aggregate, Binary, Call, Node, Selector, selectors_in, walk

_ABSENT = frozenset({"absent", "absent_over_time"})
_TOP = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})
_FINE_TO_MISS = frozenset({"up", "ALERTS", "scrape_duration_seconds"})


def check(subject: Subject) -> None:
    """Only alerts have a condition; the budget's arithmetic counts for records as well."""
    burns = [found for node, _ in subject.parsed.nodes if (found := burn_threshold(node)) is not None]
    for _, threshold in burns:
        if threshold is not None and threshold >= 1:
            subject.note(
                "expression/burn-factor", f"the threshold is {number(threshold)}: no error ratio exceeds 1", ">"
            )
    if subject.role is not Role.ALERT:
        return
    if not _has_condition(subject.parsed.root, subject):
        subject.note("alert/no-condition", "the expression holds no condition")
    if len(burns) >= 1:
        _burning(subject, burns)
    _absence(subject)
    _down(subject)
    _fragile(subject)


def _has_condition(node: Node, subject: Subject) -> bool:
    """Whether the expression returns series only where something is wrong."""
    match node:
        case Call(function="vector"):
            return True  # a dead man's switch fires always, and is meant to
        case Binary() if node.compares:
            return not node.as_bool
        case Binary(operator="or"):
            return _has_condition(node.left, subject) and _has_condition(node.right, subject)
        case Binary(operator="and" | "unless"):
            return True
        case Binary():
            return _has_condition(node.left, subject) or _has_condition(node.right, subject)
        case Call(function=function) if function in _ABSENT:
            return True
        case Call():
            return any(_has_condition(arg, subject) for arg in node.args)
        case Aggregate():
            return _has_condition(node.expr, subject)
        case Selector():
            record = subject.tools.names.records.get(node.name)
            return node.name == "ALERTS" or (record is not None and _compares(record.root))
    return False


def _compares(node: Node) -> bool:
    return isinstance(node, Binary) and (node.compares or node.operator in ("and", "unless"))


def _burning(subject: Subject, burns: list[tuple[Node, float | None]]) -> None:
    if subject.keep_firing_seconds:
        subject.report.add(
            "alert/keep-firing-for", subject.node, f"{subject.what}: a burn-rate alert with keep_firing_for"
        )
    for left, _ in burns:
        quantity = subject.tools.quantities.of(left)
        if quantity.quantile_of is not None or any(
            isinstance(one, Call) and one.function == "histogram_quantile" for one in walk(left)
        ):
            subject.note(
                "expression/quantile-in-burn", "holds a quantile against a burn threshold", "histogram_quantile"
            )
    if not any(_counts_events(subject, node) for node, _ in subject.parsed.nodes):
        subject.note("expression/low-traffic-guard", "burn-rate condition without a minimum of bad events")


def _counts_events(subject: Subject, node: Node) -> bool:
    """``increase(bad[1h]) >= 5``: an absolute number, not a share."""
    found = comparison(node)
    if found is None or found[1] not in (">", ">=") or found[2] <= 0:
        return False
    left = found[0]
    if any(isinstance(one, Binary) and one.operator == "/" for one in walk(left)):
        return False
    if subject.tools.quantities.of(left).unit in (Unit.RATIO, Unit.PERCENT):
        return False
    by_call = any(isinstance(one, Call) and one.function in RATES for one in walk(left))
    by_record = any(
        "increase" in selector.name or selector.name.split(":")[-1].startswith(("rate", "count"))
        for selector in selectors_in(left)
    )
    return by_call or by_record or any(isinstance(one, Call) and one.function == "sum_over_time" for one in walk(left))


def _absence(subject: Subject) -> None:
    for index, (node, _) in enumerate(subject.parsed.nodes):
        if not isinstance(node, Call) or node.function not in _ABSENT or not node.args:
            continue
        if subject.for_seconds is None or subject.for_seconds <= 0:
            subject.note("alert/absent-without-for", f"{node.function}() without for", node.function)
        elif subject.for_seconds < 2 * subject.report.options.scrape_interval_seconds:
            subject.note("alert/for-range", f"{node.function}() with a for below two scrape intervals", node.function)
        for selector in selectors_in(node.args[0]):
            if selector.name in _FINE_TO_MISS or not selector.name or _with_up(subject, index):
                continue
            metric = subject.tools.names.metric(selector.name)
            counter = subject.tools.names.type_of(selector.name) is SampleType.COUNTER
            if counter or (metric is not None and subject.tools.names.owned(selector.name)):
                subject.note(
                    "expression/absent-of-sli",
                    f"{node.function}({selector.name}) may be absent in peace",
                    selector.name,
                )


def _down(subject: Subject) -> None:
    """``sum(up) == 0``, while no linted rule asks whether there is any target."""
    if subject.absence_is_watched:
        return
    for node, _ in subject.parsed.nodes:
        found = comparison(node)
        if found is None or found[1] not in ("==", "<", "<="):
            continue
        summed = isinstance(found[0], Aggregate) and found[0].operator in ("sum", "count", "max")
        if summed and {selector.name for selector in selectors_in(found[0])} == {"up"} and not _per_target(found[0]):
            subject.note("expression/down-without-absent", "says nothing when no target is left", "up")


def _per_target(node: Node) -> bool:
    return isinstance(node, Aggregate) and "instance" in node.labels


def _with_up(subject: Subject, index: int) -> bool:
    """Whether an ``and`` above asks for a target that answers."""
    for below, above in subject.parsed.parents(index):
        if isinstance(above, Binary) and above.operator == "and":
            other = above.right if above.left is below else above.left
            if any(selector.name == "up" for selector in selectors_in(other)):
                return True
    return False


def _fragile(subject: Subject) -> None:
    for node, _ in subject.parsed.nodes:
        if isinstance(node, Aggregate) and node.operator in _TOP:
            subject.note("expression/fragile", f"{node.operator}() in an alert", node.operator)
        elif isinstance(node, Binary) and node.operator == "/" and not subject.for_seconds:
            left, right = _jobs(node.left), _jobs(node.right)
            if left and right and left.isdisjoint(right):
                subject.note(
                    "expression/fragile",
                    f"divides job {min(left)} by job {min(right)} without for", "/",
                )  # fmt: skip


def _jobs(node: Node) -> set[str]:
    return {
        matcher.value
        for selector in selectors_in(node)
        for matcher in selector.matchers
        if matcher.label == "job" and matcher.operator == "="
    }
