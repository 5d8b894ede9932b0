"""Alerts on cards. Every one carries ``node``, so that a card's fault can inhibit what its node's engines show."""

from __future__ import annotations

import math
from functools import partial

from sre.metrics import dcgm, own, vllm
from sre.metrics.types import Exporter
from sre.monitoring.levels import INSTANCE, NODE, UUID, XID
from sre.monitoring.model import Alert, Dimension, Input, Raw, Scenario, Severity, Steady
from sre.monitoring.promql import (
    Expr,
    Selection,
    both,
    compare,
    either,
    either_on,
    less_than,
    max_by,
    over_time,
    present_by,
    scaled,
    seconds,
    sum_by,
    unless,
    with_node,
)
from sre.monitoring.recorded import Recorded, of_machines, up_of
from sre.monitoring.records_engine import at_least_four_scrapes
from sre.monitoring.records_gpu import XIDS_OF_APPLICATIONS, XIDS_OF_THE_CARD, any_xid, other_xid
from sre.monitoring.resource_scenarios import (
    CARD,
    card_errors_scenario,
    card_scenario,
    dcgm_card,
    humanize_percentage,
    our_card,
    share_above,
)
from sre.monitoring.series import series, up
from sre.settings.monitoring import MonitoringSettings

_gpu = partial(Alert, dimension=Dimension.RESOURCE, component="gpu", dashboard="sre-resource")
_THE_CARD = "GPU {{ $labels.gpu }} of {{ $labels.node }}"
_TICKET = Severity.TICKET
MEMORY = "1h"
"""How long a card that was there is missed: so long also pages what was taken away on purpose."""


