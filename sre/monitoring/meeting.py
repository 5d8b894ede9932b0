"""
Whether the two sides of a join ever meet: which values their labels have in a Prometheus, followed through records.

A join whose sides share no value of the labels they are matched by is empty, though each side has series: the cards
are those of node ``gpu-1``, the engines those of node ``10.0.0.1``. Only what is seen whole is judged: not a name that
was sampled, not what comes with its first event, not a job of which a target is down.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from sre.metrics.catalogue import CATALOGUE
from sre.monitoring.evidence import Cause, Evidence, Reason, Verdict
from sre.monitoring.lint.labels import is_scalar
from sre.monitoring.lint.syntax import Parsed, Problem, parse
from sre.monitoring.lint.tree import (
    Aggregate,
    Binary,
    Call,
    Matcher,
    Negative,
    Node,
    Selector,
    String,
    Subquery,
    selectors_in,
)
from sre.monitoring.model import Record
from sre.monitoring.promql import LE
from sre.monitoring.seen import fits

Key = tuple[str, ...]
"""Values of some labels, in the order of their names; "" where a series lacks one."""
Keys = frozenset[Key]

_KEEPING = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})
_UNKNOWN = frozenset({"absent", "absent_over_time", "info"})
_WITHOUT_SERIES = frozenset({"vector", "time", "pi"})
_REFERENCE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})")
_SHOWN = 3


@lru_cache(maxsize=4096)
def tree(text: str) -> Parsed | Problem:
    """The expression, read once."""
    return parse(text)


@dataclass(slots=True)
class Meeting:
    """Judges joins against what a Prometheus has. Answers are remembered."""

    evidence: Evidence
    records: Mapping[str, Sequence[Record]]
    _known: dict[tuple[Node, Key], Keys | None] = field(default_factory=dict)

    def apart(self, node: Binary) -> Reason | None:
        """Why the sides of a join never meet; None where they do, or where that is not known."""
        if not self.evidence.seen.prometheus or is_scalar(node.left) or is_scalar(node.right):
            return None
        labels = self._matched_by(node)
        if not labels:
            return None
        left, right = self._keys(node.left, labels), self._keys(node.right, labels)
        if not left or not right or not left.isdisjoint(right):
            return None
        names = [next((one.name for one in selectors_in(side)), "") for side in (node.left, node.right)]
        sides = [f"{_listed(labels, keys)} ({name})" for name, keys in zip(names, (left, right), strict=True)]
        text = (
            f"its two sides are matched by ({', '.join(labels)}) and share no value: {sides[0]} against {sides[1]};"
            f" give the targets of both jobs the same {' and '.join(labels)}, by relabel_configs"
        )
        return Reason(Cause.APART, names[0], text)

    # ---- Labels ---------------------------------------------------------------------------------------------------

    def _matched_by(self, node: Binary) -> Key | None:
        """Labels that decide whether two series meet; None where any label may."""
        if node.on:
            return tuple(sorted(node.matching or ()))
        left, right = self._closed(node.left), self._closed(node.right)
        if left is None or right is None:
            return None
        return tuple(sorted((left | right) - frozenset(node.matching or ())))

    def _closed(self, node: Node, depth: int = 0) -> frozenset[str] | None:
        """All labels that a series of it can have, as far as the expression itself says."""
        match node:
            case Subquery() | Negative():
                return self._closed(node.expr, depth)
            case Aggregate() if node.operator in _KEEPING:
                return self._closed(node.expr, depth)
            case Aggregate() if not node.without and node.operator != "count_values":
                return frozenset(node.labels)
            case Call(function="label_replace" | "label_join", args=(inner, String(value=target), *_)):
                found = self._closed(inner, depth)
                return None if found is None else found | {target}
            case Call() if (argument := _vector(node)) is not None:
                found = self._closed(argument, depth)
                return None if found is None else found - {LE} if "histogram" in node.function else found
            case Selector() if node.name in self.records and depth < 5:
                every = {self._closed_record(record, depth + 1) for record in self.records[node.name]}
                return every.pop() if len(every) == 1 else None
            case Binary():
                return self._closed_pair(node, depth)
        return None

    def _closed_record(self, record: Record, depth: int) -> frozenset[str] | None:
        read = tree(record.expr.text)
        found = None if isinstance(read, Problem) else self._closed(read.root, depth)
        return None if found is None else found | frozenset(record.labels)

    def _closed_pair(self, node: Binary, depth: int) -> frozenset[str] | None:
        if is_scalar(node.left) or is_scalar(node.right):
            return self._closed(node.right if is_scalar(node.left) else node.left, depth)
        left, right = self._closed(node.left, depth), self._closed(node.right, depth)
        if node.operator in ("and", "unless"):
            return left
        if node.operator == "or":
            return left if left == right else None
        if node.group:
            many = left if node.group == "left" else right
            return None if many is None else many | frozenset(node.include)
        if node.on:
            return frozenset(node.matching or ())
        return None if left is None else left - frozenset(node.matching or ())

    # ---- Values ---------------------------------------------------------------------------------------------------

    def _keys(self, node: Node, labels: Key) -> Keys | None:
        """Values of ``labels`` among the series of ``node``; None where they are not known."""
        if (node, labels) not in self._known:
            self._known[node, labels] = None  # what reads itself has no beginning
            self._known[node, labels] = self._find(node, labels)
        return self._known[node, labels]

    def _find(self, node: Node, labels: Key) -> Keys | None:
        match node:
            case Selector():
                return self._selected(node, labels)
            case Subquery() | Negative():
                return self._keys(node.expr, labels)
            case Aggregate():
                return self._aggregated(node, labels)
            case Call():
                return self._called(node, labels)
            case Binary():
                return self._joined(node, labels)
        return None

    def _selected(self, node: Selector, labels: Key) -> Keys | None:
        asked = tuple(sorted({*labels, *(matcher.label for matcher in node.matchers)}))
        found: set[Key] = set()
        if node.name in self.records:
            for record in self.records[node.name]:
                keys = self._recorded(record, asked)
                if keys is None:
                    return None
                found |= keys
            fitting = (key for key in found if _fits(dict(zip(asked, key, strict=True)), node.matchers))
            return frozenset(_picked(key, asked, labels) for key in fitting)
        if not self._seen_whole(node.name):
            return None
        series = [one.labels for one in self.evidence.seen.fleet.get(node.name, ()) if _fits(one.labels, node.matchers)]
        if not series:
            never = self.evidence.look(node)[0].verdict is Verdict.CANNOT_FIRE
            return frozenset() if never else None
        return frozenset(tuple(one.get(label, "") for label in labels) for one in series)

    def _seen_whole(self, name: str) -> bool:
        seen = self.evidence.seen
        metric = CATALOGUE.by_sample(name, self.evidence.prefix)
        if name in seen.sampled or name in seen.pages or metric is None or metric.late:
            return False
        return not any(down.job == self.evidence.job(metric.exporter) for down in seen.down)

    def _recorded(self, record: Record, labels: Key) -> Keys | None:
        read = tree(record.expr.text)
        inner = tuple(label for label in labels if label not in record.labels)
        keys = None if isinstance(read, Problem) else self._keys(read.root, inner)
        if keys is None:
            return None
        return frozenset(_made(labels, {**dict(zip(inner, key, strict=True)), **record.labels}) for key in keys)

    def _aggregated(self, node: Aggregate, labels: Key) -> Keys | None:
        if node.operator == "count_values":
            return None
        if node.operator in _KEEPING:
            return self._keys(node.expr, labels)
        return self._kept(node.expr, labels, [label for label in labels if (label in node.labels) is not node.without])

    def _kept(self, node: Node, labels: Key, kept: Iterable[str]) -> Keys | None:
        """Values of ``node``'s series where only the labels ``kept`` are left."""
        left = tuple(sorted(kept))
        keys = self._keys(node, left)
        return None if keys is None else frozenset(_made(labels, dict(zip(left, key, strict=True))) for key in keys)

    def _called(self, node: Call, labels: Key) -> Keys | None:
        if node.function in _WITHOUT_SERIES:
            return frozenset({tuple("" for _ in labels)})
        if node.function in _UNKNOWN:
            return None
        if node.function in ("label_replace", "label_join"):
            return self._relabelled(node, labels)
        inner = _vector(node)
        if inner is None:
            return None
        if "histogram" in node.function:
            return self._kept(inner, labels, [label for label in labels if label != LE])
        return self._keys(inner, labels)

    def _relabelled(self, node: Call, labels: Key) -> Keys | None:
        inner, *rest = node.args
        texts = [one.value for one in rest if isinstance(one, String)]
        if len(texts) != len(rest) or len(texts) < 2:
            return None
        target, sources = texts[0], texts[2:3] if node.function == "label_replace" else texts[2:]
        if target not in labels:
            return self._keys(inner, labels)
        asked = tuple(sorted({*labels, *sources}))
        keys = self._keys(inner, asked)
        if keys is None:
            return None
        found = set()
        for key in keys:
            values = dict(zip(asked, key, strict=True))
            if node.function == "label_join":
                values[target] = texts[1].join(values[source] for source in sources)
            else:
                try:
                    match = re.fullmatch(texts[3], values[sources[0]], re.DOTALL)
                    values[target] = values[target] if match is None else _expanded(texts[1], match)
                except (re.error, IndexError):  # RE2 knows what Python does not
                    return None
            found.add(_made(labels, values))
        return frozenset(found)

    def _joined(self, node: Binary, labels: Key) -> Keys | None:
        if is_scalar(node.left) or is_scalar(node.right):
            return self._keys(node.right if is_scalar(node.left) else node.left, labels)
        if node.operator == "or":
            left, right = self._keys(node.left, labels), self._keys(node.right, labels)
            return None if left is None or right is None else left | right
        if node.operator in ("and", "unless"):
            return self._keys(node.left, labels)
        if node.group:
            if not set(node.include).isdisjoint(labels):
                return None
            return self._keys(node.left if node.group == "left" else node.right, labels)
        matching = frozenset(node.matching or ())
        return self._kept(node.left, labels, [label for label in labels if (label in matching) is node.on])


