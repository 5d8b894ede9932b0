"""What Prometheus itself adds: whether a scrape worked, and the alerts it evaluates."""

from __future__ import annotations

from functools import partial

from sre.metrics.types import Exporter, Kind, Metric, Unit

JOB = "job"
INSTANCE = "instance"
ALERTNAME = "alertname"
ALERTSTATE = "alertstate"

_synthetic = partial(Metric, kind=Kind.GAUGE, exporter=Exporter.PROMETHEUS, untyped=True)

UP = _synthetic("up", help="1 where the last scrape worked.", labels=(JOB, INSTANCE), unit=Unit.STATE)
SCRAPE_DURATION = _synthetic(
    "scrape_duration_seconds", help="Duration of the last scrape.", labels=(JOB, INSTANCE), unit=Unit.SECONDS
)
SCRAPE_SAMPLES_SCRAPED = _synthetic(
    "scrape_samples_scraped", help="Samples that the target exposed.", labels=(JOB, INSTANCE)
)
SCRAPE_SAMPLES_KEPT = _synthetic(
    "scrape_samples_post_metric_relabeling", help="Samples left after relabelling.", labels=(JOB, INSTANCE)
)
SCRAPE_SERIES_ADDED = _synthetic("scrape_series_added", help="About how many series are new.", labels=(JOB, INSTANCE))
ALERTS = _synthetic(
    "ALERTS", help="1 per alert that is pending or firing; also has the alert's labels.",
    labels=(ALERTNAME, ALERTSTATE), unit=Unit.STATE, optional=True,
)  # fmt: skip
ALERTS_FOR_STATE = _synthetic(
    "ALERTS_FOR_STATE", help="When an alert became active; also has the alert's labels.", labels=(ALERTNAME,),
    unit=Unit.TIMESTAMP_SECONDS, optional=True,
)  # fmt: skip

PROMETHEUS_METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
