"""Series of scenarios, spelled as the selection's expressions ask for them: job, prefix and matchers included."""

from __future__ import annotations

from sre.metrics.prometheus import UP
from sre.metrics.types import Exporter, Metric
from sre.monitoring.promql import Selection, quoted


def series(selection: Selection, metric: Metric, part: str = "", **labels: str) -> str:
    """
    One series of ``metric`` that the selection matches, e.g. ``vllm:num_requests_running{job="vllm",…}``.

    Args:
        part: ``bucket``, ``sum`` or ``count`` of a histogram; default: the sample that carries the value.
    """
    sample = f"{metric.name}_{part}" if part else metric.sample
    own = {"job": selection.jobs[metric.exporter]} if metric.exporter in selection.jobs else {}
    return _series(selection.name(sample), {**own, **dict(selection.matchers), **labels})


def up(selection: Selection, exporter: Exporter, **labels: str) -> str:
    """``up`` of one of the exporter's targets."""
    own = {"job": selection.jobs.get(exporter, exporter.value)}
    return _series(UP.sample, {**own, **dict(selection.matchers), **labels})


def _series(name: str, labels: dict[str, str]) -> str:
    return name + (
        "{" + ",".join(f"{label}={quoted(value)}" for label, value in labels.items()) + "}" if labels else ""
    )