def _vector(node: Call) -> Node | None:
    """The argument whose series a function works on."""
    return next((one for one in node.args if not isinstance(one, String) and not is_scalar(one)), None)


def _fits(labels: Mapping[str, str], matchers: Iterable[Matcher]) -> bool:
    return all(fits(labels, matcher) for matcher in matchers)


def _picked(key: Key, names: Key, labels: Key) -> Key:
    return _made(labels, dict(zip(names, key, strict=True)))


def _made(labels: Key, values: Mapping[str, str]) -> Key:
    return tuple(values.get(label, "") for label in labels)


def _expanded(template: str, match: re.Match[str]) -> str:
    """Go's ``$1``, ``${1}`` and ``${name}``; what there is no group of is nothing."""

    def one(reference: re.Match[str]) -> str:
        name = reference[1] or reference[2]
        if name is None:
            return "$"
        group: int | str = int(name) if name.isdigit() else name
        try:
            return match[group] or ""
        except IndexError:
            return ""

    return _REFERENCE.sub(one, template)


def _listed(labels: Key, keys: Keys) -> str:
    """A few of the values: ``node a, b``; of several labels ``{node=a, gpu=0}``."""
    shown = sorted(keys)[:_SHOWN]
    if len(labels) == 1:
        text = f"{labels[0]} " + ", ".join(key[0] or '""' for key in shown)
    else:
        text = ", ".join("{" + ", ".join(f"{k}={v}" for k, v in zip(labels, key, strict=True)) + "}" for key in shown)
    return text + (f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else "")
