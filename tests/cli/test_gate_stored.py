"""sre gate on what is on disk: runs, their reports, baselines, comparison."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from sre.adapters.gate_files import GateFiles
from tests.cli.conftest import RunSre
from tests.cli.stored_gates import DAY, keep, measured
from tests.gate.run.scene import Scene, gate_settings
from tests.support.gate_samples import passed, rich

pytestmark = pytest.mark.usefixtures("own_folder")


# ---- What is on disk ------------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_and_a_damaged_one_hides_no_other(run_sre: RunSre, runs: GateFiles) -> None:
    old = keep(runs, passed(), 1_796_000_000)
    broken = runs.create(1_796_000_050)
    (broken.path / "gate.json").write_text("{")
    new = keep(runs, rich(), 1_796_000_100)
    ran = run_sre("gate", "list")
    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.splitlines()] == ["run", new, broken.id, old]
    assert "unreadable" in ran.out
    data = json.loads(run_sre("gate", "list", "-o", "json").out)
    assert [one["verdict"] for one in data] == ["fail", None, "pass"]


async def test_the_list_says_in_a_few_words_what_decided(run_sre: RunSre, runs: GateFiles) -> None:
    few = (await Scene(settings=gate_settings(objectives=[{"ttft_p99_seconds": 0.001}])).run()).result
    keep(runs, few, 1_796_000_000)
    (row,) = json.loads(run_sre("gate", "list", "-o", "json").out)
    assert row["verdict"] == "fail"
    assert row["decided"] == "20qps/all/ttft_p99_seconds: stage given up (+2)"
    assert row["summary"].startswith("20qps/all/ttft_p99_seconds: ")
    listed = run_sre("gate", "list").out
    assert row["decided"] in listed
    assert row["summary"] not in listed


def test_no_run_yet(run_sre: RunSre) -> None:
    assert run_sre("gate", "list").out == "no run yet; make one with sre gate run\n"
    ran = run_sre("gate", "report")
    assert ran.code == 2
    assert "no run yet" in ran.err


@pytest.mark.parametrize(
    ("form", "begins"),
    [
        ("text", "Gate: FAIL (partial)\n"),
        ("markdown", "## ❌ Gate: FAIL (partial)\n"),
        ("junit", "<?xml"),
        ("html", "<!doctype html>"),
        ("json", '{"schema":"sre/gate-result"'),
        ("annotations", "::error title=Gate%3A FAIL"),
    ],
)
def test_a_run_is_reported_in_every_form(run_sre: RunSre, runs: GateFiles, form: str, begins: str) -> None:
    keep(runs, rich(), 1_796_000_000)
    ran = run_sre("gate", "report", "last", "--format", form)
    assert ran.code == 0, ran.err
    assert ran.out.lower().startswith(begins.lower())


def test_a_run_is_found_by_the_beginning_of_its_id_by_folder_and_by_file(run_sre: RunSre, runs: GateFiles) -> None:
    first, second = keep(runs, passed(), 1_796_000_000), keep(runs, passed(), 1_796_000_001)
    folder = runs.find(first)
    for name in (first, first[:16], str(folder), str(folder / "gate.json")):
        assert run_sre("gate", "report", name).code == 0
    ran = run_sre("gate", "report", first[:9])
    assert (ran.code, "is the beginning of 2 runs" in ran.err) == (2, True)
    assert second
    ran = run_sre("gate", "report", "nothing")
    assert ran.err == "sre: gate: no run and no file 'nothing'; see sre gate list\n"


def test_old_runs_go_and_the_newest_stay(tmp_path: Path) -> None:
    files = GateFiles(tmp_path / "few", runs_kept=3)
    made = [files.create(1_796_000_000 + index).id for index in range(5)]
    assert files.ids() == tuple(made[2:])


def test_the_run_made_last_is_last_and_stays_though_the_clock_was_set_back(tmp_path: Path) -> None:
    files = GateFiles(tmp_path / "few", runs_kept=3)
    made = [files.create(1_796_000_000 - 1000 * index).id for index in range(5)]
    assert files.ids() == tuple(made[2:])
    assert files.find("last").name == made[-1]


def test_a_run_without_its_number_stands_by_its_name(tmp_path: Path) -> None:
    """Of an older version, or copied: it must be neither what is removed first nor what last means."""
    files = GateFiles(tmp_path)
    first, second = files.create(1_796_000_000).id, files.create(1_796_000_002).id
    for name in ("20261129T135320Z-aaaa", "20261129T135321Z-aaaa", "20261129T125321Z-aaaa"):
        (tmp_path / name).mkdir()
    early, between, late = sorted((tmp_path / name).name for name in files.ids() if name.endswith("aaaa"))
    assert files.ids() == (early, *sorted((first, between, late, second)))


async def test_where_the_run_made_last_cannot_be_read_the_newest_that_can_is_named(
    run_sre: RunSre, runs: GateFiles
) -> None:
    good = keep(runs, await measured(), 1_796_000_000)
    empty = runs.create(1_796_000_050).id
    ran = run_sre("gate", "report")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "Gate: PASS")
    assert f"{empty}/gate.json: no such file; the run ended before its first result; the newest run" in ran.err
    assert ran.err.endswith(f"that can be read is {good}, shown here\n")
    # What later runs are judged by is not guessed.
    ran = run_sre("gate", "baseline", "accept")
    assert (ran.code, ran.err.endswith(f"the newest run that can be read is {good}\n")) == (1, True)
    assert run_sre("gate", "baseline", "accept", good).code == 0


def test_a_pipe_or_a_device_is_told_and_not_read_for_ever(run_sre: RunSre) -> None:
    os.mkfifo("pipe")
    for name in ("pipe", "/dev/zero"):
        for command in (("report", name), ("baseline", "accept", name), ("compare", name, name)):
            ran = run_sre("gate", *command)
            assert (ran.code, f"{name}: is no file but a pipe" in ran.err) == (1, True), ran.err
        ran = run_sre("gate", "run", "--dry-run", "--trace", name)
        assert (ran.code, f"{name}: is no file but a pipe" in ran.err) == (2, True), ran.err
        ran = run_sre("gate", "import", name)
        assert (ran.code, f"{name}: is no file but a pipe" in ran.err) == (2, True), ran.err


# ---- Baselines and comparison ---------------------------------------------------------------------------------------


async def test_a_run_is_accepted_as_baseline_shown_and_compared_with(run_sre: RunSre, runs: GateFiles) -> None:
    good, same = await measured(), await measured()
    slow = await measured(script=_slow())
    for index, result in enumerate((good, same, slow)):
        keep(runs, result, 1_796_000_000 + index)
    first, second, third = runs.ids()
    dry = run_sre("gate", "baseline", "accept", first, "--dry-run")
    assert (dry.code, Path("gate-baselines").exists()) == (0, False)
    accepted = run_sre("gate", "baseline", "accept", first, "--note", "release 7")
    assert accepted.code == 0, accepted.err
    assert accepted.out == f"accepted {first} as baseline default: 5 runs in gate-baselines/default.json; commit it\n"
    shown = run_sre("gate", "baseline", "show")
    assert "release 7" in shown.out
    assert "  client_host: test" in shown.out
    assert "default" in run_sre("gate", "baseline", "list").out
    assert run_sre("gate", "compare", "default", second).code == 0
    ran = run_sre("gate", "compare", first, third)
    assert ran.code == 3
    assert ran.out.startswith("Gate: FAIL\n")
    assert json.loads(run_sre("gate", "compare", first, third, "-o", "json").out)["verdict"] == "fail"
    added = run_sre("gate", "baseline", "accept", second, "--add", "-o", "json")
    assert json.loads(added.out)["runs"] == 10


async def test_a_baseline_is_replaced_by_a_newer_run_only_and_never_silently(run_sre: RunSre, runs: GateFiles) -> None:
    day, found = 86_400, await measured()
    ids = [
        keep(runs, dataclasses.replace(found, wall_started_at=wall), wall)
        for wall in (1_796_000_000, 1_796_000_000 + day, 1_796_000_000 + 2 * day)
    ]
    file = Path("gate-baselines/default.json")
    assert run_sre("gate", "baseline", "accept", ids[1]).code == 0
    first = file.read_bytes()
    again = run_sre("gate", "baseline", "accept", ids[1])  # `last` after a run that was refused
    assert (again.code, again.out) == (0, f"{ids[1]} is baseline default already: nothing to do\n")
    assert json.loads(run_sre("gate", "baseline", "accept", ids[1], "-o", "json").out)["written"] is False
    older = run_sre("gate", "baseline", "accept", ids[0])
    assert older.code == 3
    assert f"{ids[0]} is older than what it would replace (5 runs of {DAY}, {ids[1]})" in older.err
    assert "--add" in older.err
    assert "--force" in older.err
    assert file.read_bytes() == first
    newer = run_sre("gate", "baseline", "accept", ids[2])
    assert newer.code == 0
    assert f"; replaces 5 runs of {DAY}, {ids[1]}; commit it" in newer.out
    assert run_sre("gate", "baseline", "accept", ids[0], "--add").code == 0
    among = run_sre("gate", "baseline", "accept", ids[0])
    assert (among.code, f"{ids[0]} is one of them" in among.err) == (3, True)
    forced = run_sre("gate", "baseline", "accept", ids[0], "--force", "-o", "json")
    assert json.loads(forced.out)["replaces"] == f"10 runs of {DAY}, {ids[2]}, {ids[0]}"
    file.write_text("{")
    assert "; replaces a file that could not be read" in run_sre("gate", "baseline", "accept", ids[0]).out


async def test_a_baseline_with_which_nothing_can_pass_is_warned_of(run_sre: RunSre, runs: GateFiles) -> None:
    settings = gate_settings(load={"stages_qps": [20], "stage_seconds": 5}, baseline={"runs": 5})
    few = keep(runs, (await Scene(settings=settings).run()).result, 1_796_000_000)
    ran = run_sre("gate", "baseline", "accept", few, "-o", "json")
    assert ran.code == 0
    warnings = json.loads(ran.out)["warnings"]
    assert any("requests per run, P99 takes 299" in one and "--seconds" in one for one in warnings)
    assert all(f"sre gate: warning: {one}" in ran.err for one in warnings)
    many = keep(runs, await measured(), 1_796_000_001)
    assert json.loads(run_sre("gate", "baseline", "accept", many, "-o", "json").out)["warnings"] == []


def _slow() -> Any:
    from sre.testing.load import Behaviour

    return Behaviour(service_seconds=0.08)


async def test_a_run_that_failed_or_was_cut_short_is_no_baseline(run_sre: RunSre, runs: GateFiles) -> None:
    keep(runs, rich(), 1_796_000_000)
    ran = run_sre("gate", "baseline", "accept")
    assert ran.code == 3
    assert "not accepted as baseline: it was interrupted" in ran.err
    assert not Path("gate-baselines").exists()
    few = keep(runs, await measured(2), 1_796_000_001)
    assert run_sre("gate", "baseline", "accept", few).code == 3
    assert run_sre("gate", "baseline", "accept", few, "--force").code == 0


async def test_a_comparison_with_another_environment_is_refused(run_sre: RunSre, runs: GateFiles) -> None:
    one = keep(runs, await measured(), 1_796_000_000)
    other = keep(runs, await measured(described=(("client_host", "another"),)), 1_796_000_001)
    ran = run_sre("gate", "compare", one, other)
    assert ran.code == 2
    assert "client_host" in ran.err


async def test_a_comparison_looks_at_the_client_and_the_end_of_both_runs(run_sre: RunSre, runs: GateFiles) -> None:
    good = keep(runs, await measured(), 1_796_000_000)
    another = keep(runs, await measured(), 1_796_000_003)
    limited = keep(runs, await measured(client_limited=True), 1_796_000_001)
    cut = keep(runs, dataclasses.replace(await measured(), interrupted="killed"), 1_796_000_002)
    assert run_sre("gate", "compare", good, another).code == 0
    for reference, candidate in ((good, limited), (limited, good)):
        ran = run_sre("gate", "compare", reference, candidate)
        assert ran.code == 5
        assert "this machine cannot send" in ran.out
    ran = run_sre("gate", "compare", good, cut)
    assert ran.code == 5
    assert f"cut short: {cut}: killed" in ran.out


async def test_a_baseline_is_compared_with_by_its_file_too(run_sre: RunSre, runs: GateFiles) -> None:
    first, second = keep(runs, await measured(), 1_796_000_000), keep(runs, await measured(), 1_796_000_100)
    assert run_sre("gate", "baseline", "accept", first).code == 0
    file = next(Path().rglob("default.json"))
    by_file, by_name = (run_sre("gate", "compare", name, second) for name in (str(file), "default"))
    assert (by_file.code, by_file.out) == (0, by_name.out)
    assert run_sre("gate", "compare", str(file), "default").code == 2  # the same runs
    Path("other.json").write_text("{}")
    ran = run_sre("gate", "compare", "other.json", second)
    assert (ran.code, ran.err.startswith("sre: other.json: ")) == (1, True)


async def test_a_run_is_not_compared_with_itself(run_sre: RunSre, runs: GateFiles) -> None:
    """It would pass: a CI job that names one file twice must not go green for ever."""
    one = keep(runs, await measured(), 1_796_000_000)
    assert run_sre("gate", "baseline", "accept").code == 0
    for reference in (one, "default"):
        ran = run_sre("gate", "compare", reference, "last")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == f"sre: gate: run {one} is in {reference} and in last: it cannot differ from itself\n"


def test_neither_a_run_nor_a_baseline_is_said_with_both_lists(run_sre: RunSre) -> None:
    ran = run_sre("gate", "compare", "other", "last")
    assert ran.code == 2
    assert ran.err == "sre: gate: no run, no file and no baseline 'other'; see sre gate list, sre gate baseline list\n"


def test_no_baseline_yet(run_sre: RunSre) -> None:
    assert run_sre("gate", "baseline", "list").out == "no baseline yet; accept one with sre gate baseline accept\n"
    ran = run_sre("gate", "baseline", "show", "nightly")
    assert ran.code == 2
    assert ran.err == "sre: gate: no baseline 'nightly' in gate-baselines; accept one with sre gate baseline accept\n"
