"""Typed PromQL: what is wrong is refused with a reason, and what comes out is PromQL whatever goes in."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import promql_parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.metrics import dcgm, own, vllm
from sre.metrics.catalogue import CATALOGUE
from sre.metrics.types import Exporter, Kind, Metric, Unit
from sre.monitoring import promql
from sre.monitoring.expression_layout import laid_out
from sre.monitoring.promql import (
    Expr,
    ExpressionError,
    Selection,
    among,
    at_least,
    avg_by,
    both,
    chosen,
    compare,
    either,
    equal_to_each,
    evaluated_at,
    le_matcher,
    max_by,
    minus,
    number,
    on_each,
    one_minus,
    or_zero,
    over_time,
    plus,
    present_by,
    quantile,
    quoted,
    ratio,
    relabelled,
    scaled,
    seconds,
    sum_by,
    unless,
    with_node,
)

ANY = Selection()
JOBS = Selection(jobs={Exporter.VLLM: "vllm"}, matchers=(("cluster", "a"),))
finite = st.floats(allow_nan=False, allow_infinity=False).map(lambda value: float(f"{value:.14g}"))
"""Numbers of as many digits as a person may write."""


# ---- Texts ----------------------------------------------------------------------------------------------------------


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_plain_and_reads_back_as_itself(value: float) -> None:
    text = number(value)
    assert re.fullmatch(r"-?\d+(\.\d+)?", text)
    assert float(text) == value


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e9, places=12))
def test_a_decimal_keeps_every_digit(value: Decimal) -> None:
    assert Decimal(number(value)) == value


def test_numbers_are_written_as_people_do() -> None:
    assert [number(v) for v in (0.001, 14.4, 1e-7, 100.0, Decimal("0.0144"), Decimal("1E+2"), 5)] == [
        "0.001", "14.4", "0.0000001", "100", "0.0144", "100", "5",
    ]  # fmt: skip
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(ExpressionError, match="is no finite number"):
            number(value)
    with pytest.raises(ExpressionError, match="compute it in Decimal"):
        chosen(0.1 * 0.2)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_becomes_a_string_literal_that_means_it(text: str) -> None:
    parsed = promql_parser.parse(f"x{{a={quoted(text)}}}")
    assert isinstance(parsed, promql_parser.VectorSelector)
    (matcher,) = parsed.matchers.matchers
    assert matcher.value == text


def test_durations() -> None:
    assert seconds("1h30m") == 5400
    assert seconds("250ms") == 0.25
    for wrong in ("", "5", "m", "5 m", "-5m", "5y"):
        with pytest.raises(ExpressionError, match="is no duration; write it like 5m"):
            seconds(wrong)


@pytest.mark.parametrize("spelled", ["1", "1.0"])
def test_a_whole_edge_is_matched_as_either_client_library_writes_it(spelled: str) -> None:
    pattern = re.fullmatch(r'le=~"(.*)"', le_matcher(1.0))
    assert pattern is not None
    assert re.fullmatch(pattern[1].replace("\\\\", "\\"), spelled)
    assert not re.fullmatch(pattern[1].replace("\\\\", "\\"), "10")
    assert le_matcher(0.1) == 'le="0.1"'


# ---- What is refused ------------------------------------------------------------------------------------------------


def running() -> Expr:
    return ANY.gauge(vllm.REQUESTS_RUNNING)


def usage() -> Expr:
    return ANY.gauge(vllm.KV_CACHE_USAGE)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "rate of a gauge": (lambda: ANY.rate(vllm.REQUESTS_RUNNING, "5m"), "is a gauge; rate() is for counters"),
    "value of a counter": (lambda: ANY.gauge(vllm.PREEMPTIONS), "take rate() or increase() of it"),
    "rate of a rate": (
        lambda: ANY.rate(dcgm.NVLINK_BANDWIDTH_TOTAL, "5m"),
        "typed as a counter but is a rate already; use its value",
    ),
    "histogram without part": (lambda: ANY.rate(vllm.E2E_REQUEST_LATENCY, "5m"), "part '' does not fit it"),
    "part of a counter": (lambda: ANY.rate(vllm.PREEMPTIONS, "5m", part="sum"), "part 'sum' does not fit it"),
    "label it lacks": (lambda: ANY.gauge(vllm.REQUESTS_RUNNING, pool="a"), "has no label pool; it has model_name"),
    "range of less than four scrapes": (
        lambda: replace(ANY, scrape_interval_seconds=30.0).rate(vllm.PREEMPTIONS, "1m"),
        "range [1m] is shorter than 4 scrape intervals (120s)",
    ),
    "function over time that is none": (
        lambda: ANY.over_time("stddev_over_time", vllm.REQUESTS_RUNNING, "5m"),
        "stddev_over_time is not among",
    ),
    "maximum of a counter": (
        lambda: ANY.over_time("max_over_time", vllm.PREEMPTIONS, "5m"),
        "max_over_time of a counter (vllm:num_preemptions) means nothing",
    ),
    "edge that is none": (
        lambda: ANY.below_edge(vllm.E2E_REQUEST_LATENCY, 0.65, "5m"),
        "0.65 is no bucket edge of vllm:e2e_request_latency_seconds; the nearest that can decide is 0.5",
    ),
    "first edge": (
        lambda: ANY.below_edge(vllm.E2E_REQUEST_LATENCY, 0.3, "5m"),
        "0.3 is the first or the last bucket edge of vllm:e2e_request_latency_seconds; the nearest that can decide is"
        " 0.5",
    ),
    "sum of ratios": (lambda: sum_by(usage(), "model_name"), "a sum of ratio means nothing"),
    "aggregation by a label that is gone": (
        lambda: max_by(max_by(usage(), "model_name"), "engine"),
        "has no label engine to aggregate by",
    ),
    "division of unequal labels": (
        lambda: ratio(sum_by(running(), "model_name"), sum_by(running(), "instance")),
        "unequal labels in a division",
    ),
    "or of unequal units": (lambda: either(running(), usage()), "requests or ratio in one series"),
    "zeros like another label set": (
        lambda: or_zero(sum_by(running(), "model_name"), sum_by(running(), "instance")),
        "unequal labels",
    ),
    "difference of unequal units": (lambda: minus(running(), usage()), "units or labels differ"),
    "value on series without its labels": (
        lambda: on_each(present_by(running(), "instance"), sum_by(running(), "model_name"), "model_name"),
        "cannot be put on",
    ),
    "equality with more than one series": (
        lambda: equal_to_each(running(), sum_by(running(), "instance"), "model_name"),
        "cannot be held against",
    ),
    "time of a value": (lambda: evaluated_at(running()), "is a requests; take present_by of it"),
    "quantile in per cent": (
        lambda: quantile(99, ANY.rate(vllm.E2E_REQUEST_LATENCY, "5m", part="bucket"), "instance"),
        "quantile 99 is not between 0 and 1",
    ),
    "not equal": (lambda: compare(usage(), "!=", 0), "!= is no comparison for an alert"),
    "per cent held against a ratio": (lambda: compare(usage(), ">", 95), "never holds: a ratio lies in 0..1"),
    "more than everything": (lambda: compare(usage(), ">", 1), "never holds"),
    "less than nothing": (lambda: compare(usage(), "<", 0), "never holds"),
    "and of unequal labels": (
        lambda: both(sum_by(running(), "model_name"), sum_by(running(), "instance")),
        "'and' of unequal label sets is empty",
    ),
    "and on a label that one side lacks": (
        lambda: both(sum_by(running(), "model_name"), sum_by(running(), "instance"), "model_name"),
        "label model_name is not on both sides of 'and'",
    ),
    "range of an expression": (
        lambda: over_time("max_over_time", sum_by(running(), "instance"), "1h"),
        "is no recorded series",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_prometheus_would_take_and_nobody_wants_is_refused(name: str) -> None:
    make, why = REFUSED[name]
    with pytest.raises(ExpressionError, match=re.escape(why)):
        make()


# ---- What comes out -------------------------------------------------------------------------------------------------


def test_job_and_matchers_stand_on_every_selector() -> None:
    assert JOBS.gauge(vllm.REQUESTS_RUNNING).text == 'vllm:num_requests_running{job="vllm",cluster="a"}'
    assert (
        JOBS.rate(vllm.REQUEST_SUCCESS, "5m", finished_reason="stop").text
        == 'rate(vllm:request_success_total{job="vllm",cluster="a",finished_reason="stop"}[5m])'
    )
    # The guard's job has no name here: any job.
    assert JOBS.gauge(own.GATEWAY_UP).text == 'sre_gateway_up{cluster="a"}'


@pytest.mark.parametrize("prefix", ["ray_vllm:", "ray_vllm_"])
def test_another_prefix_is_put_before_vllms_names_only(prefix: str) -> None:
    ray = Selection(prefix=prefix)
    assert ray.gauge(vllm.REQUESTS_RUNNING).text == f"{prefix}num_requests_running"
    assert ray.gauge(own.GATEWAY_UP).text == "sre_gateway_up"
    assert ray.rate(vllm.HTTP_REQUESTS, "5m").text == "rate(http_requests_total[5m])"


def test_a_quotient_has_no_value_without_traffic() -> None:
    count = sum_by(ANY.rate(vllm.E2E_REQUEST_LATENCY, "5m", part="count"), "model_name")
    total = sum_by(ANY.rate(vllm.E2E_REQUEST_LATENCY, "5m", part="sum"), "model_name")
    text = "sum by (model_name) (rate(vllm:e2e_request_latency_seconds_{}[5m]))"
    assert ratio(total, count, Unit.SECONDS).text == f"{text.format('sum')} / ({text.format('count')} > 0)"


def test_plain_values_need_no_pattern() -> None:
    assert among("status", "5xx") == 'status="5xx"'
    assert among("status", "2xx", "5xx") == 'status=~"2xx|5xx"'
    assert among("xid", "1.5", "2") == 'xid=~"1\\\\.5|2"'


def test_own_edges_decide() -> None:
    own_edges = Selection(buckets={vllm.E2E_REQUEST_LATENCY.name: (0.1, 0.65, 2.0)})
    assert 'le="0.65"' in own_edges.below_edge(vllm.E2E_REQUEST_LATENCY, 0.65, "5m").text
    with pytest.raises(ExpressionError, match=re.escape("the nearest that can decide is 0.65")):
        own_edges.below_edge(vllm.E2E_REQUEST_LATENCY, 0.5, "5m")


def parses(expr: Expr) -> None:
    """In one line and laid out; and the layout changes nothing but white space between tokens."""
    in_one_line = promql_parser.parse(expr.text).prettify()
    for width in (20, 60, 100):
        lines = laid_out(expr.text, width)
        assert promql_parser.parse("\n".join(lines)).prettify() == in_one_line
        assert all(line == line.rstrip() and line.strip() for line in lines)


windows = st.sampled_from(["5m", "1h", "3d"])
values = st.decimals("0.001", "0.999", places=3).map(float)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
METRICS = sorted(CATALOGUE.metrics, key=lambda metric: metric.name)
BY = ("instance", "job")


@st.composite
def selections(draw: st.DrawFn) -> Selection:
    return Selection(
        jobs=draw(st.dictionaries(st.sampled_from(list(Exporter)), texts)),
        prefix=draw(st.sampled_from(["vllm:", "ray_vllm:", "ray_vllm_"])),
        matchers=tuple(draw(st.dictionaries(st.sampled_from(["cluster", "_x", "a1"]), texts)).items()),
    )


def one_series(selection: Selection, metric: Metric, window: str) -> Expr:
    if metric.kind is Kind.GAUGE or metric.rate_already or metric.kind is Kind.SUMMARY:
        return selection.raw(metric) if metric.kind is Kind.SUMMARY else selection.gauge(metric)
    return selection.rate(metric, window, part="count" if metric.kind is Kind.HISTOGRAM else "")


@st.composite
def expressions(draw: st.DrawFn) -> Expr:
    """Helpers put together at random, as far as they agree to be."""
    selection = draw(selections())
    base = replace(one_series(selection, draw(st.sampled_from(METRICS)), draw(windows)), unit=Unit.ONE)
    expr = max_by(draw(st.sampled_from([with_node, lambda e: e, lambda e: relabelled(e, "x", "job")]))(base), *BY)
    for _ in range(draw(st.integers(0, 4))):
        other = max_by(replace(base, unit=expr.unit), *BY)
        wrap = draw(
            st.sampled_from(
                [
                    lambda e, o: plus(e, o),
                    lambda e, o: minus(e, o),
                    lambda e, o: ratio(e, o, e.unit),
                    lambda e, o: either(e, o),
                    lambda e, o: or_zero(e, o),
                    lambda e, o: both(e, o),
                    lambda e, o: unless(e, o, "instance"),
                    lambda e, o: one_minus(e),
                    lambda e, o: at_least(e, 0),
                    lambda e, o: scaled(e, draw(finite), e.unit),
                    lambda e, o: scaled(e, draw(values), e.unit, divide=True),
                    lambda e, o: compare(e, draw(st.sampled_from([">", ">=", "<", "<=", "=="])), draw(finite)),
                    lambda e, o: avg_by(e, *BY),
                    lambda e, o: on_each(present_by(o, *BY), e, *BY),
                ]
            )
        )
        expr = wrap(expr, other)
    return expr


@given(expressions())
def test_whatever_is_built_parses(expr: Expr) -> None:
    parses(expr)


@given(selections(), st.sampled_from([m for m in METRICS if len(m.buckets) > 2]), windows, values)
def test_quantiles_and_edges_parse(selection: Selection, metric: Metric, window: str, q: float) -> None:
    parses(quantile(q, with_node(selection.rate(metric, window, part="bucket")), "node", "instance"))
    for edge in metric.buckets[1:-1]:
        parses(selection.below_edge(metric, edge, window, function="increase"))


def test_operators_bind_as_they_were_put_together() -> None:
    """Parentheses stand where precedence would read it otherwise: compared with a tree drawn by hand."""
    a, b = (Expr(name, Unit.ONE, frozenset(), frozenset()) for name in "ab")
    assert scaled(plus(a, b), 2, Unit.ONE).text == "(a + b) * 2"
    assert minus(a, minus(a, b)).text == "a - (a - b)"
    assert one_minus(ratio(a, b)).text == "1 - (a / (b > 0))"
    assert ratio(either(a, b), either(a, b)).text == "(a or b) / ((a or b) > 0)"
    assert compare(either(a, b), ">", 1).text == "(a or b) > 1"
    assert both(both(a, b), either(a, b)).text == "(a and b) and (a or b)"
    assert unless(either(a, b), a).text == "(a or b) unless a"
    assert or_zero(a, either(a, b)).text == "a or 0 * (a or b)"
    assert compare(both(a, b), ">", 1).text == "(a and b) > 1"


@pytest.mark.parametrize(
    ("instance", "node"),
    [
        ("host:8000", "host"), ("10.0.0.1:9400", "10.0.0.1"), ("[::1]:8000", "[::1]"), ("host", "host"),
        ("a.b.c:1", "a.b.c"),
    ],
)  # fmt: skip
def test_node_is_the_host_of_the_instance(instance: str, node: str) -> None:
    expr = with_node(Expr("up", Unit.STATE, frozenset({"instance"}), frozenset()))
    (pattern,) = re.findall(r'"((?:[^"\\]|\\.)*)"\)$', expr.text)
    found = re.fullmatch(pattern.replace("\\\\", "\\"), f";{instance}")
    assert found is not None
    assert next(group for group in found.groups() if group) == node
    # A node that the target has stays: the joined text does not begin with ";".
    assert not re.fullmatch(pattern.replace("\\\\", "\\"), f"n1;{instance}")


def test_every_helper_is_tested_here() -> None:
    """By name, so that a new one is not forgotten."""
    helpers = {name for name in promql.__all__ if callable(getattr(promql, name))}
    elsewhere = {
        "absent_up",
        "equal_to",
        "count_by",
        "counted_by_value",
        "min_by",
        "either_on",
        "holds",
        "less_than",
        "labelled",
        "largest_by",
    }
    assert elsewhere <= helpers
    assert helpers - elsewhere <= set(globals())