def gpu_alerts(selection: Selection, settings: MonitoringSettings) -> list[Alert]:
    recorded = of_machines(selection, settings)
    thresholds = settings.thresholds
    ours = partial(our_card, selection)
    theirs = partial(dcgm_card, selection)
    moment = at_least_four_scrapes(selection, 60)
    return [
        _gpu(
            "GpuXidFatal",
            _new_xid(recorded, any_xid(XIDS_OF_THE_CARD)),
            for_="0s",
            keep_firing_for="15m",
            severity=Severity.PAGE,
            summary=_THE_CARD + " reported XID {{ $labels.xid }}.",
            description="This XID tells of a fault of the card, its memory, links or firmware, not of a program. "
            "Requests on " + _THE_CARD + " ({{ $labels.UUID }}) hang or fail until it is reset or replaced.",
            scenario=Scenario(
                (Input(theirs(dcgm.XID_ERROR, dcgm.XID_ERRORS), Raw("0x10 79x9"), Steady(79), idle=Steady(0)),),
                fires_after="5m", resolves_after="22m", labels={**CARD, "xid": "79"},
            ),
        ),
        _gpu(
            "GpuXidApplication",
            _new_xid(recorded, any_xid(XIDS_OF_APPLICATIONS)),
            for_="0s",
            keep_firing_for="15m",
            severity=_TICKET,
            summary=_THE_CARD + " reported XID {{ $labels.xid }}, which a program causes.",
            description="A program on " + _THE_CARD + " ({{ $labels.UUID }}) made an illegal access or the like. "
            "The program fails, the card goes on. Repeated with several programs it is the card.",
            scenario=Scenario(
                (Input(ours(own.GPU_XID_LAST), Raw("0x10 31x9"), Steady(31), idle=Steady(0)),),
                fires_after="5m", resolves_after="22m", labels={**CARD, "xid": "31"},
            ),
        ),
        _gpu(
            "GpuXidOther",
            _new_xid(recorded, other_xid()),
            for_="0s",
            keep_firing_for="15m",
            severity=_TICKET,
            summary=_THE_CARD + " reported XID {{ $labels.xid }}, which no list of ours has.",
            description="Card, link, firmware, driver or program: NVIDIA's catalogue says which XID {{ $labels.xid }} "
            "tells of. " + _THE_CARD + " ({{ $labels.UUID }}) may need a reset before it fails.",
            scenario=Scenario(
                (Input(theirs(dcgm.XID_ERROR, dcgm.XID_ERRORS), Raw("0x10 140x9"), Steady(140), idle=Steady(0)),),
                fires_after="5m", resolves_after="22m", labels={**CARD, "xid": "140"},
            ),
        ),
        _gpu(
            "GpuLost",
            _lost(selection, recorded),
            for_="2m",
            severity=Severity.PAGE,
            summary="{{ $labels.node }} shows {{ $value | humanize }} GPUs, fewer than before.",
            description="A card of {{ $labels.node }} no longer answers: fallen off the bus, or taken away. "
            f"Some faults (XID 79, 119, 120) show only like this. Compared with the last {MEMORY}.",
            scenario=Scenario(
                (
                    Input(theirs(dcgm.GPU_TEMP_CELSIUS, dcgm.GPU_TEMP), Steady(40), Steady(40)),
                    Input(
                        theirs(dcgm.GPU_TEMP_CELSIUS, dcgm.GPU_TEMP, gpu="1", UUID="GPU-2"),
                        Raw("40x20 stale _x19"), Steady(40),
                    ),
                ),
                fires_after="10m", resolves_after="2m", labels={"node": "n1"}, value="1",
            ),
        ),
        _gpu(
            "GpuTemperatureHigh",
            compare(recorded("gpu:temperature:celsius"), ">", thresholds.gpu_temperature_celsius),
            for_="5m",
            severity=_TICKET,
            summary=_THE_CARD + " is at {{ $value | humanize }} °C.",
            description=_THE_CARD + " ({{ $labels.UUID }}) stays hot; soon it lowers its clocks, and latency rises. "
            "Look at fans, airflow and the neighbours' load.",
            scenario=card_scenario(
                ours(own.GPU_TEMPERATURE), thresholds.gpu_temperature_celsius + 3, 60, "7m", value=True
            ),
        ),
        _gpu(
            "GpuMemoryTemperatureHigh",
            compare(recorded("gpu:memory_temperature:celsius"), ">", thresholds.gpu_memory_temperature_celsius),
            for_="5m",
            severity=_TICKET,
            summary="The memory of " + _THE_CARD + " is at {{ $value | humanize }} °C.",
            description="The memory of " + _THE_CARD + " ({{ $labels.UUID }}) stays hot, though the core may be cool; "
            "decoding is bound by memory and slows down first.",
            scenario=card_scenario(
                ours(own.GPU_MEMORY_TEMPERATURE), thresholds.gpu_memory_temperature_celsius + 3, 60, "7m", value=True
            ),
        ),
        _gpu(
            "GpuMemoryNearlyFull",
            compare(recorded("gpu:memory_used:ratio"), ">", thresholds.gpu_memory_used_ratio),
            for_="10m",
            severity=_TICKET,
            summary=_THE_CARD + " has {{ $value | humanizePercentage }} of its memory in use.",
            description="The next allocation on " + _THE_CARD + " ({{ $labels.UUID }}) can fail and end the engine. "
            "vLLM takes a fixed share at its start: beyond it something else uses the card.",
            scenario=card_scenario(ours(own.GPU_MEMORY_USED), share_above(thresholds.gpu_memory_used_ratio), 0.5, "12m",
                                    value=True),
        ),
        _gpu(
            "GpuThrottled",
            compare(over_time("max_over_time", recorded("gpu:throttled:max"), moment), "==", 1),
            for_="10m",
            severity=_TICKET,
            summary=_THE_CARD + " runs with lowered clocks.",
            description="Heat or the power supply holds the clocks of " + _THE_CARD + " ({{ $labels.UUID }}) down; "
            "every request on it is slower. The usual power cap under full load is not counted.",
            scenario=card_scenario(
                ours(own.GPU_THROTTLED, reason="hw_thermal_slowdown"), 1, 0, "12m",
                resolves_after=f"{math.ceil(seconds(moment)) + 60}s",
            ),
        ),
        _gpu(
            "GpuEccUncorrected",
            compare(recorded("gpu:ecc_uncorrected:increase5m"), ">", 0),
            for_="0s",
            keep_firing_for="1h",
            severity=_TICKET,
            summary=_THE_CARD + " had an uncorrectable memory error.",
            description="Memory of " + _THE_CARD + " ({{ $labels.UUID }}) lost data; its program was ended. "
            "Drain and reset the card; row remapping then takes the row out of use.",
            scenario=Scenario(
                (Input(ours(own.GPU_ECC_UNCORRECTED), Raw("0x2 2x2"), Steady(2), idle=Steady(0)),),
                fires_after="5m", resolves_after="67m", labels=CARD, interval="1m",
            ),
        ),
        _gpu(
            "GpuRowRemapFailed",
            compare(recorded("gpu:row_remap_failed:max"), "==", 1),
            for_="1m",
            severity=_TICKET,
            summary=_THE_CARD + " could not replace a broken memory row.",
            description="No spare rows are left in " + _THE_CARD + " ({{ $labels.UUID }}). It is to be exchanged.",
            scenario=card_scenario(ours(own.GPU_ROW_REMAP_FAILED), 1, 0, "3m"),
        ),
        _gpu(
            "GpuNvlinkErrors",
            compare(recorded("gpu:nvlink_errors:rate5m"), ">", thresholds.gpu_nvlink_errors_per_second),
            for_="10m",
            severity=_TICKET,
            summary="NVLinks of " + _THE_CARD + " make {{ $value | printf \"%.2f\" }} errors a second.",
            description="Recoveries, replays and CRC errors slow down engines that spread over several cards. "
            "A link of " + _THE_CARD + " ({{ $labels.UUID }}) or its switch is bad.",
            scenario=card_errors_scenario(
                theirs(dcgm.NVLINK_REPLAY, dcgm.NVLINK_REPLAY_ERRORS), thresholds.gpu_nvlink_errors_per_second
            ),
        ),
        _gpu(
            "GpuPcieReplays",
            compare(recorded("gpu:pcie_replays:rate5m"), ">", thresholds.gpu_pcie_replays_per_second),
            for_="10m",
            severity=_TICKET,
            summary=_THE_CARD + " sends {{ $value | printf \"%.2f\" }} PCIe packets a second again.",
            description="The PCIe link of " + _THE_CARD + " ({{ $labels.UUID }}) is bad: riser, slot or signal. "
            "Transfers to and from the host are slower.",
            scenario=card_errors_scenario(
                theirs(dcgm.PCIE_REPLAY, dcgm.PCIE_REPLAY_COUNTER), thresholds.gpu_pcie_replays_per_second
            ),
        ),
        _gpu(
            "GpuIdleUnderLoad",
            both(
                compare(max_by(recorded("gpu:utilization:ratio"), NODE), "<", thresholds.gpu_idle_ratio),
                compare(sum_by(recorded("engine:vllm_requests_running:sum"), NODE), ">", 0),
                NODE,
            ),
            for_="10m",
            severity=_TICKET,
            summary="All GPUs of {{ $labels.node }} are idle while its engines have running requests.",
            description="The busiest card of {{ $labels.node }} is at {{ $value | humanizePercentage }}: the engines "
            "wait for something else (host, storage, network), or hang.",
            scenario=Scenario(
                (
                    Input(ours(own.GPU_UTILIZATION), Steady(thresholds.gpu_idle_ratio / 2), Steady(0.8),
                          idle=Steady(0)),
                    Input(
                        series(selection, vllm.REQUESTS_RUNNING, model_name="m", instance="n1:8000"),
                        Steady(3), Steady(3), idle=Steady(0),
                    ),
                ),
                fires_after="12m", resolves_after="1m", labels={"node": "n1"},
                value=humanize_percentage(thresholds.gpu_idle_ratio / 2),
            ),
        ),
        _gpu(
            "GpuMetricsMissing",
            unless(
                max_by(with_node(compare(up_of(selection, Exporter.DCGM), "==", 1)), NODE, INSTANCE),
                either(*(selection.gauge(metric) for metric in (dcgm.GPU_TEMP_CELSIUS, dcgm.GPU_TEMP))),
                INSTANCE,
            ),
            for_="15m",
            severity=Severity.INFO,
            summary="The exporter {{ $labels.instance }} answers and tells of no GPU.",
            description="Its metrics were renamed, its CSV leaves them out, or it sees no card. Alerts on the GPUs of "
            "{{ $labels.node }} cannot fire; sre rules verify says which.",
            scenario=Scenario(
                (
                    Input(up(selection, Exporter.DCGM, instance="n1:9400"), Steady(1), Steady(1)),
                    Input(theirs(dcgm.GPU_TEMP_CELSIUS, dcgm.GPU_TEMP, instance="n1:9400"),
                          Raw("_x69"), Steady(40)),
                ),
                fires_after="17m", resolves_after="1m", labels={"node": "n1", "instance": "n1:9400"},
            ),
        ),
    ]  # fmt: skip


