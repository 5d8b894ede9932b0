"""
The alert on an engine that hangs: requests are in flight and no step ends.

The engine's own gauges freeze in a hang, often at 0, and ``/health`` stays 200. So requests are counted outside:

- by the guard, who also knows each engine's steps (``sre_engine_*``): one engine is told from another. It is a hang if
  the guard calls it one, too: its limit is raised where long steps are usual, so that a pause of the threshold's length
  alone pages nobody;
- by the guard, and steps by Prometheus' own scrape of vLLM, where the guard says nothing of steps: no engine of the
  model steps;
- without a gateway, by the engine itself: finds those hangs whose last gauge was not 0.
"""

from __future__ import annotations

import math

from sre.metrics import own
from sre.monitoring import records_engine
from sre.monitoring.levels import INSTANCE, MODEL_NAME, NODE, POOL
from sre.monitoring.model import Alert, Dimension, Input, Scenario, Severity, Steady
from sre.monitoring.promql import (
    Expr,
    Selection,
    both,
    compare,
    either,
    max_by,
    over_time,
    plus,
    present_by,
    relabelled,
    seconds,
    sum_by,
    unless,
    with_node,
)
from sre.monitoring.series import series
from sre.settings.monitoring import MonitoringSettings

ENGINE_NAME = "engine"
_ENGINE = (NODE, MODEL_NAME, ENGINE_NAME)
_TOLD_SECONDS = 30
"""A hang counts for so long after its end, or four scrapes if that is longer: the guard ends it by a restart after half
a minute, before ``for`` is over and Alertmanager has waited for others of its group. So ``for`` only delays here; what
is a hang is decided before, by the guard's limit and the threshold."""


def hang_alert(selection: Selection, settings: MonitoringSettings) -> Alert:
    """Labels: node, model_name, and engine: its name at the guard, or its address."""
    age = selection.gauge(own.ENGINE_STEP_AGE_SECONDS)
    in_flight = selection.gauge(own.ENGINE_IN_FLIGHT)
    held = max(15, math.ceil(selection.scrape_interval_seconds))
    told = records_engine.at_least_four_scrapes(selection, _TOLD_SECONDS)
    stuck = both(
        both(
            compare(
                selection.over_time("max_over_time", own.ENGINE_STEP_AGE_SECONDS, told),
                ">", settings.thresholds.engine_stuck_seconds,
            ),
            compare(selection.over_time("max_over_time", own.ENGINE_HUNG, told), "==", 1),
        ),
        compare(selection.over_time("max_over_time", own.ENGINE_IN_FLIGHT, told), ">", 0),
    )  # fmt: skip
    of_guard = present_by(with_node(relabelled(stuck, MODEL_NAME, POOL)), *_ENGINE)
    knows_steps = sum_by(relabelled(age, MODEL_NAME, POOL), MODEL_NAME)
    counts = sum_by(relabelled(in_flight, MODEL_NAME, POOL), MODEL_NAME)

    recorded = {record.name: record() for record in records_engine.records(selection, settings)}
    window = records_engine.flat_window(selection)
    steps = recorded[f"engine:vllm_steps:increase{window}"]
    running = recorded["engine:vllm_requests_running:sum"]
    waiting = recorded["engine:vllm_requests_waiting:sum"]
    flat = compare(steps, "==", 0)
    # In flight during the whole window: a request that has just come may still step.
    busy_all_along = sum_by(
        relabelled(selection.over_time("min_over_time", own.ENGINE_IN_FLIGHT, window), MODEL_NAME, POOL), MODEL_NAME
    )
    nobody_steps = compare(max_by(steps, MODEL_NAME), "==", 0)
    of_both = unless(
        both(both(flat, compare(busy_all_along, ">", 0), MODEL_NAME), nobody_steps, MODEL_NAME), knows_steps, MODEL_NAME
    )
    busy = plus(over_time("min_over_time", running, window), over_time("min_over_time", waiting, window))
    of_engine = unless(both(flat, compare(busy, ">", 0)), counts, MODEL_NAME)
    return Alert(
        name="VllmEngineHung",
        expr=either(of_guard, _by_address(of_both), _by_address(of_engine)),
        for_=f"{held}s",
        severity=Severity.PAGE,
        dimension=Dimension.REQUEST,
        component="engine",
        summary="engine {{ $labels.engine }} of {{ $labels.model_name }} hangs: requests in flight, and no step ends",
        description=(
            "{{ $labels.engine }} on {{ $labels.node }} has requests of {{ $labels.model_name }} in flight and has"
            " finished no step since: its GPU or its engine core stands still. /health stays 200; clients wait."
        ),
        dashboard="sre-request",
        scenario=Scenario(
            (
                Input(
                    series(selection, own.ENGINE_STEP_AGE_SECONDS, instance="n1:9400", engine="e0", pool="m"),
                    Steady(settings.thresholds.engine_stuck_seconds * 2), Steady(0),
                ),
                Input(
                    series(selection, own.ENGINE_HUNG, instance="n1:9400", engine="e0", pool="m"), Steady(1), Steady(0),
                ),
                Input(
                    series(selection, own.ENGINE_IN_FLIGHT, instance="n1:9400", engine="e0", pool="m"),
                    Steady(3), Steady(3), Steady(0),
                ),
            ),
            fires_after=f"{2 * held + 30}s", resolves_after=f"{int(seconds(told)) + 60}s",
            labels={NODE: "n1", MODEL_NAME: "m", ENGINE_NAME: "e0"},
        ),
    )  # fmt: skip


def _by_address(expr: Expr) -> Expr:
    """The engine is called by its address: vLLM does not know our names."""
    return present_by(relabelled(expr, ENGINE_NAME, INSTANCE), *_ENGINE)
