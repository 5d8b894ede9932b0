"""sre rules: what it writes and leaves alone, that the check can fail, and what it says when it cannot."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import RunSre
from tests.conftest import require_binary

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "alerts"
HINT = "apt-get install prometheus brings it"
STEMS = ["sre-batching", "sre-records", "sre-request", "sre-resource", "sre-slo", "sre-toolkit"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- The files ------------------------------------------------------------------------------------------------------


def test_committed_alerts_are_what_the_generator_writes(run_sre: RunSre) -> None:
    ran = run_sre("rules", "generate", "--check", "--output-dir", str(ALERTS))
    assert ran.code == 0, ran.out
    assert ran.out == ""


def test_one_changed_byte_is_noticed(run_sre: RunSre) -> None:
    shutil.copytree(ALERTS, "alerts")
    changed = Path("alerts/sre-resource.yml")
    changed.write_text(changed.read_text().replace("> 85", "> 86", 1))
    ran = run_sre("rules", "generate", "--check")
    assert ran.code == 3
    assert "-        " in ran.out
    assert "> 86" in ran.out
    assert "alerts: not what sre rules generate writes; run it, without --check" in ran.err
    assert "> 86" in changed.read_text()


def test_a_missing_and_a_left_over_file_are_noticed(run_sre: RunSre) -> None:
    shutil.copytree(ALERTS, "alerts")
    Path("alerts/sre-slo.yml").rename("alerts/sre-old.yml")
    ran = run_sre("rules", "generate", "--check")
    assert ran.code == 3
    assert "+++ alerts/sre-slo.yml" in ran.out
    assert "--- alerts/sre-old.yml" in ran.out
    ran = run_sre("rules", "generate")
    assert ran.code == 0
    assert ran.err.splitlines()[-1] == "alerts: 6 files, 1 written; no longer wanted and removed: sre-old.yml"
    assert names(Path("alerts")) == [f"{stem}.yml" for stem in STEMS]


def test_files_of_others_stay_and_are_never_overwritten(run_sre: RunSre) -> None:
    Path("alerts").mkdir()
    Path("alerts/mine.yml").write_text("groups: []\n")
    assert run_sre("rules", "generate").code == 0
    assert Path("alerts/mine.yml").read_text() == "groups: []\n"
    Path("alerts/sre-slo.yml").write_text("groups: []  # by hand\n")
    ran = run_sre("rules", "generate")
    assert ran.code == 1
    assert "sre: alerts/sre-slo.yml: was not generated" in ran.err
    assert Path("alerts/sre-slo.yml").read_text() == "groups: []  # by hand\n"


def test_generating_again_writes_nothing(run_sre: RunSre) -> None:
    assert run_sre("rules", "generate").err.splitlines()[-1] == "alerts: 6 files, 6 written"
    before = {path: path.stat().st_mtime_ns for path in Path("alerts").iterdir()}
    assert run_sre("rules", "generate").err.splitlines()[-1] == "alerts: 6 files, 0 written"
    assert {path: path.stat().st_mtime_ns for path in Path("alerts").iterdir()} == before


def test_what_is_left_out_is_said_on_stderr(run_sre: RunSre) -> None:
    ran = run_sre("rules", "generate", "--stdout")
    assert ran.code == 0
    assert ran.err.startswith("note: monitoring.retention_days: 15 is shorter than slo.period_days (30)")
    assert [rule for group in yaml.safe_load(ran.out)["groups"] for rule in group["rules"] if "alert" in rule], (
        "one document: Prometheus reads no second one"
    )


def test_dimensions(run_sre: RunSre) -> None:
    assert run_sre("rules", "generate", "--dimension", "slo", "--dimension", "batching").code == 0
    assert names(Path("alerts")) == ["sre-batching.yml", "sre-records.yml", "sre-slo.yml"]
    records = Path("alerts/sre-records.yml").read_text()
    assert "engine:vllm_kv_cache_usage:ratio_max" in records
    assert "gpu:temperature:celsius" not in records


def test_objects_of_the_operator(run_sre: RunSre) -> None:
    labels = ["--label", "release=prom", "--label", "example.org/x=a.b"]
    options = ["--format", "operator", "--namespace", "monitoring", *labels]
    ran = run_sre("rules", "generate", *options)
    assert ran.code == 0, ran.err
    folder = Path("alerts/operator")
    assert names(folder) == [f"prometheusrule-{stem}.yml" for stem in STEMS]
    for path in folder.iterdir():
        document = yaml.safe_load(path.read_text())
        assert document["kind"] == "PrometheusRule"
        assert document["metadata"]["namespace"] == "monitoring"
        assert document["metadata"]["labels"] == {"release": "prom", "example.org/x": "a.b"}
    assert run_sre("rules", "generate", "--check", *options).code == 0
    assert run_sre("rules", "generate", "--check", "--format", "operator").code == 3


def test_alertmanagers_configuration(run_sre: RunSre) -> None:
    assert run_sre("rules", "generate", "--format", "alertmanager").code == 0
    path = Path("alerts/alertmanager/alertmanager.yml")
    assert {"route", "receivers", "inhibit_rules"} <= set(yaml.safe_load(path.read_text()))
    amtool = require_binary("amtool", "apt-get install prometheus-alertmanager brings it")
    done = subprocess.run([amtool, "check-config", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_release_that_is_not_known_yet_is_taken_for_the_newest_known_one_and_that_is_said(run_sre: RunSre) -> None:
    ran = run_sre("rules", "generate", "--stdout", "--vllm-version", "9.9", "--dcgm-exporter-version", "4.9.3")
    assert ran.code == 0
    assert ran.err.splitlines()[0] == (
        "warning: --vllm-version: 9.9 is newer than what is known (0.8 to 0.33); everything is as for 0.33 and may name"
        " metrics that are gone: see sre rules verify"
    )
    newest = run_sre("rules", "generate", "--stdout", "--vllm-version", "0.33.2", "--dcgm-exporter-version", "4.9.3")
    assert "newer" not in newest.err
    assert newest.out.replace("0.33.2", "9.9") == ran.out
    Path("sre.yaml").write_text('monitoring: {dcgm_exporter_version: "5.0.0"}\n')
    assert "monitoring.dcgm_exporter_version: 5.0.0 is newer than" in run_sre("dashboards", "generate", "--stdout").err
    assert "monitoring.dcgm_exporter_version: 5.0.0 is newer than" in run_sre("config", "validate").err


def test_options_come_before_the_file(run_sre: RunSre) -> None:
    Path("sre.yaml").write_text('monitoring: {vllm_version: "0.32"}\n')
    ran = run_sre("rules", "generate", "--stdout", "--vllm-version", "0.8", "--metric-prefix", "ray_vllm:")
    assert "ray_vllm:gpu_cache_usage_perc" in ran.out
    assert " vllm:" not in ran.out
    assert "kv_cache_usage_perc{" not in ran.out.replace("gpu_cache_usage_perc", "")
    assert "gpu_cache_usage_perc" not in run_sre("rules", "generate", "--stdout").out


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: path.mkdir(), "is a folder where a generated file belongs"),
        (lambda path: path.symlink_to("nowhere"), "is a link that leads nowhere"),
        (lambda path: os.mkfifo(path), "is no file where a generated file belongs"),
    ],
)
def test_what_is_no_file_is_named_and_left_alone(make: Callable[[Path], None], what: str, run_sre: RunSre) -> None:
    Path("alerts").mkdir()
    make(Path("alerts/sre-slo.yml"))
    for argv in ([], ["--check"]):
        ran = run_sre("rules", "generate", *argv)
        assert (ran.code, ran.out) == (1, "")
        assert f"sre: alerts/sre-slo.yml: {what}" in ran.err
    assert names(Path("alerts")) == ["sre-slo.yml"]


def test_a_damaged_file_of_ours_is_written_anew(run_sre: RunSre) -> None:
    assert run_sre("rules", "generate").code == 0
    good = Path("alerts/sre-slo.yml").read_bytes()
    Path("alerts/sre-slo.yml").write_bytes(good + b"\xff")
    ran = run_sre("rules", "generate", "--check")
    assert ran.code == 3
    assert "--- alerts/sre-slo.yml" in ran.out
    assert run_sre("rules", "generate").code == 0
    assert Path("alerts/sre-slo.yml").read_bytes() == good


def test_a_full_disk_under_stdout_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sre", "rules", "generate", "--stdout"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "sre: the output cannot be written: No space left on device"
    assert "Traceback" not in done.stderr


# ---- What it refuses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--stdout", "--check"], "--stdout excludes --check and --output-dir"),
        (["--namespace", "x"], "--namespace and --label are for --format operator"),
        (["--format", "alertmanager", "--dimension", "slo"], "--dimension is for rules"),
        (["--format", "operator", "--label", "release"], "--label release: is no label of Kubernetes; write KEY=VALUE"),
        (["--format", "operator", "--label", "a b=c"], "--label a b=c: is no label of Kubernetes"),
        (["--format", "operator", "--label", "a=-"], "--label a=-: is no label of Kubernetes"),
        (["--format", "operator", "--namespace", "Bad NS"], "--namespace Bad NS: Kubernetes has no such names"),
        (["--vllm-version", "latest"], "sre: --vllm-version: 'latest' is no version; write it like 0.32 or 4.8.3"),
        (["--vllm-version", "0.7"], "sre: --vllm-version: 0.7 is older than 0.8"),
        (["--metric-prefix", "ray-vllm"], 'sre: --metric-prefix: "ray-vllm" cannot begin a metric\'s name'),
    ],
)
def test_wrong_options(argv: list[str], words: str, run_sre: RunSre) -> None:
    ran = run_sre("rules", "generate", *argv)
    assert ran.code == 2
    assert words in " ".join(ran.err.split())
    assert not Path("alerts").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("thresholds: {ttft_seconds: 2}", "monitoring.thresholds.ttft_seconds: 2 is no bucket edge"),
        ("custom_buckets: {nonsense: [1, 2, 3]}", "monitoring.custom_buckets.nonsense: no histogram of this name"),
        ("slo: {availability_objective: 1.0}", "monitoring.slo.availability_objective: 1 leaves no error budget"),
        ("retention_days: 1", "monitoring.retention_days: 1 is shorter than the window of 3d"),
        ("thresholds: {kv_cache_usage_ratio: 90}", "monitoring.thresholds.kv_cache_usage_ratio: 90 is out of range"),
    ],
)
def test_a_wrong_setting_is_named_with_its_place_and_writes_nothing(text: str, words: str, run_sre: RunSre) -> None:
    Path("sre.yaml").write_text(f"monitoring:\n  {text}\n")
    for command in (["generate"], ["list"], ["test"]):
        ran = run_sre("rules", *command)
        assert ran.code == 2
        assert f"sre: sre.yaml: {words}" in ran.err
    assert not Path("alerts").exists()


def test_a_folder_that_cannot_be_written(run_sre: RunSre) -> None:
    Path("file").write_text("")
    ran = run_sre("rules", "generate", "--output-dir", "file/inside")
    assert ran.code == 1
    assert "sre: file/inside: " in ran.err
    assert "name another folder" in ran.err


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Files may grow to 4 KiB only: what comes after fails as on a full disk."""
    import signal

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, before)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_no_half_written_file(run_sre: RunSre) -> None:
    ran = run_sre("rules", "generate")
    assert ran.code == 1
    assert "free space" in ran.err
    for path in Path("alerts").iterdir():
        assert path.suffix == ".yml"
        yaml.safe_load(path.read_text())


