"""Checks of GPU metrics: XIDs that stay, utilisation that means nothing, cards that are seen several times."""

from __future__ import annotations

from collections.abc import Iterator

from sre.metrics.dcgm import CONTAINER, POD
from sre.metrics.types import Exporter, Unit
from sre.monitoring.lint.subject import Role, Subject, comparison
from sre.monitoring.lint.tree import Aggregate, Binary, Call, Node, Selector, children, selectors_in, walk

_XID_GAUGES = frozenset(
    {"DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR", "sre_gpu_xid_last", "gpu:xid:last", "gpu:xid_of_dcgm:last",
     "gpu:xid_of_guard:last"}
)  # fmt: skip
_UTILIZATION = frozenset({"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO", "gpu:utilization:ratio",
                          "sre_gpu_utilization_ratio"})  # fmt: skip
_MOMENTS = frozenset({"changes", "delta", "idelta", "increase", "rate", "irate"})
"""What tells of an event: it ends when the range has passed."""
_PER_POD = frozenset({POD, CONTAINER, f"exported_{POD}", f"exported_{CONTAINER}"})
_MEANINGLESS_SUMS = frozenset({Unit.RATIO, Unit.PERCENT, Unit.CELSIUS})
"""ratio-summed says it of these."""


def check(subject: Subject) -> None:
    """Every check of this module."""
    for node, _ in subject.parsed.nodes:
        if isinstance(node, Aggregate):
            _doubled(subject, node)
    if subject.role is Role.ALERT:
        _xid(subject)
        _xid_ends(subject)
        _utilization(subject)


def _doubled(subject: Subject, node: Aggregate) -> None:
    """A sum or count over DCGM's series as they are: one card may have several."""
    if node.operator not in ("sum", "count") or node.without or not _PER_POD.isdisjoint(node.labels):
        return
    for selector in _as_they_are(node.expr):
        metric = subject.tools.names.metric(selector.name)
        if metric is None or metric.exporter is not Exporter.DCGM:
            continue
        if node.operator == "sum" and metric.unit in _MEANINGLESS_SUMS:
            continue
        subject.note(
            "expression/device-doubled",
            f"{node.operator} of {selector.name}, which a card has several times under MIG and time slicing",
            selector.name,
        )
        return


def _as_they_are(node: Node) -> Iterator[Selector]:
    """Selectors whose series arrive one by one: no aggregation, and no join that needs them unique, stands between."""
    match node:
        case Selector():
            yield node
        case Aggregate():
            return
        case _:
            for child in children(node):
                yield from _as_they_are(child)


def _xid(subject: Subject) -> None:
    names = {selector.name for selector in subject.parsed.selectors()} & _XID_GAUGES
    if not names:
        return
    guarded = any(
        isinstance(node, Call)
        and node.function in ("changes", "delta", "idelta")
        and any(one.name in _XID_GAUGES for one in selectors_in(node))
        for node, _ in subject.parsed.nodes
    )
    compared = any(
        found is not None and any(one.name in _XID_GAUGES for one in selectors_in(found[0]))
        for found in (comparison(node) for node, _ in subject.parsed.nodes)
    )
    name = sorted(names)[0]
    if compared and not guarded:
        subject.note("expression/xid-latch", f"{name} keeps the last XID for ever", name)


def _xid_ends(subject: Subject) -> None:
    """An alert on the moment of an XID ends with the range, while the card is as broken as before."""
    if subject.keep_firing_seconds:
        return
    for root in _with_records(subject):
        for node in walk(root):
            if not isinstance(node, Call) or node.function not in _MOMENTS:
                continue
            inside = [one.name for one in selectors_in(node) if "xid" in one.name.lower()]
            if inside:
                message = f"{node.function}() of {inside[0]} ends with its range, and the alert with it"
                subject.note("alert/xid-keep-firing-for", message, node.function)
                return


def _with_records(subject: Subject) -> Iterator[Node]:
    """The expression, and those of the records it reads."""
    yield subject.parsed.root
    for selector in subject.parsed.selectors():
        record = subject.tools.names.records.get(selector.name)
        if record is not None:
            yield record.root


def _utilization(subject: Subject) -> None:
    for node, _ in subject.parsed.nodes:
        found = comparison(node)
        if found is None or found[1] not in (">", ">="):
            continue
        inside = sorted({selector.name for selector in selectors_in(found[0])} & _UTILIZATION)
        metric = subject.tools.names.metric(inside[0]) if inside else None
        percent = metric is not None and metric.exporter is Exporter.DCGM and not inside[0].endswith("_RATIO")
        if inside and found[2] >= (50 if percent and found[2] > 1 else 0.5):
            alone = not any(
                isinstance(one, Binary) and one.operator in ("and", "unless") for one, _ in subject.parsed.nodes
            )
            if alone:
                subject.note("expression/utilization-high", f"fires on high utilisation ({inside[0]})", inside[0])
