"""sre gate, without a server: options, the dry run, CI files."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from sre.adapters.gate_files import GateFiles
from sre.errors import Rejected, Unreachable
from sre.wiring.gate_naming import naming_options
from tests.cli.conftest import RunSre
from tests.cli.stored_gates import keep, measured

pytestmark = pytest.mark.usefixtures("own_folder")


# ---- Options and the dry run ----------------------------------------------------------------------------------------


def test_dry_run_shows_every_stage_and_sends_nothing(run_sre: RunSre) -> None:
    ran = run_sre(
        "gate", "run", "--dry-run", "--url", "http://127.0.0.1:9/v1", "--stages", "10,20", "--seconds", "5", "--runs",
        "2", "--no-knee", "--scale", "0.5",
    )  # fmt: skip
    assert ran.code == 0
    assert ran.err == ""
    assert ran.out == (
        "would load http://127.0.0.1:9; no baseline: judged by the objectives alone\n"
        "\n"
        "stage    kind       run  rate  time  requests\n"
        "warm-up  warm_up    1     5/s   4 s        20\n"
        "5qps     staircase  1     5/s   5 s        25\n"
        "10qps    staircase  1    10/s   5 s        50\n"
        "5qps     staircase  2     5/s   5 s        25\n"
        "10qps    staircase  2    10/s   5 s        50\n"
        "\n"
        "about 170 requests at the most; 24 s at least, 5 min if every stage drains to its end\n"
    )
    assert not Path("state").exists()


def test_dry_run_as_json_of_an_interleaved_comparison(run_sre: RunSre) -> None:
    ran = run_sre(
        "gate", "run", "--dry-run", "-o", "json", "--url", "http://a:1", "--against", "http://b:1", "--stages", "10",
        "--runs", "2",
    )  # fmt: skip
    document = json.loads(ran.out)
    assert (document["url"], document["against"], document["knee_stages_at_most"]) == ("http://a:1", "http://b:1", 0)
    assert [stage["side"] for stage in document["stages"] if stage["kind"] == "staircase"] == ["A", "B", "B", "A"]


def test_dry_run_replays_a_trace_and_adds_the_long_tail_test(run_sre: RunSre) -> None:
    lines = [{"offset_seconds": index, "prompt_tokens": 10, "max_tokens": 2} for index in range(11)]
    Path("trace.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    ran = run_sre("gate", "run", "--dry-run", "--trace", "trace.jsonl", "--runs", "1", "--long-tail")
    assert ran.code == 0
    rows = ran.out.splitlines()
    assert rows[4].split() == ["trace", "staircase", "1", "1/s", "11", "s", "11"]
    assert "100qps-mixed" in ran.out


def test_a_run_longer_than_its_deadline_is_told_beforehand(run_sre: RunSre) -> None:
    ran = run_sre("gate", "run", "--dry-run", "--seconds", "3000")
    assert "longer than gate.deadline_seconds (60 min): it would be cut short" in ran.out


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--stages", "10,x"], "--stages: '10,x' is no list of rates; write 10,50,100"),
        (["--stages", "50,10"], "--stages: must rise from stage to stage"),
        (["--stages", "-1"], "--stages: -1.0 is out of range; write more than 0"),
        (["--seconds", "0"], "--seconds: 0.0 is out of range; write more than 0"),
        (["--runs", "0"], "--runs: 0 is out of range; write at least 1"),
        (["--long-tokens", "0"], "--long-tokens: 0 is out of range; write at least 1"),
        (["--url", "host:8000"], "--url: is not a base URL; write http://host:port"),
        (["--against", "http://u:p@host"], "--against: a secret is never written here; remove user and password, and"
         " write api_key: env:NAME"),
        (["--baseline", "No Such"], "--baseline: 'No Such' is not a name; write small letters, digits, - and _"),
        (["--trace", "none.jsonl"], "none.jsonl: No such file or directory; name a file of lines with offset_seconds,"
         " prompt_tokens, max_tokens"),
        (["--require-baseline"], "baseline default: there is no baseline, and --require-baseline was given; accept"
         " one with: sre gate baseline accept RUN"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_told_before_anything_is_sent(run_sre: RunSre, options: list[str], problem: str) -> None:
    ran = run_sre("gate", "run", *options)
    assert ran.out == ""
    assert ran.err == f"sre: {problem}\n"
    assert ran.code == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--junit", "file/junit.xml"), "--junit file/junit.xml: {here}/file: is no folder; name another file"),
        (
            ("--junit", "/proc/none/j.xml"),
            "--junit /proc/none/j.xml: no file can be made in /proc: No such file or "
            "directory; correct its permissions, or name another file",
        ),
        (("--summary", "none/s.md"), "--summary none/s.md: {here}/none: there is no such folder; name another file"),
    ],
)
def test_a_file_for_ci_that_cannot_be_written_is_told_before_the_load(
    run_sre: RunSre, short_dir: Path, options: tuple[str, ...], problem: str
) -> None:
    Path("file").write_text("")
    ran = run_sre("gate", "run", "--url", "http://127.0.0.1:9", *options)
    assert (ran.code, ran.err) == (1, f"sre: {problem.format(here=short_dir)}\n")


def test_a_closed_stdout_is_told_before_the_load(run_sre: RunSre) -> None:
    with contextlib.redirect_stdout(None):  # what Python makes of ``>&-``
        ran = run_sre("gate", "run", "--url", "http://127.0.0.1:1", "--output", "json")
    assert (ran.code, ran.err) == (
        1, "sre: stdout is closed, nobody would get the answer; to throw it away: > /dev/null\n",
    )  # fmt: skip


def test_an_error_is_told_though_its_json_finds_a_full_disk(run_sre: RunSre) -> None:
    with open("/dev/full", "w") as full, contextlib.redirect_stdout(full):
        ran = run_sre("gate", "run", "--url", "http://127.0.0.1:1", "--stages", "20,10", "--output", "json")
    assert ran.code == 2
    assert "--stages" in ran.err


def test_a_file_for_ci_is_looked_for_and_not_made_beforehand(run_sre: RunSre) -> None:
    new = ("--junit", "new/folder/junit.xml", "--summary", "new.md")
    assert run_sre("gate", "run", "--dry-run", "--junit", "/dev/stdout").code == 0
    assert run_sre("gate", "run", "--dry-run", *new).code == 0
    assert not list(Path().iterdir())


def test_a_dry_run_shows_the_long_tail_test_of_both_sides_of_a_comparison(run_sre: RunSre) -> None:
    ran = run_sre(
        "gate", "run", "--dry-run", "-o", "json", "--url", "http://a:1", "--against", "http://b:1", "--long-tail"
    )
    stages = [(one["policy"], one["kind"]) for one in json.loads(ran.out)["stages"]]
    assert stages[-20:-16] == [("", "shorts"), ("", "mixed"), ("B", "shorts"), ("B", "mixed")]


def test_a_setting_that_is_wrong_is_named_as_a_setting(run_sre: RunSre) -> None:
    Path("sre.yaml").write_text("gate: {baseline: {required: true}}\n")
    ran = run_sre("gate", "run")
    assert (ran.code, "and gate.baseline.required is true; accept" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (("--url", "http://127.0.0.1:{port}"), "start it, or check --url\n"),
        ((), "start it, or check --url, or gate.target.url\n"),
    ],
)
def test_a_server_that_is_not_there_is_told_by_what_named_it(
    run_sre: RunSre, free_port: Any, options: tuple[str, ...], remedy: str
) -> None:
    port = free_port()
    Path("sre.yaml").write_text(f"gate: {{target: {{url: 'http://127.0.0.1:{port}'}}}}\n")
    ran = run_sre("gate", "run", *(option.format(port=port) for option in options))
    assert ran.code == 1
    assert ran.err.endswith(remedy)


def test_a_message_about_the_other_side_names_against() -> None:
    problem = "no connection: refused; start it, or check --url, or gate.target.url"
    for system, told in (("target http://a", "--url"), ("target http://b", "--against")):
        with pytest.raises(Unreachable) as caught, naming_options({"gate.target.url": "--url"}, "http://b"):
            raise Unreachable(system, problem)
        assert str(caught.value) == f"{system}: no connection: refused; start it, or check {told}"
    with pytest.raises(Rejected, match=r"set --model$"), naming_options({"gate.target.model": "--model"}):
        raise Rejected("target http://a", "serves no model x; it serves y: set gate.target.model")
    with pytest.raises(Rejected, match=r"set gate\.target\.model$"), naming_options({}):
        raise Rejected("target http://a", "serves no model x; it serves y: set gate.target.model")


async def test_a_trace_beside_a_baseline_of_stages_names_the_way_out(run_sre: RunSre, runs: GateFiles) -> None:
    assert run_sre("gate", "baseline", "accept", keep(runs, await measured(), 1_796_000_000)).code == 0
    Path("trace.jsonl").write_text(
        "".join(f'{{"offset_seconds": {n}, "prompt_tokens": 5, "max_tokens": 2}}\n' for n in range(9))
    )
    ran = run_sre("gate", "run", "--dry-run", "--trace", "trace.jsonl")
    assert ran.code == 2
    assert ran.err.startswith("sre: baseline default: is of stages 20qps, this run has a trace; compare with another")
    assert "--baseline OTHER" in ran.err
    ran = run_sre("gate", "run", "--dry-run", "--trace", "trace.jsonl", "--baseline", "other")
    assert (ran.code, ran.err) == (
        0,
        "gate: --baseline other: there is none of this name, the objectives alone judge; see sre gate baseline list\n",
    )


async def test_a_dry_run_refuses_another_load_than_the_baselines_as_the_run_does(
    run_sre: RunSre, runs: GateFiles
) -> None:
    """Nothing answers there: it is told before anything is asked."""
    result = await measured()
    assert run_sre("gate", "baseline", "accept", keep(runs, result, 1_796_000_000)).code == 0
    fields = dict(result.fingerprint.fields)
    told = [
        "baseline default: stages was 20qps, this run has 10qps",
        f"baseline default: stage_seconds was {fields['stage_seconds']}, this run has 1",
    ]
    for dry in (["--dry-run"], []):
        ran = run_sre("gate", "run", "--url", "http://127.0.0.1:9", "--stages", "10", "--seconds", "1", *dry)
        assert (ran.code, ran.out) == (2, "")
        assert all(one in ran.err for one in told), ran.err
        assert "gate.baseline.may_differ" in ran.err
        assert "client" not in ran.err  # what only the run can see is not guessed
    assert run_sre("gate", "run", "--dry-run", "--stages", "10", "--baseline", "other").code == 0


def test_an_objective_on_a_stage_that_is_not_planned_is_told(run_sre: RunSre) -> None:
    Path("sre.yaml").write_text("gate: {objectives: [{stage: 100qps, failed_ratio: 0.01}]}\n")
    assert run_sre("gate", "run", "--dry-run").code == 0
    ran = run_sre("gate", "run", "--dry-run", "--stages", "10,20")
    assert ran.code == 2
    assert ran.err == "sre: gate.objectives[0].stage: no stage '100qps' in this plan; its stages: 10qps, 20qps\n"
    ran = run_sre("gate", "run", "--dry-run", "--stages", "10,20", "--scale", "0.1")
    assert "its stages: 1qps, 2qps (every rate times 0.1: gate.load.qps_scale, --scale)\n" in ran.err


def test_without_a_stack_the_default_target_says_how_to_start_one(run_sre: RunSre, free_port: Any) -> None:
    port = free_port()
    Path("sre.yaml").write_text(f"stack: {{gateway: {{port: {port}}}}}\n")
    ran = run_sre("gate", "run")
    assert ran.code == 1
    assert ran.err.splitlines()[-1] == (
        f"sre: gateway http://127.0.0.1:{port}: no connection; start the stack with sre up, or name another server"
        " with --url"
    )
    assert not Path("state").exists()


# ---- The rest -------------------------------------------------------------------------------------------------------


def test_the_schema_is_printed_as_it_is_published(run_sre: RunSre) -> None:
    from sre.gate.report.schema import published

    assert run_sre("gate", "schema").out == published()


@pytest.mark.parametrize("name", ["github", "gitlab", "kubernetes"])
def test_snippets_are_printed(run_sre: RunSre, name: str) -> None:
    ran = run_sre("gate", "snippet", name)
    assert ran.code == 0
    assert "gate run" in ran.out


def test_what_cannot_be_imported_is_told(run_sre: RunSre) -> None:
    Path("some.json").write_text("{}")
    ran = run_sre("gate", "import", "some.json")
    assert ran.code == 2
    assert ran.err.startswith("sre: some.json: this is no file of a load tool that is known here; expected ")