# ---- list, test -----------------------------------------------------------------------------------------------------


def test_list_says_what_each_alert_is(run_sre: RunSre) -> None:
    ran = run_sre("rules", "list", "--dimension", "batching")
    assert ran.code == 0
    assert ran.out.splitlines()[:2] == [
        "VllmKvCacheNearlyFull  ticket  batching  for 10m",
        "    engine:vllm_kv_cache_usage:ratio_max > 0.9",
    ]
    rows = json.loads(run_sre("rules", "list", "-o", "json").out)
    hung = next(row for row in rows if row["name"] == "VllmEngineHung")
    assert hung["severity"] == "page"
    assert hung["annotations"]["runbook_url"] == "runbooks/VllmEngineHung.md#vllmenginehung"
    assert hung["expression"].startswith("group by (node, model_name, engine)")


def test_test_proves_alerts_with_promtool(run_sre: RunSre) -> None:
    require_binary("promtool", HINT)
    options = ["--alert", "VllmKvCacheNearlyFull", "--alert", "NodeIowaitHigh"]
    ran = run_sre("rules", "test", *options)
    assert (ran.code, ran.out) == (0, "2 alerts: fires, quiet, no traffic, resolves: all pass\n")
    ran = run_sre("rules", "test", *options, "-o", "json", "--vllm-version", "0.8")
    assert json.loads(ran.out) == {
        "alerts": [{"name": name, "passed": True} for name in ("VllmKvCacheNearlyFull", "NodeIowaitHigh")],
        "failed": {},
    }


