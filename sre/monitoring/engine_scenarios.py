"""Series for the cases of alerts on engines: one instance of one model, spelled as the chosen release has them."""

from __future__ import annotations

import math

from sre.metrics import vllm
from sre.metrics.catalogue import variants
from sre.metrics.types import Exporter, Metric
from sre.monitoring.model import Input, Rising, Shape, Steady
from sre.monitoring.promql import Selection, number
from sre.monitoring.series import series

INSTANCE_OF_CASES = "n1:8000"
ENGINE_LABELS = {"node": "n1", "instance": INSTANCE_OF_CASES, "model_name": "m"}
"""Labels that a record of the level engine has in the cases."""
THE_ENGINE = "{{ $labels.instance }} ({{ $labels.model_name }})"
"""What annotations call an engine."""
STEP_SECONDS = 15
"""Step of the cases, unless a scenario says otherwise."""


def engine_series(selection: Selection, metric: Metric, part: str = "", **labels: str) -> str:
    """A series of the metric under the newest name that the release has."""
    newest = variants(metric, selection.versions.get(Exporter.VLLM))[0]
    own = {"model_name": "m"} if "model_name" in metric.labels else {}
    return series(selection, newest, part, **{"instance": INSTANCE_OF_CASES, **own, **labels})


def le(edge: float) -> str:
    """An edge as vLLM writes it: ``2.0``, ``0.5``."""
    text = number(edge)
    return text if "." in text else text + ".0"


SLOW_SHARE = 0.02
"""Of the observations while firing: the 99th percentile then stands in the middle between two edges, which has few
digits to round."""


def slow_histogram(selection: Selection, metric: Metric, threshold: float, per_step: float = 100) -> tuple[Input, ...]:
    """Two in a hundred fall between the threshold and the next edge while firing, all below the threshold else."""
    following = _following(selection, metric, threshold)

    def bucket(edge: str) -> str:
        return engine_series(selection, metric, "bucket", le=edge)

    every = Rising(per_step)
    return (
        Input(bucket(le(threshold)), firing=Rising(per_step * (1 - SLOW_SHARE)), quiet=every),
        Input(bucket(le(following)), firing=every, quiet=every),
        Input(bucket("+Inf"), firing=every, quiet=every),
    )


def shown_quantile(selection: Selection, metric: Metric, threshold: float) -> str:
    """The 99th percentile of ``slow_histogram`` while firing, as ``printf "%.4g"`` shows it."""
    return f"{(threshold + _following(selection, metric, threshold)) / 2:.4g}"


def _following(selection: Selection, metric: Metric, threshold: float) -> float:
    edges = selection.edges(metric)
    return edges[edges.index(selection.decidable(metric, threshold)) + 1]


def traffic(selection: Selection) -> Input:
    """Requests that end, four a second, whatever happens to them."""
    return Input(
        engine_series(selection, vllm.E2E_REQUEST_LATENCY, "count"), firing=Rising(60), quiet=Rising(60)
    )  # fmt: skip


def steady(series_text: str, firing: float, quiet: float, idle: float | None = None) -> Input:
    """A gauge; without traffic as when quiet, unless said otherwise."""
    shape: Shape | None = None if idle is None else Steady(idle)
    return Input(series_text, Steady(firing), Steady(quiet), shape)


def above(threshold: float) -> float:
    """A power of two above the threshold, 1 at least: exact in every sum."""
    return float(2 ** max(0, math.floor(math.log2(threshold)) + 1))


def below(threshold: float) -> float:
    """A power of two below the threshold: exact in every sum."""
    return float(2.0 ** (math.ceil(math.log2(threshold)) - 1))


def humanized(value: float) -> str:
    """As Prometheus' ``humanize`` shows a number of at least 1."""
    for prefix in ("", "k", "M", "G", "T"):
        if value < 1000:
            return f"{value:.4g}{prefix}"
        value /= 1000
    return f"{value:.4g}P"
