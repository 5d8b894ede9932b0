"""The catalogue of signals and of our own metrics agrees with what uses it."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from sre.metrics import own, signals, vllm
from sre.metrics.types import Kind, Metric
from sre.settings.guard import DEFAULT_RULES, RuleSettings


def test_rules_may_name_exactly_the_signals_marked_for_rules() -> None:
    marked = {name for name, signal in signals.SIGNALS.items() if signal.rule}
    assert set(get_args(RuleSettings.model_fields["signal"].annotation)) == marked


def test_default_thresholds_lie_in_the_range_of_their_signal() -> None:
    for rule in DEFAULT_RULES:
        signal = signals.SIGNALS[rule.signal]
        assert signal.low is None or signal.low <= rule.threshold
        assert signal.high is None or rule.threshold <= signal.high


def test_every_engine_source_is_a_known_signal_of_an_engine() -> None:
    for source in signals.ENGINE_SOURCES:
        assert signals.SIGNALS[source.signal].scope is signals.Scope.ENGINE
        assert source.metrics


def test_the_state_that_means_awake_is_one_of_vllms() -> None:
    assert signals.VLLM_AWAKE in vllm.ENGINE_SLEEP_STATE.values
    assert vllm.ENGINE_SLEEP_STATE.labels[-1] == "sleep_state"


@pytest.mark.parametrize("metric", own.OWN_METRICS.values(), ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"sre_[a-z][a-z0-9_]*", metric.name)
    assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER)
    assert bool(metric.buckets) is (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert metric.help.endswith(".")
    assert len(set(metric.labels)) == len(metric.labels)
    for label in metric.labels:
        assert re.fullmatch(r"[a-z_]+", label)


def test_no_metric_is_declared_twice() -> None:
    declared = [value.name for value in vars(own).values() if isinstance(value, Metric)]
    assert len(declared) == len(set(declared))
