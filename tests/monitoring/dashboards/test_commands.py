"""sre dashboards: files on disk, their check, and what the commands print."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import RunSre
from tests.monitoring.dashboards.fake_grafana import TOKEN, FakeGrafana

ROOT = Path(__file__).resolve().parents[3]
UIDS = ["sre-batching", "sre-breaker", "sre-overview", "sre-request", "sre-resource", "sre-slo"]


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# ---- generate --------------------------------------------------------------------------------------------------------


def test_what_is_committed_is_what_is_generated(run_sre: RunSre) -> None:
    """Remedy: make docs."""
    ran = run_sre("dashboards", "generate", "--check", "--output-dir", str(ROOT / "dashboards"))
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert [path.stem for path in sorted((ROOT / "dashboards").glob("*.json"))] == UIDS


def test_the_check_can_fail(run_sre: RunSre, tmp_path: Path) -> None:
    assert run_sre("dashboards", "generate", "--output-dir", str(tmp_path)).code == 0
    file = tmp_path / "sre-overview.json"
    file.write_text(file.read_text().replace('"Disk await"', '"Disk wait"', 1))
    (tmp_path / "sre-slo.json").unlink()
    ran = run_sre("dashboards", "generate", "--check", "--output-dir", str(tmp_path))
    assert ran.code == 3
    assert '-   "title": "Disk wait",\n+   "title": "Disk await",\n' in ran.out
    assert f"--- /dev/null\n+++ {tmp_path}/sre-slo.json\n" in ran.out
    assert not (tmp_path / "sre-slo.json").exists()


def test_the_same_bytes_every_time(run_sre: RunSre, tmp_path: Path) -> None:
    first = run_sre("dashboards", "generate", "--output-dir", str(tmp_path))
    assert first.err == f"{tmp_path}: 6 dashboards, 6 written\n"
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in names(tmp_path)}
    again = run_sre("dashboards", "generate", "--output-dir", str(tmp_path))
    assert again.err == f"{tmp_path}: 6 dashboards, 0 written\n"
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in names(tmp_path)} == before
    assert all((tmp_path / name).read_bytes().endswith(b"}\n") for name in before)


def test_what_was_generated_and_is_no_longer_goes_and_own_files_stay(run_sre: RunSre, tmp_path: Path) -> None:
    run_sre("dashboards", "generate", "--output-dir", str(tmp_path))
    (tmp_path / "sre-old.json").write_text((tmp_path / "sre-slo.json").read_text())
    (tmp_path / "mine.json").write_text("{}")
    (tmp_path / "pictures").mkdir()
    check = run_sre("dashboards", "generate", "--check", "--output-dir", str(tmp_path))
    assert check.code == 3
    assert "sre-old.json" in check.out
    ran = run_sre("dashboards", "generate", "--output-dir", str(tmp_path))
    assert ran.err == f"{tmp_path}: 6 dashboards, 0 written; no longer wanted and removed: sre-old.json\n"
    assert names(tmp_path) == ["mine.json", "pictures", *(f"{uid}.json" for uid in UIDS)]


def test_a_file_of_somebody_elses_is_never_overwritten(run_sre: RunSre, tmp_path: Path) -> None:
    (tmp_path / "sre-slo.json").write_text("{}")
    ran = run_sre("dashboards", "generate", "--output-dir", str(tmp_path))
    assert ran.code == 1
    assert ran.err.startswith(f"sre: {tmp_path}/sre-slo.json: was not generated")
    assert names(tmp_path) == ["sre-slo.json"]


def test_a_folder_that_cannot_be_one(run_sre: RunSre, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = run_sre("dashboards", "generate", "--output-dir", str(tmp_path / "file" / "below"))
    assert ran.code == 1
    assert "Not a directory" in ran.err


def test_printed_instead_of_written(run_sre: RunSre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run_sre("dashboards", "generate", "--stdout")
    assert sorted(one["uid"] for one in json.loads(ran.out)) == UIDS
    assert names(tmp_path) == []
    both = run_sre("dashboards", "generate", "--stdout", "--check")
    assert both.code == 2


def test_config_maps_hold_the_same_json(run_sre: RunSre, tmp_path: Path) -> None:
    run_sre("dashboards", "generate", "--output-dir", str(tmp_path), "--format", "configmap")
    assert names(tmp_path) == [f"{uid}.yaml" for uid in UIDS]
    for uid in UIDS:
        config_map = yaml.safe_load((tmp_path / f"{uid}.yaml").read_text())
        assert (config_map["apiVersion"], config_map["kind"]) == ("v1", "ConfigMap")
        assert config_map["metadata"] == {"name": uid, "labels": {"grafana_dashboard": "1"}}
        assert config_map["data"] == {f"{uid}.json": (ROOT / "dashboards" / f"{uid}.json").read_text()}
    assert (
        run_sre("dashboards", "generate", "--check", "--output-dir", str(tmp_path), "--format", "configmap").code == 0
    )


def test_options_go_before_sre_yaml(run_sre: RunSre, tmp_path: Path) -> None:
    config = tmp_path / "sre.yaml"
    config.write_text('monitoring: {vllm_version: "0.11", metric_prefix: "ray_vllm_"}\n')
    out = run_sre("--config", str(config), "dashboards", "generate", "--stdout", "--metric-prefix", "other:").out
    assert "other:num_requests_running" in out
    assert "ray_vllm_" not in out


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--vllm-version", "new", "'new' is no version; write it like 0.32 or 4.8.3"),
        ("--dcgm-exporter-version", "4", "'4' is no version"),
        ("--metric-prefix", "a b", "--metric-prefix: "),
    ],
)
def test_an_option_that_is_wrong_is_named(run_sre: RunSre, option: str, value: str, words: str) -> None:
    ran = run_sre("dashboards", "generate", "--stdout", option, value)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


def test_a_list_of_what_would_be_generated(run_sre: RunSre) -> None:
    ran = run_sre("dashboards", "list")
    assert ran.out.splitlines()[0].startswith("sre-overview")
    rows = json.loads(run_sre("dashboards", "list", "--output", "json").out)
    assert sorted(row["uid"] for row in rows) == UIDS
    assert all(row["panels"] > 5 and row["about"] for row in rows)


# ---- push ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGrafana]:
    """A Grafana in another thread, since the command runs a loop of its own."""
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)
    one = FakeGrafana()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(one.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield one
    finally:
        asyncio.run_coroutine_threadsafe(one.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def test_pushing_says_what_became_of_each(run_sre: RunSre, server: FakeGrafana) -> None:
    argv = ("dashboards", "push", "--url", server.url, "--token", "env:GRAFANA_TOKEN", "--folder", "sre")
    plan = run_sre(*argv, "--dry-run")
    assert (plan.code, plan.err) == (0, "")
    assert plan.out.splitlines()[0] == "sre-overview: would be created"
    ran = run_sre(*argv)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[0] == f"sre-overview: created: {server.url}/d/sre-overview/slug"
    assert sorted(server.dashboards) == UIDS
    assert server.folders == {"sre": "sre"}
    again = json.loads(run_sre(*argv, "--output", "json").out)
    assert {one["outcome"] for one in again["dashboards"]} == {"unchanged"}
    stored, _ = server.dashboards["sre-slo"]
    assert stored["editable"] is False


def test_a_push_of_a_part_is_told_by_name(run_sre: RunSre, server: FakeGrafana) -> None:
    server.provisioned = frozenset({"sre-slo"})
    ran = run_sre("dashboards", "push", "--url", server.url, "--token", "env:GRAFANA_TOKEN")
    assert ran.code == 1
    assert ran.err == "sre: 1 of 6 dashboards not pushed: sre-slo\n"
    assert len(server.dashboards) == 5


def test_a_token_is_never_taken_from_the_command_line(run_sre: RunSre, tmp_path: Path) -> None:
    ran = run_sre("dashboards", "push", "--url", "http://127.0.0.1:1", "--token", "glsa_secret")
    assert ran.code == 2
    assert ran.err == "sre: --token: a secret is never written here; write env:NAME or file:/path\n"
    file = tmp_path / "token"
    ran = run_sre("dashboards", "push", "--url", "http://127.0.0.1:1", "--token", f"file:{file}")
    assert (ran.code, "No such file" in ran.err) == (2, True)


def test_a_token_from_a_file(run_sre: RunSre, server: FakeGrafana, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + os.linesep)
    assert run_sre("dashboards", "push", "--url", server.url, "--token", f"file:{file}").code == 0


def test_a_folder_uid_that_grafana_refuses_is_refused_before(run_sre: RunSre) -> None:
    ran = run_sre("dashboards", "push", "--url", "http://127.0.0.1:1", "--token", "env:HOME", "--folder", "a b")
    assert ran.code == 2
    assert ran.err == "sre: --folder: 'a b' is no uid; a-z, 0-9, - and _, 40 characters at the most\n"
