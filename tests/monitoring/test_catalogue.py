"""The catalogue agrees with what exporters expose: recorded texts of each release, and the real vLLM 0.32.0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.metrics import dcgm, node, vllm, vllm_past
from sre.metrics.catalogue import CATALOGUE, KNOWN_RELEASES, Release, plain, release_of, variants
from sre.metrics.exposition import Exposition, ExpositionError, parse_exposition
from sre.metrics.types import Exporter, Kind, Metric, Unit, Version

DATA = Path(__file__).parent / "data"
REAL = DATA.parent.parent / "telemetry" / "data" / "vllm-0.32.0.metrics.txt"
RECORDED = {
    "vllm-0.8": (Exporter.VLLM, Version(0, 8)),
    "vllm-0.11": (Exporter.VLLM, Version(0, 11)),
    "vllm-0.19": (Exporter.VLLM, Version(0, 19)),
    "vllm-0.32": (Exporter.VLLM, Version(0, 32)),
    "dcgm-4.8": (Exporter.DCGM, Version(4, 8)),
    "dcgm-4.9": (Exporter.DCGM, Version(4, 9)),
    "dcgm-4.9-mig": (Exporter.DCGM, Version(4, 9)),
    "node-1.5": (Exporter.NODE, Version(1, 5)),
}
"""Text → who exposes it, and in which release."""

NOT_WITH_MIG = {
    dcgm.GPU_UTIL_RATIO, dcgm.MEMORY_UTIL_RATIO, dcgm.ENC_UTIL_RATIO, dcgm.DEC_UTIL_RATIO,
    dcgm.FB_USED_BYTES, dcgm.FB_FREE_BYTES, dcgm.FB_RESERVED_BYTES, dcgm.FB_CAPACITY_BYTES,
}  # fmt: skip
TARGET_METRICS = {"process_resident_memory_bytes", "process_start_time_seconds"}
V0_ONLY = {metric for metric in vllm_past.PAST_METRICS if metric.deprecated == Version(0, 8)}


def recorded(name: str) -> Exposition:
    return parse_exposition((DATA / f"{name}.metrics.txt").read_bytes())


def claims() -> Iterator[tuple[str, Metric]]:
    """Every (text, metric) pair in which the metric should be there."""
    for name, (exporter, version) in RECORDED.items():
        for metric in CATALOGUE.existing(exporter, version):
            if metric.optional or metric in V0_ONLY or (name.endswith("-mig") and metric in NOT_WITH_MIG):
                continue
            yield name, metric


def check(metric: Metric, page: Exposition, *, max_model_len: int | None) -> None:
    """``metric`` stands on ``page`` as the catalogue says."""
    series = page.samples[metric.sample]
    assert page.kind(metric.sample) is (None if metric.untyped else metric.kind)
    for one in series:
        assert set(metric.required_labels) <= one.labels.keys()
        # cache_config_info has more than are declared, on purpose.
        assert metric is vllm.CACHE_CONFIG_INFO or one.labels.keys() <= set(metric.labels)
    if metric.values and metric.exporter is Exporter.VLLM:
        assert {one.labels[metric.labels[-1]] for one in series} <= set(metric.values)
    if metric.kind is Kind.HISTOGRAM:
        edges = {one.labels["le"] for one in page.samples[metric.name + "_bucket"]}
        if metric.token_buckets:
            longest = max_model_len or 5000
            assert edges == {str(float(edge)) for edge in metric.bounds(longest)} | {"+Inf"}
        else:
            assert edges == {str(float(edge)) for edge in metric.buckets} | {"+Inf"}
    if metric.range is not None:
        low, high = metric.range
        assert all(low <= one.value <= high for one in series)


@pytest.mark.parametrize(("text", "metric"), [pytest.param(t, m, id=f"{t}-{m.name}") for t, m in claims()])
def test_metric_of_the_release_stands_in_its_text_as_declared(text: str, metric: Metric) -> None:
    page = recorded(text)
    if text == "vllm-0.8" and metric is vllm.ITERATION_TOKENS:
        # Its bounds follow the CUDA graphs there; without them they end at 8096 instead of 8192, 16384.
        assert {one.labels["le"] for one in page.samples[metric.name + "_bucket"]} >= {"1.0", "512.0", "8096.0"}
        return
    check(metric, page, max_model_len=None)


@pytest.mark.parametrize("text", RECORDED)
def test_nothing_in_a_text_is_unknown_or_of_another_release(text: str) -> None:
    exporter, version = RECORDED[text]
    for sample in recorded(text).samples.keys() - TARGET_METRICS:
        metric = CATALOGUE.by_sample(sample)
        assert metric is not None, sample
        assert metric.exporter is exporter
        assert metric.exists_in(version), sample


@pytest.mark.parametrize("text", RECORDED)
def test_a_text_has_traffic_in_it(text: str) -> None:
    page = recorded(text)
    assert sum(one.value > 0 for series in page.samples.values() for one in series) > 15


@pytest.mark.parametrize("text", RECORDED)
def test_a_text_says_what_it_is(text: str) -> None:
    comments = [line for line in (DATA / f"{text}.metrics.txt").read_text().splitlines()[:3] if line.startswith("# ")]
    assert any("not captured" in line or "as captured" in line for line in comments)


@pytest.mark.parametrize(
    "metric",
    [metric for metric in CATALOGUE.existing(Exporter.VLLM, Version(0, 32)) if not metric.optional],
    ids=lambda metric: metric.name,
)
def test_the_real_vllm_exposes_what_the_catalogue_says(metric: Metric) -> None:
    check(metric, parse_exposition(REAL.read_bytes()), max_model_len=512)


def test_the_real_vllm_exposes_nothing_else() -> None:
    names = {sample for sample in parse_exposition(REAL.read_bytes()).samples if not sample.endswith("_created")}
    others = {name for name in names if CATALOGUE.by_sample(name) is None}
    assert others == {name for name in names if name.startswith(("python_", "process_"))}


def test_declarations_hang_together() -> None:
    samples = [sample for metric in CATALOGUE.metrics for sample in metric.samples]
    assert len(samples) == len(set(samples))
    for metric in CATALOGUE.metrics:
        assert set(metric.optional_labels) <= set(metric.labels), metric.name
        assert metric.help.endswith("."), metric.name
        assert (metric.kind is Kind.HISTOGRAM) is (bool(metric.buckets) or metric.token_buckets), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets)), metric.name
        order = [at for at in (metric.since, metric.deprecated, metric.hidden, metric.removed) if at is not None]
        assert order == sorted(order), metric.name
        if metric.replaced_by is not None:
            following = CATALOGUE.by_sample(metric.replaced_by) or CATALOGUE.family(metric.replaced_by)
            assert following is not None, metric.name
            assert following.exporter is metric.exporter
        if metric.removed is not None and metric.exporter is Exporter.DCGM and metric.replaced_by is not None:
            assert CATALOGUE.successor(metric) is not None


def test_a_renamed_dcgm_field_changes_its_unit_to_the_base_unit() -> None:
    changed = {
        (metric.unit, successor.unit)
        for metric in dcgm.DCGM_METRICS
        if (successor := CATALOGUE.successor(metric)) is not None and metric.unit is not successor.unit
    }
    assert changed == {
        (Unit.PERCENT, Unit.RATIO), (Unit.MEBIBYTES, Unit.BYTES), (Unit.MEGAHERTZ, Unit.HERTZ),
        (Unit.MILLIJOULES, Unit.JOULES), (Unit.MEGABYTES_PER_SECOND, Unit.BYTES_PER_SECOND),
        (Unit.NANOSECONDS, Unit.SECONDS),
    }  # fmt: skip


# ---- Looking up ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample", "metric"),
    [
        ("vllm:e2e_request_latency_seconds_bucket", vllm.E2E_REQUEST_LATENCY),
        ("vllm:num_preemptions_total", vllm.PREEMPTIONS),
        ("vllm:iteration_tokens_total_count", vllm.ITERATION_TOKENS),
        ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", dcgm.PCIE_REPLAY_COUNTER),
        ("node_netstat_Tcp_OutSegs", node.TCP_OUT_SEGMENTS),
        ("vllm:num_preemptions", None),
        ("vllm:iteration_tokens_total", None),
        ("nothing", None),
    ],
)
def test_a_sample_is_found_under_the_name_it_has(sample: str, metric: Metric | None) -> None:
    assert CATALOGUE.by_sample(sample) is metric


@pytest.mark.parametrize("prefix", ["ray_vllm:", "ray_vllm_", "mine_"])
def test_vllms_names_are_found_under_another_prefix(prefix: str) -> None:
    assert CATALOGUE.by_sample(prefix + "num_requests_running", prefix=prefix) is vllm.REQUESTS_RUNNING
    assert CATALOGUE.by_sample(prefix + "no_such_thing", prefix=prefix) is None
    assert plain(prefix + "num_requests_running", prefix) == "vllm:num_requests_running"


def test_a_family_is_found_with_and_without_total() -> None:
    assert CATALOGUE.family("vllm:num_preemptions") is CATALOGUE.family("vllm:num_preemptions_total")
    assert CATALOGUE.family("vllm:iteration_tokens_total") is vllm.ITERATION_TOKENS
    assert CATALOGUE.family("nothing_total") is None


def test_a_slip_of_the_pen_is_near_to_what_was_meant() -> None:
    assert CATALOGUE.nearest("vllm:num_request_running") == ("vllm:num_requests_running",)
    assert CATALOGUE.nearest("zzz") == ()


V = Version.parse


@pytest.mark.parametrize(
    ("metric", "version", "names"),
    [
        (vllm.KV_CACHE_USAGE, None, ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"]),
        (vllm.KV_CACHE_USAGE, "0.8", ["vllm:gpu_cache_usage_perc"]),
        (vllm.KV_CACHE_USAGE, "0.9.2", ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"]),
        (vllm.KV_CACHE_USAGE, "0.11", ["vllm:kv_cache_usage_perc"]),
        (vllm_past.GPU_CACHE_USAGE, "0.32", ["vllm:kv_cache_usage_perc"]),
        (vllm.INTER_TOKEN_LATENCY, "0.8", ["vllm:time_per_output_token_seconds"]),
        # A gauge cannot stand in for a counter, nor milliseconds' buckets for seconds'.
        (vllm.PREFIX_CACHE_HITS, None, ["vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"]),
        (vllm.REQUEST_INFERENCE_TIME, None, ["vllm:request_inference_time_seconds"]),
        (vllm.ADMISSION_REJECTIONS, "0.11", []),
        (dcgm.GPU_UTIL, None, ["DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_GPU_UTIL"]),
        (dcgm.GPU_UTIL_RATIO, "4.8.3", ["DCGM_FI_DEV_GPU_UTIL"]),
        (dcgm.GPU_UTIL_RATIO, "4.9", ["DCGM_FI_DEV_GPU_UTIL_RATIO"]),
        # One typed as a counter, one as a gauge, both rates.
        (dcgm.NVLINK_THROUGHPUT, None,
         ["DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"]),
    ],
)  # fmt: skip
def test_variants_are_the_names_that_the_release_has_newest_first(
    metric: Metric, version: str | None, names: list[str]
) -> None:
    assert [other.name for other in variants(metric, None if version is None else V(version))] == names


@pytest.mark.parametrize("metric", CATALOGUE.metrics, ids=lambda metric: metric.name)
def test_variants_agree_whichever_of_them_is_asked(metric: Metric) -> None:
    found = variants(metric, None)
    newest = found[0]
    assert CATALOGUE.successor(newest) is None
    assert all(variants(other, None) == found for other in found)


# ---- Which release ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", RECORDED)
def test_the_release_is_told_from_the_names(text: str) -> None:
    exporter, version = RECORDED[text]
    release = release_of(exporter, recorded(text).samples)
    assert release is not None
    assert release.at_least is None or release.at_least <= version
    assert release.below is None or version < release.below


def test_what_is_not_there_has_no_release() -> None:
    assert release_of(Exporter.DCGM, recorded("vllm-0.32").samples) is None


@pytest.mark.parametrize(
    ("release", "text"),
    [
        (Release(V("0.12"), V("0.15")), "0.12 or later, before 0.15"),
        (Release(V("0.12")), "0.12 or later"),
        (Release(None, V("4.9")), "before 4.9"),
        (Release(V("0.12"), None, V("0.32")), "0.32"),
        (Release(), "unknown"),
    ],
)
def test_a_release_reads_as_a_sentence(release: Release, text: str) -> None:
    assert str(release) == text


def test_a_mixed_fleet_is_as_new_as_its_newest_name() -> None:
    both = recorded("vllm-0.8").samples.keys() | recorded("vllm-0.32").samples.keys()
    assert release_of(Exporter.VLLM, both) == Release(V("0.32"), None)


# ---- Reading a page --------------------------------------------------------------------------------------------------


def test_a_counter_without_total_keeps_its_name() -> None:
    page = parse_exposition(b'# TYPE DCGM_X counter\nDCGM_X{gpu="0"} 3\n# TYPE a_total counter\na_total 1\n')
    assert set(page.samples) == {"DCGM_X", "a_total"}
    assert page.kind("DCGM_X") is page.kind("a_total") is Kind.COUNTER
    assert page.samples["DCGM_X"][0].labels == {"gpu": "0"}


def test_an_untyped_sample_has_no_kind() -> None:
    page = parse_exposition(b"# TYPE x untyped\nx 1\ny 2\n")
    assert page.kind("x") is page.kind("y") is None


@pytest.mark.parametrize("exporter", list(KNOWN_RELEASES))
def test_a_later_release_is_as_the_newest_known_one(exporter: Exporter) -> None:
    later = Version(99, 0)
    assert CATALOGUE.existing(exporter, later) == CATALOGUE.existing(exporter, KNOWN_RELEASES[exporter][1])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no sample"),
        (b"# only comments\n", "no sample"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"  <html>", "web page"),
        (b'{"status": "success"}', "line 1 is no sample"),
        (b"a 1\nb two\n", "line 2 is no sample: 'b two'"),
        (b"a 1\n\xff 2\n", "line 2 is not UTF-8"),
        (b'a{x="1" 2\n', "line 1 is no sample"),
    ],
)
def test_what_is_no_metrics_page_is_refused_with_its_place(body: bytes, words: str) -> None:
    with pytest.raises(ExpositionError, match=words):
        parse_exposition(body)


@given(st.one_of(st.binary(), st.text().map(str.encode), st.from_regex(r'[a-z{}="#, \n0-9+-.e]{0,80}').map(str.encode)))
def test_any_bytes_are_metrics_or_refused(body: bytes) -> None:
    try:
        page = parse_exposition(body)
    except ExpositionError:
        return
    assert page.samples
    assert all(isinstance(one.value, float) for series in page.samples.values() for one in series)
