"""Checks of labels: does each label that is named exist, and do operands match?"""

from __future__ import annotations

from sre.metrics.types import Exporter
from sre.monitoring.lint.labels import Labels, is_scalar
from sre.monitoring.lint.subject import Subject
from sre.monitoring.lint.syntax import VARIABLE
from sre.monitoring.lint.tree import Aggregate, Binary, Call, Node, Selector, selectors_in

_MOVING = frozenset({"pod", "exported_pod", "Hostname", "hostname"})
_ALWAYS_FINE = frozenset({"__name__", "stand_in", "le", "quantile"})


def check(subject: Subject) -> None:
    """Labels that do not exist, were stripped, or differ between operands."""
    for node, _ in subject.parsed.nodes:
        match node:
            case Selector():
                _selector(subject, node)
            case Aggregate():
                _aggregate(subject, node)
            case Binary():
                _binary(subject, node)
            case Call(function="histogram_quantile"):
                _quantile(subject, node)


def _missing(subject: Subject, label: str, labels: Labels, where: str) -> None:
    """Report a label that ``labels`` lacks; certain after an aggregation, likely by the catalogue."""
    if label in _ALWAYS_FINE or not labels.lacks(label) or label.startswith("exported_") or VARIABLE.search(label):
        return
    if labels.closed:
        has = ", ".join(sorted(labels.may or ())) or "none"
        subject.note(
            "expression/label-stripped",
            f"{where} asks for label {label}, which {_origin(labels)} has lost (it has: {has})", label,
        )  # fmt: skip
        return
    metric = subject.tools.names.metric(labels.of)
    has = ", ".join(metric.labels) if metric is not None else ""
    subject.note(
        "expression/unknown-label",
        f"{where} asks for label {label}, which {_origin(labels)} does not have" + (f" (it has: {has})" if has else ""),
        label,
    )


def _origin(labels: Labels) -> str:
    return labels.of or "the expression"


def _selector(subject: Subject, node: Selector) -> None:
    if node.name in subject.tools.names.records:
        base = subject.tools.labels.record(node.name, 0)
    else:
        metric = subject.tools.names.metric(node.name)
        if metric is None:
            return
        base = Labels(subject.tools.names.labels(node.name, metric), of=node.name)
        if metric.exporter is Exporter.DCGM:
            for matcher in node.matchers:
                if matcher.label in _MOVING:
                    subject.note(
                        "expression/pod-or-hostname", f"{node.name} is selected by {matcher.label}", matcher.label
                    )
    for matcher in node.matchers:
        _missing(subject, matcher.label, base, f"{node.name}{{{matcher.label}{matcher.operator}…}}")


def _aggregate(subject: Subject, node: Aggregate) -> None:
    if not node.labels:
        return
    inner = subject.tools.labels.of(node.expr)
    word = "without" if node.without else "by"
    for label in node.labels:
        if label == "le" and inner.lacks("le"):
            continue  # quantile-without-le says it where it matters
        if node.without and inner.closed:
            continue  # it takes away what is gone already: needless, and harmless
        _missing(subject, label, inner, f"{node.operator} {word} ({label})")
    if node.without:
        return
    moving = [label for label in node.labels if label in _MOVING]
    if moving and _is_raw_dcgm(subject, node.expr, moving[0]):
        subject.note("expression/pod-or-hostname", f"DCGM's series are grouped by {moving[0]}", moving[0])


def _is_raw_dcgm(subject: Subject, node: Node, label: str) -> bool:
    metrics = [subject.tools.names.metric(selector.name) for selector in selectors_in(node)]
    return any(metric is not None and metric.exporter is Exporter.DCGM for metric in metrics) and not _sets(node, label)


def _sets(node: Node, label: str) -> bool:
    from sre.monitoring.lint.tree import String, walk

    return any(
        isinstance(one, Call)
        and one.function in ("label_replace", "label_join")
        and len(one.args) > 1
        and isinstance(one.args[1], String)
        and one.args[1].value == label
        for one in walk(node)
    )


def _quantile(subject: Subject, node: Call) -> None:
    inner = subject.tools.labels.of(node.args[-1])
    if inner.lacks("le") and inner.closed:
        subject.note(
            "expression/quantile-without-le", "histogram_quantile() of series without le", "histogram_quantile"
        )


def _binary(subject: Subject, node: Binary) -> None:
    if is_scalar(node.left) or is_scalar(node.right):
        return
    left, right = subject.tools.labels.of(node.left), subject.tools.labels.of(node.right)
    if node.on and node.matching is not None:
        for label in node.matching:
            for side, labels in (("left", left), ("right", right)):
                _missing(subject, label, labels, f"{node.operator} on ({label}), {side} side,")
    if node.group:
        one = right if node.group == "left" else left
        for label in node.include:
            _missing(subject, label, one, f"group_{node.group} ({label})")
    if node.on or node.operator == "or":
        return
    ignored = frozenset(node.matching or ())
    problem = _mismatch(left, right, ignored) or _mismatch(right, left, ignored)
    if problem is None and left.closed and right.closed and not node.group:
        problem = _unequal(left, right, ignored)
    if problem:
        subject.note("expression/label-mismatch", f"{node.operator}: {problem}", node.operator)


def _mismatch(one: Labels, other: Labels, ignored: frozenset[str]) -> str | None:
    """A label that every series of ``one`` has and none of ``other``."""
    if other.may is None or not other.closed:
        return None
    for label in sorted(one.must - ignored - {"__name__"}):
        if label not in other.may:
            has = ", ".join(sorted(other.may)) or "no label"
            return f"one side always has label {label}, the other has {has} only"
    return None


def _unequal(left: Labels, right: Labels, ignored: frozenset[str]) -> str | None:
    if left.may is None or right.may is None:
        return None
    first, second = left.may - ignored, right.may - ignored
    if first == second:
        return None
    return f"the left side has labels ({', '.join(sorted(first))}), the right side ({', '.join(sorted(second))})"
