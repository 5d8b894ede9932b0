"""
Records of cards: dcgm-exporter in both generations of names, else the guard's own reader.

A card that both see is counted once, by its UUID, and DCGM's values are taken. ``node`` differs between the two where
one is scraped by address and the other says its host name; the UUID does not. Copies of a series (time-slicing, pods,
MIG instances repeating the card's value) fall together in ``max by``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sre.metrics import dcgm, own
from sre.metrics.types import Metric, Unit
from sre.monitoring.levels import GPU, INSTANCE, NODE, UUID, XID
from sre.monitoring.model import Record
from sre.monitoring.promql import (
    Expr,
    Selection,
    among,
    both,
    compare,
    count_by,
    counted_by_value,
    either,
    either_on,
    holds,
    labelled,
    max_by,
    over_time,
    plus,
    quoted,
    ratio,
    relabelled,
    scaled,
    sum_by,
    with_node,
)

WINDOW = "5m"
XIDS_OF_THE_CARD = (48, 63, 64, 74, 79, 94, 95, 119, 120)
"""XIDs that tell of broken hardware or firmware: ECC, row remap, NVLink, off the bus, GSP."""
XIDS_OF_APPLICATIONS = (13, 31, 43)
"""XIDs that a program causes: faulty kernel, illegal address, stopped channel."""
XIDS_OF_ENDED_PROGRAMS = (45,)
"""Harmless: the driver cleans up after a program that ended, or that another XID ended."""
USUAL_THROTTLING = "sw_power_cap|sync_boost"
"""Reasons of lower clocks that are normal under full load."""
MEBIBYTE = 1024 * 1024


def card_records(selection: Selection) -> list[Record]:
    """Every record of cards; ``node:gpus:count`` follows the one it reads."""
    gauge = selection.gauge
    first = _Known(selection)

    def increase(metric: Metric, *matchers: str) -> Expr:
        return selection.increase(metric, WINDOW, *matchers)

    def rate(metric: Metric, *matchers: str) -> Expr:
        return selection.rate(metric, WINDOW, *matchers)

    def record(name: str, text: str, seen_by_dcgm: list[Expr], seen_by_us: Expr | None = None) -> Record:
        """``seen_by_dcgm``: each already one series per card; the first that has the card counts."""
        theirs = either(*seen_by_dcgm)
        return Record(f"gpu:{name}", theirs if seen_by_us is None else either_on(theirs, seen_by_us, UUID), text)

    temperature = record(
        "temperature:celsius",
        "Temperature of the core.",
        [_card(first(gauge, dcgm.GPU_TEMP_CELSIUS, dcgm.GPU_TEMP))],
        _own_card(gauge(own.GPU_TEMPERATURE)),
    )
    return [
        record(
            "utilization:ratio",
            "Share of time with a kernel running; of a card in MIG mode the busiest instance's engine activity.",
            [
                _card(first(gauge, dcgm.GPU_UTIL_RATIO, (dcgm.GPU_UTIL, _from_percent))),
                _card(first(gauge, dcgm.GR_ENGINE_UTIL_RATIO, dcgm.PROF_GR_ENGINE_ACTIVE)),
            ],
            _own_card(gauge(own.GPU_UTILIZATION)),
        ),
        record(
            "memory_used:ratio",
            "Memory in use; of a card in MIG mode the fullest instance's. The guard counts the driver's reserve too.",
            [_card(_memory_ratio(selection))],
            _own_card(gauge(own.GPU_MEMORY_USED)),
        ),
        record(
            "memory_used:bytes",
            "Memory in use, summed over MIG instances.",
            [_card_of_instances(first(gauge, dcgm.FB_USED_BYTES, (dcgm.FB_USED, _from_mebibytes)))],
            _own_card(gauge(own.GPU_MEMORY_USED_BYTES)),
        ),
        temperature,
        record(
            "memory_temperature:celsius",
            "Temperature of the memory; no series on cards without the sensor, which say 0.",
            [_card(compare(first(gauge, dcgm.MEMORY_TEMP_CELSIUS, dcgm.MEMORY_TEMP), ">", 0))],
            _own_card(compare(gauge(own.GPU_MEMORY_TEMPERATURE), ">", 0)),
        ),
        record(
            "power:watts",
            "Power drawn.",
            [_card(first(gauge, dcgm.BOARD_POWER_WATTS, dcgm.POWER_USAGE))],
            _own_card(gauge(own.GPU_POWER)),
        ),
        *_xids(selection),
        record(
            "nvlink:bytes_per_second",
            "Data over all NVLinks, both directions. DCGM's value is a rate already, and its old unit is disputed.",
            [_card(first(gauge, dcgm.NVLINK_THROUGHPUT, (dcgm.NVLINK_BANDWIDTH_TOTAL, _from_megabytes)))],
            replace(_summed(_own_card(rate(own.GPU_NVLINK_BYTES), own.DIRECTION)), unit=Unit.BYTES_PER_SECOND),
        ),
        record("nvlink_errors:rate5m", "NVLink recoveries, replays, CRC errors a second.", [_nvlink_errors(selection)]),
        record(
            "tensor_active:ratio",
            "Share of cycles in which the tensor pipe was active: what utilization hides.",
            [_card(first(gauge, dcgm.TENSOR_UTIL_RATIO, dcgm.PROF_PIPE_TENSOR_ACTIVE))],
        ),
        record(
            "ecc_uncorrected:increase5m",
            "Uncorrectable memory errors.",
            [_card(first(increase, dcgm.ECC_DBE_VOLATILE, dcgm.ECC_DBE_AGGREGATE))],
            _own_card(increase(own.GPU_ECC_UNCORRECTED)),
        ),
        record(
            "row_remap_failed:max",
            "1: a memory row could not be replaced.",
            [_card(first(gauge, dcgm.ROW_REMAP_FAILED, dcgm.ROW_REMAP_FAILURE))],
            _own_card(gauge(own.GPU_ROW_REMAP_FAILED)),
        ),
        record(
            "pcie_replays:rate5m",
            "PCIe packets sent again, a second.",
            [_card(first(rate, dcgm.PCIE_REPLAY, dcgm.PCIE_REPLAY_COUNTER))],
        ),
        Record(
            "gpu:throttled:max",
            _either_that_says_so(
                _card(first(increase, (dcgm.THERMAL_THROTTLE, _grows), (dcgm.THERMAL_VIOLATION, _grows))),
                _own_card(gauge(own.GPU_THROTTLED, f"reason!~{quoted(USUAL_THROTTLING)}")),
            ),
            "1 while heat (DCGM, the guard), a hardware brake or slowdown (the guard) holds the clocks down.",
        ),
        Record("node:gpus:count", count_by(temperature(), NODE), "Cards that tell their temperature."),
        Record(
            "instance:gpus:count",
            either(
                count_by(_card(first(gauge, dcgm.GPU_TEMP_CELSIUS, dcgm.GPU_TEMP), INSTANCE), NODE, INSTANCE),
                count_by(_own_card(gauge(own.GPU_TEMPERATURE), INSTANCE), NODE, INSTANCE),
            ),
            "The same by who is asked: whose answer it is that a node has no card left.",
        ),
    ]  # fmt: skip


Convert = Callable[[Expr], Expr]


class _Known:
    """``either`` of the alternatives that the chosen release has; a converter brings one to the others' unit."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def __call__(self, read: Callable[[Metric], Expr], *alternatives: Metric | tuple[Metric, Convert]) -> Expr:
        pairs = [(each, None) if isinstance(each, Metric) else each for each in alternatives]
        known = [pair for pair in pairs if self._selection.supports(pair[0])] or pairs
        return either(*(convert(read(metric)) if convert else read(metric) for metric, convert in known))


