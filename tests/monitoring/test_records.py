"""Records and alerts as a whole: names, levels, order, only what exists, for every release."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import promql_parser
import pytest

from sre.metrics.catalogue import CATALOGUE
from sre.metrics.types import Exporter, Unit
from sre.monitoring.catalogue_rules import MAX_RULES, RuleFile, of_dimensions, rule_files, selection
from sre.monitoring.levels import LEVELS
from sre.monitoring.model import Alert, Group, Record
from sre.monitoring.promql import Expr, ExpressionError, seconds
from sre.monitoring.render import prometheus_rule, rule_file
from sre.settings.monitoring import MonitoringSettings
from tests.monitoring.promtool import judge_values, run

RELEASES: dict[str, MonitoringSettings] = {
    "any": MonitoringSettings(),
    "vllm-0.8": MonitoringSettings(vllm_version="0.8.5", dcgm_exporter_version="4.8.3"),
    "vllm-0.11": MonitoringSettings(vllm_version="0.11", dcgm_exporter_version="4.9.0"),
    "vllm-0.19": MonitoringSettings(vllm_version="0.19"),
    "vllm-0.32": MonitoringSettings(vllm_version="0.32.0", dcgm_exporter_version="4.9.0"),
    "ray": MonitoringSettings(metric_prefix="ray_vllm:", matchers={"cluster": 'a "b" {{x}}\\'}),
    "ray-underscore": MonitoringSettings(metric_prefix="ray_vllm_", vllm_version="0.11"),
    "every-second": MonitoringSettings(scrape_interval_seconds=1, retention_days=400),
    "rarely": MonitoringSettings(scrape_interval_seconds=75, retention_days=3),
    "own-edges": MonitoringSettings.model_validate(
        {
            "custom_buckets": {"request_latency": [0.25, 0.65, 2, 30, 60]},
            "thresholds": {"e2e_seconds": 0.65},
        }
    ),
}


@pytest.fixture(scope="module", params=RELEASES, name="chosen")
def _chosen(request: pytest.FixtureRequest) -> MonitoringSettings:
    return RELEASES[request.param]


@pytest.fixture(scope="module", name="files")
def _files(chosen: MonitoringSettings) -> list[RuleFile]:
    return rule_files(chosen)


def rules_of(files: list[RuleFile]) -> list[Record | Alert]:
    return [rule for file in files for group in file.groups for rule in group.rules]


def names_in(text: str) -> Iterator[str]:
    """Names of the series that an expression selects."""
    found: list[str] = []

    def look(node: object) -> bool:
        if isinstance(node, promql_parser.VectorSelector) and node.name:
            found.append(node.name)
        return True

    promql_parser.walk(promql_parser.parse(text), look)
    yield from found


def test_an_expression_reads_what_it_says_it_reads(files: list[RuleFile]) -> None:
    for rule in rules_of(files):
        assert set(names_in(rule.expr.text)) == rule.uses, rule.name


def test_rules_read_only_records_and_metrics_of_the_release(files: list[RuleFile], chosen: MonitoringSettings) -> None:
    records = {rule.name for rule in rules_of(files) if isinstance(rule, Record)}
    versions = selection(chosen).versions
    for rule in rules_of(files):
        for name in rule.uses - records:
            metric = CATALOGUE.by_sample(name, chosen.metric_prefix)
            assert metric is not None, f"{rule.name} reads {name}, which nobody exposes"
            # What looks for missing metrics knows the names of other releases, to tell missing from renamed.
            exists = metric.exists_in(versions.get(metric.exporter)) or rule.name == "GpuMetricsMissing"
            assert exists, f"{rule.name} reads {name}, not in this release"


def test_a_record_stands_before_what_reads_it(files: list[RuleFile]) -> None:
    """Within a group rules run in order; between groups an older value would be read."""
    seen: set[str] = set()
    records = {rule.name for rule in rules_of(files) if isinstance(rule, Record)}
    for rule in rules_of(files):
        assert not (rule.uses & records) - seen, f"{rule.name} reads a record that comes later"
        seen.add(rule.name)


def test_source_names_have_the_unit_of_what_they_pass_on(files: list[RuleFile]) -> None:
    records = {rule.name: rule for rule in rules_of(files) if isinstance(rule, Record)}
    for record in records.values():
        if record.source_name and record.uses & records.keys():
            assert {records[name].unit for name in record.uses} == {record.unit}, record.name


def test_names_say_the_level_and_the_level_says_the_labels(files: list[RuleFile]) -> None:
    for rule in rules_of(files):
        if isinstance(rule, Record) and not rule.source_name:
            level = rule.name.split(":")[0]
            assert frozenset(LEVELS[level]) == rule.expr.labels | rule.labels.keys(), rule.name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("vllm_kv", "is not level:metric:operation"),
        ("a:b:c:d", "is not level:metric:operation"),
        ("rack:temperature:celsius", "no level 'rack'"),
        ("gpu:temperature:celsius", "its level has"),
    ],
)
def test_a_name_that_does_not_fit_is_refused(name: str, why: str) -> None:
    with pytest.raises(ExpressionError, match=why):
        Record(name, Expr("x", Unit.ONE, frozenset({"node"}), frozenset({"x"})), "")


def test_groups_are_small_and_names_unique(files: list[RuleFile]) -> None:
    groups = [group for file in files for group in file.groups]
    assert len({group.name for group in groups}) == len(groups)
    assert all(0 < len(group.rules) <= MAX_RULES for group in groups)
    alerts = [rule.name for rule in rules_of(files) if isinstance(rule, Alert)]
    assert len(set(alerts)) == len(alerts)
    records = [(rule.name, *rule.labels.items()) for rule in rules_of(files) if isinstance(rule, Record)]
    assert len(set(records)) == len(records)


def test_groups_of_more_than_twenty_are_refused() -> None:
    record = Record("node:x:y", Expr("x", Unit.ONE, frozenset({"node"}), frozenset({"x"})), "")
    with pytest.raises(ExpressionError, match="has 21 rules; split it at 20"):
        Group("g", (record,) * 21)


def test_nothing_is_read_that_never_tells_the_truth(files: list[RuleFile]) -> None:
    for rule in rules_of(files):
        assert 'finished_reason="abort"' not in rule.expr.text
        assert "__name__" not in rule.expr.text
        assert "!= " not in rule.expr.text


def test_no_range_is_longer_than_the_data_is_kept(files: list[RuleFile], chosen: MonitoringSettings) -> None:
    for rule in rules_of(files):
        for window in re.findall(r"\[(\w+)\]", rule.expr.text):
            assert seconds(window) <= chosen.retention_days * 86_400, rule.name
            assert seconds(window) >= 4 * chosen.scrape_interval_seconds, rule.name


def test_every_record_says_what_it_is(files: list[RuleFile]) -> None:
    assert all(rule.help.endswith(".") for rule in rules_of(files) if isinstance(rule, Record))


def test_promtool_accepts_both_forms(files: list[RuleFile], chosen: MonitoringSettings, tmp_path: Path) -> None:
    import yaml

    for file in files:
        (tmp_path / f"{file.stem}.yml").write_text(rule_file(file.groups, chosen))
        spec = yaml.safe_load(prometheus_rule(file.stem, file.groups, chosen))["spec"]
        (tmp_path / f"operator-{file.stem}.yml").write_text(yaml.safe_dump(spec))
    judged = run("check", "rules", "--lint=all", "--lint-fatal", *sorted(tmp_path.iterdir()))
    assert judged.returncode == 0, judged.output
    assert judged.output.count("SUCCESS") == 2 * len(files)


def test_old_releases_lose_only_what_they_never_had() -> None:
    def names(key: str) -> set[str]:
        return {rule.name for rule in rules_of(rule_files(RELEASES[key]))}

    assert names("any") - names("vllm-0.8") == {
        "engine:vllm_admission_rejections:rate5m", "VllmAdmissionRejections",
    }  # fmt: skip
    assert names("any") == names("vllm-0.32") == names("ray")


def test_the_names_of_the_source_material_are_there() -> None:
    records = {rule.name: rule for rule in rules_of(rule_files(RELEASES["any"])) if isinstance(rule, Record)}
    assert {name for name, record in records.items() if record.source_name} == {
        "vllm_gpu_utilization", "vllm_gpu_memory_used_bytes", "vllm_batch_size_bucket",
        "vllm_batch_formation_latency_seconds", "vllm_p99_latency_seconds", "vllm_first_token_latency_seconds",
    }  # fmt: skip
    assert "device" in records["vllm_gpu_utilization"].expr.labels
    assert "le" in records["vllm_batch_size_bucket"].expr.labels


def test_dimensions_bring_the_records_they_need() -> None:
    files = rule_files(RELEASES["any"])
    for dimension in ("resource", "batching", "request", "slo", "toolkit"):
        chosen = of_dimensions(files, [dimension])
        present = {rule.name for rule in rules_of(chosen)}
        every = {rule.name for rule in rules_of(files)}
        assert [file.stem for file in chosen if file.dimension] == [f"sre-{dimension}"]
        for rule in rules_of(chosen):
            assert rule.uses & every <= present
    assert "gpu:temperature:celsius" not in {rule.name for rule in rules_of(of_dimensions(files, ["slo"]))}


def test_every_exporter_is_selected_by_its_job() -> None:
    assert set(selection(RELEASES["any"]).jobs) == {Exporter.VLLM, Exporter.SRE, Exporter.NODE, Exporter.DCGM}


# ---- Values ---------------------------------------------------------------------------------------------------------


def groups_named(*prefixes: str) -> list[Group]:
    return [group for file in rule_files(RELEASES["any"]) for group in file.groups if group.name.startswith(prefixes)]


def test_an_old_and_a_new_engine_stand_side_by_side(tmp_path: Path) -> None:
    """0.8 has no label engine and other names; 0.32 has two ranks. Nothing of the one hides the other."""
    judged = judge_values(
        groups_named("sre-records-engine"),
        tmp_path,
        {
            'vllm:gpu_cache_usage_perc{job="vllm",instance="old:1",model_name="m"}': "0.25x40",
            'vllm:kv_cache_usage_perc{job="vllm",instance="new:1",node="n7",model_name="m",engine="0"}': "0.5x40",
            'vllm:kv_cache_usage_perc{job="vllm",instance="new:1",node="n7",model_name="m",engine="1"}': "0.75x40",
            'vllm:num_requests_running{job="vllm",instance="[::1]:8000",model_name="m",engine="0"}': "2x40",
            'vllm:num_requests_running{job="vllm",instance="[::1]:8000",model_name="m",engine="1"}': "3x40",
            'vllm:gpu_prefix_cache_queries_total{job="vllm",instance="old:1",model_name="m"}': "0+64x40",
            'vllm:gpu_prefix_cache_hits_total{job="vllm",instance="old:1",model_name="m"}': "0+16x40",
        },
        {
            "engine:vllm_kv_cache_usage:ratio_max": {
                'engine:vllm_kv_cache_usage:ratio_max{node="old",instance="old:1",model_name="m"}': 0.25,
                'engine:vllm_kv_cache_usage:ratio_max{node="n7",instance="new:1",model_name="m"}': 0.75,
            },
            "model:vllm_kv_cache_usage:ratio_max": {'model:vllm_kv_cache_usage:ratio_max{model_name="m"}': 0.75},
            "engine:vllm_requests_running:sum": {
                'engine:vllm_requests_running:sum{node="[::1]",instance="[::1]:8000",model_name="m"}': 5
            },
            "engine:vllm_prefix_cache_hits:ratio_rate5m": {
                'engine:vllm_prefix_cache_hits:ratio_rate5m{node="old",instance="old:1",model_name="m"}': 0.25
            },
        },
    )
    assert judged.returncode == 0, judged.output


def test_source_names_follow_the_records(tmp_path: Path) -> None:
    judged = judge_values(
        groups_named("sre-records-resource", "sre-records-engine", "sre-source-names"),
        tmp_path,
        {
            'DCGM_FI_DEV_GPU_UTIL{job="dcgm",instance="n1:9400",gpu="0",UUID="GPU-a"}': "50x40",
            'sre_engine_batch_size_bucket{job="sre",instance="n1:9400",engine="e0",pool="m",le="8.0"}': "0+4x40",
            'vllm:e2e_request_latency_seconds_bucket{job="vllm",instance="a:1",model_name="m",le="0.5"}': "0+64x40",
            'vllm:e2e_request_latency_seconds_bucket{job="vllm",instance="a:1",model_name="m",le="+Inf"}': "0+64x40",
        },
        {
            "vllm_gpu_utilization": {'vllm_gpu_utilization{node="n1",device="0"}': 0.5},
            "vllm_batch_size_bucket": {'vllm_batch_size_bucket{engine="e0",pool="m",le="8.0"}': 160},
            "round(vllm_p99_latency_seconds * 1000)": {'{model_name="m"}': 495},
        },
    )
    assert judged.returncode == 0, judged.output


def test_while_releases_are_mixed_no_replica_of_a_model_is_left_out(tmp_path: Path) -> None:
    """``a`` is upgraded, ``b`` not yet: ``or`` between their sums would show the model without ``b``."""
    new = 'vllm:inter_token_latency_seconds_%s{job="vllm",instance="a:1",model_name="m",engine="0"%s}'
    old = 'vllm:time_per_output_token_seconds_%s{job="vllm",instance="b:1",model_name="m"%s}'
    series = {}
    for name, under, per_step in ((new, 64, 64), (old, 0, 64 * 3)):
        series[name % ("bucket", ',le="0.1"')] = f"0+{under}x40"
        series[name % ("bucket", ',le="0.2"')] = series[name % ("bucket", ',le="+Inf"')] = f"0+{per_step}x40"
        series[name % ("count", "")] = f"0+{per_step}x40"
    judged = judge_values(
        groups_named("sre-records-engine", "sre-records-slo-itl"),
        tmp_path,
        series,
        {
            "slo:errors:ratio_rate5m": {'slo:errors:ratio_rate5m{model_name="m",slo="itl"}': 0.75},
            "round(model:vllm_itl_seconds:p99_rate5m * 1000)": {'{model_name="m"}': 199},
        },
    )
    assert judged.returncode == 0, judged.output


def test_or_of_two_names_stands_within_the_aggregation() -> None:
    """Between two sums by model it hides the replicas that have the older name."""
    for rule in rules_of(rule_files(RELEASES["any"])):
        if isinstance(rule, Record) and rule.name.startswith(("engine:vllm", "model:vllm", "slo:")):
            # Availability has two sources, and takes the one or the other by model.
            assert "availability" in rule.labels.values() or not re.search(r" or (sum|max|hist)", rule.expr.text)