def _new_xid(recorded: Recorded, one: str) -> Expr:
    """
    An XID that the matcher ``one`` selects was counted, or became the card's last one.

    Each is enough: what is counted stays counted when another XID follows, and not every exporter counts.
    """
    counted = compare(recorded("gpu_xid:events:increase5m", one), ">", 0)
    changed = compare(recorded("gpu_xid:changed:count", one), ">", 0)
    return either_on(counted, changed, UUID, XID)


def _lost(selection: Selection, recorded: Recorded) -> Expr:
    """
    A node shows fewer cards than before, 0 included, and one of its cards is seen by nobody.

    A node without its only card has no count. It shows none where somebody answers who saw cards there: the exporter,
    or the guard that says itself that there are none (one that cannot say is SreGpuReaderDown). Nobody answers of a
    node that is gone.
    """
    cards = recorded("gpu:temperature:celsius")
    gone = unless(over_time("max_over_time", cards, MEMORY), cards, UUID)
    guards = both(
        compare(selection.over_time("min_over_time", own.GPUS, MEMORY), "==", 0),
        compare(up_of(selection, Exporter.SRE), "==", 1),
        INSTANCE,
    )
    exporters = compare(up_of(selection, Exporter.DCGM), "==", 1)
    answering = either(present_by(exporters, INSTANCE), present_by(guards, INSTANCE))
    asked = over_time("max_over_time", recorded("instance:gpus:count"), MEMORY)
    none = max_by(both(scaled(asked, 0, asked.unit), answering, INSTANCE), NODE)
    counted = recorded("node:gpus:count")
    fewer = less_than(either(counted, none), over_time("max_over_time", counted, MEMORY))
    return both(fewer, gone, NODE)