def _card(expr: Expr, *more: str) -> Expr:
    """One series per card (and per ``more``) of dcgm-exporter's."""
    return max_by(with_node(expr, dcgm.HOSTNAME_OLD, dcgm.HOSTNAME), NODE, GPU, UUID, *more)


def _own_card(expr: Expr, *more: str) -> Expr:
    """One series per card (and per ``more``) of the guard's."""
    return max_by(with_node(relabelled(expr, UUID, own.UUID)), NODE, GPU, UUID, *more)


def _summed(per_card_and_more: Expr) -> Expr:
    """The card's sum; copies have fallen together before, and are not counted twice."""
    return sum_by(per_card_and_more, NODE, GPU, UUID)


def _either_that_says_so(theirs: Expr, ours: Expr) -> Expr:
    """Of two states of a card 1 where one of them is 1: DCGM knows fewer reasons, and its 0 hides none of ours."""
    return either_on(either_on(replace(compare(theirs, "==", 1), condition=False), ours, UUID), theirs, UUID)


def _xids(selection: Selection) -> list[Record]:
    """
    The last XID, and the new ones by number: counted events, and changes of the last one.

    Changes are those of one source. Across sources an old XID would be new, each time the exporter comes back to a card
    that the guard saw meanwhile without one.
    """
    theirs = Record(
        "gpu:xid_of_dcgm:last",
        _card(_Known(selection)(selection.gauge, dcgm.XID_ERROR, dcgm.XID_ERRORS)),
        "Last XID as the exporter has it, 0 for none; keeps its value.",
    )
    ours = Record(
        "gpu:xid_of_guard:last",
        _own_card(selection.gauge(own.GPU_XID_LAST)),
        "Last XID as the guard has it, 0 for none; keeps its value.",
    )
    some = f'{XID}!="0"'
    # The count in the exporter's own window first, since a counter's first event is invisible.
    counted = either(
        selection.gauge(dcgm.EXP_XID_ERRORS_COUNT, some),
        selection.increase(dcgm.EXP_XID_ERRORS_TOTAL, WINDOW, some),
    )
    return [
        theirs,
        ours,
        Record(
            "gpu:xid:last",
            either_on(theirs(), ours(), UUID),
            "Last XID, 0 for none; keeps its value, so that only its changes tell of something new.",
        ),
        Record(
            "gpu_xid:events:increase5m",
            either_on(
                replace(compare(_card(counted, XID), ">", 0), condition=False),
                _own_card(selection.increase(own.GPU_XID_ERRORS, WINDOW, some), XID),
                UUID, XID,
            ),
            "XIDs where somebody counts them: sees the same one twice, and each of several at once.",
        ),
        Record(
            "gpu_xid:changed:count",
            either_on(_changed(theirs), _changed(ours), UUID, XID),
            f"1 for the last XID where it is another one than {WINDOW} ago, or was another one since.",
        ),
    ]  # fmt: skip


