"""Which labels the series of an expression can have, and which they surely have: followed through every operator."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sre.monitoring.lint.known import Names
from sre.monitoring.lint.tree import Aggregate, Binary, Call, Negative, Node, Number, Selector, String, Subquery

MAX_RECORD_DEPTH = 10


@dataclass(frozen=True, slots=True)
class Labels:
    """
    Label names of a vector.

    Attributes:
        may: Labels a series can have; None: any.
        must: Labels every series has.
        closed: ``may`` comes from an aggregation (certain), not only from the catalogue.
        of: Name of the metric or record that ``may`` comes from, for messages.
    """

    may: frozenset[str] | None
    must: frozenset[str] = frozenset()
    closed: bool = False
    of: str = ""

    def lacks(self, label: str) -> bool:
        """Whether no series can have it."""
        return self.may is not None and label not in self.may


ANY = Labels(None)
NONE = Labels(frozenset(), closed=True)
_ALWAYS = frozenset({"job", "instance"})
_KEEPING = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})


@dataclass(slots=True)
class LabelInference:
    """Infers labels; remembers records and nodes."""

    names: Names
    _records: dict[str, Labels]
    _nodes: dict[Node, Labels]

    def __init__(self, names: Names) -> None:
        self.names = names
        self._records = {}
        self._nodes = {}

    def record(self, name: str, depth: int) -> Labels:
        """Labels of a record that the linted files define; any where they do not."""
        if name in self._records:
            return self._records[name]
        recorded = self.names.records.get(name)
        if recorded is None or depth > MAX_RECORD_DEPTH:
            return ANY
        self._records[name] = ANY  # a record that uses itself
        found: Labels | None = None
        for definition in recorded.definitions:
            inner = self.of(definition.root, depth + 1)
            static = definition.static_labels
            may = None if inner.may is None else inner.may | static
            one = Labels(may, inner.must | static, inner.closed, name)
            found = one if found is None else _any_of(found, one)
        self._records[name] = found or ANY
        return self._records[name]

    def of(self, node: Node, depth: int = 0) -> Labels:
        """Labels of the vector that ``node`` returns; a scalar has none."""
        if node not in self._nodes:
            self._nodes[node] = self._of(node, depth)
        return self._nodes[node]

    def _of(self, node: Node, depth: int) -> Labels:
        match node:
            case Selector():
                return self._selector(node, depth)
            case Aggregate():
                return self._aggregate(node, depth)
            case Call():
                return self._call(node, depth)
            case Binary():
                return self._binary(node, depth)
            case Subquery() | Negative():
                return self.of(node.expr, depth)
        return NONE

    def _selector(self, node: Selector, depth: int) -> Labels:
        base = ANY
        if node.name in self.names.records:
            base = self.record(node.name, depth)
        else:
            metric = self.names.metric(node.name)
            if metric is not None and self.names.owned(node.name):
                must = _ALWAYS | (frozenset(metric.required_labels) & _ALWAYS)
                base = Labels(self.names.labels(node.name, metric), must, False, node.name)
        surely, may = set(base.must), base.may
        for matcher in node.matchers:
            if matcher.operator == "=" and matcher.value == "":
                surely.discard(matcher.label)
                may = None if may is None else may - {matcher.label}
            elif matcher.operator == "=" or (matcher.operator == "!=" and matcher.value == ""):
                surely.add(matcher.label)
        return Labels(may, frozenset(surely), base.closed, base.of or node.name)

    def _aggregate(self, node: Aggregate, depth: int) -> Labels:
        inner = self.of(node.expr, depth)
        if node.operator in _KEEPING:
            return inner
        labels = frozenset(node.labels)
        added: frozenset[str] = frozenset()
        if node.operator == "count_values" and isinstance(node.param, String):
            added = frozenset({node.param.value})
        if node.without:
            may = None if inner.may is None else (inner.may - labels) | added
            return Labels(may, (inner.must - labels) | added, inner.closed, inner.of)
        return Labels(labels | added, (inner.must & labels) | added, True, inner.of)

    def _call(self, node: Call, depth: int) -> Labels:
        name, args = node.function, node.args
        if name in ("vector", "time", "scalar", "pi"):
            return NONE
        if name in ("absent", "absent_over_time"):
            equal = frozenset(
                matcher.label
                for one in args
                if isinstance(one, Selector)
                for matcher in one.matchers
                if matcher.operator == "="
            )
            return Labels(equal, equal, True, "absent()")
        if name == "info" or not args:
            return ANY if args else NONE
        vector = args[-1] if name in ("histogram_quantile", "quantile_over_time", "histogram_fraction") else args[0]
        inner = self.of(vector, depth)
        if name in ("label_replace", "label_join") and len(args) > 1 and isinstance(args[1], String):
            target = args[1].value
            may = None if inner.may is None else inner.may | {target}
            must = inner.must | ({target} if self._sure(node, inner) else frozenset())
            return Labels(may, must, inner.closed, inner.of)
        if name.startswith("histogram_quantile"):
            may = None if inner.may is None else inner.may - {"le"}
            return Labels(may, inner.must - {"le"}, inner.closed, inner.of)
        return inner

    @staticmethod
    def _sure(node: Call, inner: Labels) -> bool:
        """Whether label_replace always sets its label: the source is always there, or a constant is written."""
        if node.function == "label_join":
            return any(isinstance(arg, String) and arg.value in inner.must for arg in node.args[3:])
        if len(node.args) == 5 and isinstance(node.args[2], String) and isinstance(node.args[4], String):
            constant = node.args[2].value != "" and "$" not in node.args[2].value
            return constant and bool(re.fullmatch(r"\(?\.\*\)?|", node.args[4].value))
        return False

    def _binary(self, node: Binary, depth: int) -> Labels:
        left, right = self.of(node.left, depth), self.of(node.right, depth)
        if is_scalar(node.left):
            return right if not is_scalar(node.right) else NONE
        if is_scalar(node.right):
            return left
        if node.operator in ("and", "unless"):
            must = left.must
            if node.operator == "and":
                must = must | (
                    right.must
                    if node.matching is None
                    else right.must & frozenset(node.matching)
                    if node.on
                    else right.must - frozenset(node.matching)
                )
            may = left.may
            return Labels(may, must, left.closed, left.of)
        if node.operator == "or":
            return _any_of(left, right)
        if node.group:
            many, one = (left, right) if node.group == "left" else (right, left)
            include = frozenset(node.include)
            may = None if many.may is None else many.may | include
            return Labels(may, many.must | (one.must & include), many.closed, many.of)
        both = _meet(left, right)
        must = left.must | right.must
        if node.matching is None:
            return Labels(both, must, left.closed or right.closed, left.of or right.of)
        labels = frozenset(node.matching)
        if node.on:
            return Labels(
                labels if both is None else labels & _either(left, right, labels), must & labels, True, left.of
            )
        may = None if left.may is None else left.may - labels
        return Labels(may, left.must - labels, left.closed, left.of)


def _any_of(left: Labels, right: Labels) -> Labels:
    """Series of one kind or the other."""
    may = None if left.may is None or right.may is None else left.may | right.may
    return Labels(may, left.must & right.must, left.closed and right.closed, left.of or right.of)


def _meet(left: Labels, right: Labels) -> frozenset[str] | None:
    if left.may is None:
        return right.may
    return left.may if right.may is None else left.may & right.may


def _either(left: Labels, right: Labels, labels: frozenset[str]) -> frozenset[str]:
    return (labels if left.may is None else left.may) & (labels if right.may is None else right.may)


def is_scalar(node: Node) -> bool:
    """Whether it returns a number rather than series."""
    match node:
        case Number() | String():
            return True
        case Negative():
            return is_scalar(node.expr)
        case Call():
            return node.function in ("scalar", "time", "pi")
        case Binary():
            return is_scalar(node.left) and is_scalar(node.right)
    return False
