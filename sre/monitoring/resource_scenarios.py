"""What makes an alert of the resource dimension fire: series of a card, disk, interface or host; values as shown."""

from __future__ import annotations

from collections.abc import Mapping

from sre.metrics.types import Metric
from sre.monitoring.model import Input, Rising, Scenario, Steady
from sre.monitoring.promql import Selection
from sre.monitoring.series import series

CARD = {"node": "n1", "gpu": "0", "UUID": "GPU-1"}
DISK = {"node": "n1", "instance": "n1:9100", "device": "sda"}
NETWORK = {"node": "n1", "instance": "n1:9100", "device": "eth0"}
HOST = {"node": "n1", "instance": "n1:9100"}
_STEP_SECONDS = 30
"""Of what takes ten minutes and more to fire."""


def our_card(selection: Selection, metric: Metric, **labels: str) -> str:
    """A series of the guard on n1 about its card."""
    card = {"gpu": "0", "uuid": "GPU-1", "source": "nvml", "injected": "false", "instance": "n1:9401"}
    return series(selection, metric, **{**card, **labels})


def dcgm_card(selection: Selection, new: Metric, old: Metric, **labels: str) -> str:
    """A series of dcgm-exporter, scraped by address, about a card of n1; by its older name where that is in use."""
    card = {"gpu": "0", "UUID": "GPU-1", "Hostname": "n1", "instance": "10.0.0.7:9400"}
    return series(selection, old if selection.supports(old) else new, **{**card, **labels})


def card_scenario(
    source: str, firing: float, quiet: float, after: str, *, value: bool = False, resolves_after: str = "1m"
) -> Scenario:
    """A gauge of the card. Without traffic it stands at half of what it is when all is well."""
    shown = "" if not value else humanize(firing) if firing > 1 else humanize_percentage(firing)
    return Scenario(
        (Input(source, Steady(firing), Steady(quiet), idle=Steady(quiet / 2)),),
        fires_after=after, resolves_after=resolves_after, labels=CARD, value=shown,
    )  # fmt: skip


def card_errors_scenario(source: str, threshold: float) -> Scenario:
    return Scenario(
        (Input(source, Rising(threshold * 2 * _STEP_SECONDS), Rising(0)),),
        fires_after="16m", resolves_after="6m", labels=CARD, value=f"{threshold * 2:.2f}", interval=f"{_STEP_SECONDS}s",
    )  # fmt: skip


def host_scenario(inputs: tuple[tuple[str, float, float], ...], labels: Mapping[str, str], value: str) -> Scenario:
    """Counters: series, rate a second while firing, while quiet."""
    return Scenario(
        tuple(
            Input(source, Rising(firing * _STEP_SECONDS), Rising(quiet * _STEP_SECONDS))
            for source, firing, quiet in inputs
        ),
        fires_after="16m", resolves_after="6m", labels=labels, value=value, interval=f"{_STEP_SECONDS}s",
    )  # fmt: skip


def without_node(labels: Mapping[str, str]) -> dict[str, str]:
    return {label: value for label, value in labels.items() if label != "node"}


def share_above(share: float) -> float:
    """A share above this one, at the most 1."""
    return share + (1 - share) / 2


def humanize(value: float) -> str:
    """As ``humanize`` shows a number from 1 to 999."""
    return f"{value:.4g}"


def humanize_percentage(value: float) -> str:
    """As ``humanizePercentage`` shows it."""
    return f"{value * 100:.4g}%"


def humanize_duration(value: float) -> str:
    """As ``humanizeDuration`` shows less than a second."""
    return f"{value * 1000:.4g}ms"