def _changed(last: Record) -> Expr:
    changed = compare(over_time("changes", last(), WINDOW), ">", 0)
    return counted_by_value(both(compare(last(), ">", 0), changed), XID, NODE, GPU, UUID)


def _card_of_instances(expr: Expr) -> Expr:
    """The sum of the card's MIG instances."""
    return _summed(_card(expr, dcgm.MIG_INSTANCE))


def _memory_ratio(selection: Selection) -> Expr:
    """The card's capacity does not match an instance's memory (labels differ): there used + free is the whole."""
    known = selection.supports
    alternatives = []
    if known(dcgm.FB_USED_BYTES):
        used, free = selection.gauge(dcgm.FB_USED_BYTES), selection.gauge(dcgm.FB_FREE_BYTES)
        alternatives += [ratio(used, selection.gauge(dcgm.FB_CAPACITY_BYTES)), ratio(used, plus(used, free))]
    if known(dcgm.FB_USED):
        used, free = selection.gauge(dcgm.FB_USED), selection.gauge(dcgm.FB_FREE)
        alternatives.append(ratio(used, plus(used, free)))
    return either(*alternatives)


def _nvlink_errors(selection: Selection) -> Expr:
    kinds: tuple[tuple[str, tuple[Metric, ...]], ...] = (
        ("recovery", (dcgm.NVLINK_RECOVERY, dcgm.NVLINK_RECOVERY_ERRORS)),
        ("replay", (dcgm.NVLINK_REPLAY, dcgm.NVLINK_REPLAY_ERRORS)),
        ("crc", (dcgm.NVLINK_CRC_ERROR, dcgm.NVLINK_CRC_DATA_ERRORS)),
    )
    first = _Known(selection)
    # Without a label of its own each kind would hide the next behind "or".
    every = either(
        *(
            labelled(first(lambda metric: selection.rate(metric, WINDOW), *metrics), "error", kind)
            for kind, metrics in kinds
        )
    )
    return _summed(_card(every, "error"))


def _from_percent(expr: Expr) -> Expr:
    return scaled(expr, 100, Unit.RATIO, divide=True)


def _from_mebibytes(expr: Expr) -> Expr:
    return scaled(expr, MEBIBYTE, Unit.BYTES)


def _from_megabytes(expr: Expr) -> Expr:
    return scaled(expr, 1_000_000, Unit.BYTES_PER_SECOND)


def _grows(expr: Expr) -> Expr:
    """Only whether it grows: old releases count microseconds, newer ones nanoseconds, the newest seconds."""
    return holds(expr, ">", 0)


def any_xid(xids: tuple[int, ...]) -> str:
    """Matcher of these XIDs."""
    return among(XID, *map(str, xids))


def other_xid() -> str:
    """Matcher of XIDs that are in no list."""
    listed = (*XIDS_OF_THE_CARD, *XIDS_OF_APPLICATIONS, *XIDS_OF_ENDED_PROGRAMS)
    return f'{XID}!~"{"|".join(map(str, sorted(listed)))}"'