def test_test_judges_the_files_of_a_folder(run_sre: RunSre) -> None:
    require_binary("promtool", HINT)
    shutil.copytree(ALERTS, "alerts")
    options = ["alerts", "--alert", "VllmKvCacheNearlyFull", "--alert", "VllmPreemptions"]
    assert run_sre("rules", "test", *options).code == 0
    edited = Path("alerts/sre-batching.yml")
    edited.write_text(edited.read_text().replace("ratio_max > 0.9", "ratio_max > 2"))
    ran = run_sre("rules", "test", *options)
    assert ran.code == 3
    assert "VllmKvCacheNearlyFull: FAILED" in ran.out
    assert "VllmPreemptions: FAILED" not in ran.out
    assert ran.out.splitlines()[-1] == "2 alerts: fires, quiet, no traffic, resolves: 1 fail"


def test_test_without_promtool_says_how_to_get_it(run_sre: RunSre, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.fspath(Path.cwd()))
    ran = run_sre("rules", "test", "--alert", "VllmEngineHung")
    assert ran.code == 1
    assert ran.err == (
        "sre: promtool: not found in PATH; install Prometheus (Debian: apt-get install prometheus), it is part of it\n"
    )


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "sre: rules: no rule files; write them with: sre rules generate --output-dir rules"),
        ({"a.yml": "- 1"}, "sre: rules/a.yml: is no rule file of Prometheus"),
        ({"a.yml": "groups: [{name: x, rules: [1]}]"}, "sre: rules/a.yml: is no rule file of Prometheus"),
        ({"a.yml": "groups: ["}, "sre: rules/a.yml: cannot be read as YAML"),
    ],
)
def test_test_refuses_what_is_no_rule_file(files: dict[str, str], words: str, run_sre: RunSre) -> None:
    Path("rules").mkdir()
    for name, text in files.items():
        Path("rules", name).write_text(text)
    ran = run_sre("rules", "test", "rules")
    assert ran.code == 2
    assert words in ran.err


def test_a_misspelt_alert_is_told_its_name(run_sre: RunSre) -> None:
    ran = run_sre("rules", "test", "--alert", "VllmEngineHang", "--alert", "Nothing")
    assert ran.code == 2
    assert ran.err == (
        "sre: --alert VllmEngineHang: no such alert; did you mean VllmEngineHung?\n"
        "sre: --alert Nothing: no such alert; see sre rules list\n"
    )


def test_help_lists_the_commands_that_live_elsewhere(run_sre: RunSre) -> None:
    out = run_sre("rules", "--help").out
    for command in ("generate", "list", "test", "lint", "verify"):
        assert f"\n  {command} " in out
