"""sre gate run as a person or a CI system starts it: real processes, real sockets, every way to end."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sre.adapters.gate_files import GateFiles, read_result
from sre.gate.report import jsonl
from sre.gate.verdict import Reason, Verdict
from sre.simulator.capacity import Kind, capacity
from sre.simulator.scheduler import Limits
from tests.support.engines import running_sim
from tests.support.sse_stub import SseStub

pytestmark = pytest.mark.integration

WaitUntil = Callable[..., Awaitable[Any]]
SETTINGS = """\
gate:
  # A busy machine makes the client late; what is tested here does not depend on it.
  client_lag_p99_seconds: 30
  load:
    stages_qps: [20, 40]
    stage_seconds: 1
    drain_seconds: 5
    warm_up_requests: 0
    warm_up_seconds: 0
    mix: [{name: short, prompt_tokens: 40, max_tokens: 4}]
  knee: {enabled: false}
  objectives: [{failed_ratio: 0.2}]
  baseline: {runs: 1}
"""


def records_of(path: Path) -> jsonl.RequestLog:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return jsonl.parse(lines)


@dataclass
class Gate:
    """A running ``sre gate run``."""

    process: asyncio.subprocess.Process
    state: Path

    @property
    def files(self) -> GateFiles:
        return GateFiles(self.state / "gate")

    def stages_on_disk(self) -> int:
        """How many stages gate.json of the last run holds."""
        ids = self.files.ids()
        if not ids or not (self.state / "gate" / ids[-1] / "gate.json").exists():
            return 0
        return sum(stage.summary is not None for run in self.files.read(ids[-1]).runs for stage in run.stages)

    async def ended(self, seconds: float = 60) -> tuple[int, str, str]:
        out, err = await asyncio.wait_for(self.process.communicate(), seconds)
        return self.process.returncode or 0, out.decode(), err.decode()


@contextlib.asynccontextmanager
async def started(
    folder: Path, url: str, *options: str, settings: str = SETTINGS, stdout: int = asyncio.subprocess.PIPE
) -> AsyncIterator[Gate]:
    """The command, in a session of its own; gone afterwards, with its load processes."""
    config = folder / "sre.yaml"
    config.write_text(settings)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sre", "--config", str(config), "--state-dir", str(folder / "s"),
        "gate", "run", "--url", url, *options,
        stdin=asyncio.subprocess.DEVNULL, stdout=stdout, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")},
    )  # fmt: skip
    try:
        yield Gate(process, folder / "s")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


async def test_an_answer_that_nobody_reads_is_said_and_where_it_is(short_dir: Path) -> None:
    """``sre gate run | true``."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        async with SseStub() as stub, started(short_dir, stub.url, stdout=writer) as gate:
            _, err = await asyncio.wait_for(gate.process.communicate(), 60)
    finally:
        os.close(writer)
    assert gate.process.returncode == 1
    told = err.decode().splitlines()[-1]
    assert told.startswith("sre gate: the answer could not be printed: nobody reads stdout; it is in ")
    assert told.endswith("and would have been exit code 0")


async def test_a_fail_that_a_full_disk_keeps_from_stdout_is_a_fail_and_says_where_it_is(short_dir: Path) -> None:
    """``sre gate run > /dev/full``."""
    settings = SETTINGS.replace("failed_ratio: 0.2", "ttft_p99_seconds: 0.000001")
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        async with (
            SseStub() as stub,
            started(short_dir, stub.url, "--github-annotations", "on", settings=settings, stdout=full) as gate,
        ):
            _, err = await asyncio.wait_for(gate.process.communicate(), 60)
            folder = gate.files.find("last")
    finally:
        os.close(full)
    told = err.decode()
    assert gate.process.returncode == 3, told
    assert (
        "sre gate: the answer could not be printed: stdout: No space left on device; it is in "
        f"{folder.resolve()}: Gate: FAIL\n"
    ) in told
    assert told.splitlines()[-1].startswith("::error ")


async def test_two_gates_at_once_pass_each_with_a_folder_of_its_own(short_dir: Path) -> None:
    junit, summary = short_dir / "out" / "junit.xml", short_dir / "summary.md"
    summary.write_text("before\n")
    async with (
        SseStub() as stub,
        started(short_dir, stub.url, "--junit", str(junit), "--summary", str(summary)) as first,
        started(short_dir, stub.url, "--output", "json") as second,
    ):
        (code, out, err), (other_code, other_out, other_err) = await asyncio.gather(first.ended(), second.ended())
    assert code == 0, err
    assert other_code == 0, other_err
    assert out.splitlines()[0] == "Gate: PASS"
    assert "run 1 20qps: " in err
    document = json.loads(other_out)
    assert (document["verdict"], document["exit_code"]) == ("pass", 0)
    assert len(first.files.ids()) == 2
    assert document["id"] in first.files.ids()
    assert junit.read_text().startswith("<?xml")
    assert summary.read_text().startswith("before\n## ✅ Gate: PASS")
    folder = Path(document["folder"])
    assert {path.name for path in folder.iterdir()} == {
        ".number", "gate.json", "junit.xml", "summary.md", "report.html",
        "requests-0-20qps.jsonl.gz", "requests-0-40qps.jsonl.gz",
    }  # fmt: skip
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    log = records_of(folder / "requests-0-40qps.jsonl.gz")
    assert len(log.records) == log.planned > 20


async def test_a_server_that_dies_fails_the_gate_and_what_was_measured_is_kept(
    short_dir: Path, wait_until_async: WaitUntil
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        stub = await stack.enter_async_context(SseStub())
        gate = await stack.enter_async_context(started(short_dir, stub.url, "--stages", "20,40,60"))
        await wait_until_async(lambda: gate.stages_on_disk() == 1, 40)
        await wait_until_async(lambda: stub.in_flight or len(stub.stage()) > 0, 10)
        await stub.__aexit__(None, None, None)
        code, out, err = await gate.ended()
        assert code == 3, err
        assert out.splitlines()[0] == "Gate: FAIL (partial)"
        result = gate.files.read("last")
    assert [stage.aborted or stage.skipped for stage in result.runs[0].stages] == [
        "", "server_gone", "an earlier stage was given up: the server takes no connections any more",
    ]  # fmt: skip
    assert "takes no connections any more" in result.interrupted
    assert Reason.STAGE_GIVEN_UP in result.verdict.reasons


async def test_ctrl_c_keeps_what_was_measured_and_reports_it(short_dir: Path, wait_until_async: WaitUntil) -> None:
    async with SseStub() as stub, started(short_dir, stub.url, "--stages", "20,40,60") as gate:
        await wait_until_async(lambda: gate.stages_on_disk() == 1, 40)
        gate.process.send_signal(signal.SIGINT)
        code, out, err = await gate.ended()
        result = gate.files.read("last")
        folder = gate.files.find("last")
    assert code == 6, err
    assert out.splitlines()[0] == "Gate: INCONCLUSIVE (partial)"
    assert "stopping: what was measured is kept" in err
    assert result.interrupted == "stopped by a person"
    assert result.runs[0].stages[0].summary is not None
    assert (folder / "report.html").exists()


async def test_a_killed_run_is_found_marked_and_judged_by_nobody(short_dir: Path, wait_until_async: WaitUntil) -> None:
    async with SseStub() as stub, started(short_dir, stub.url) as gate:
        await wait_until_async(lambda: gate.stages_on_disk() == 1, 40)
        gate.process.kill()
        await gate.process.wait()
        result = gate.files.read("last")
        folder = gate.files.find("last")
        # Its load processes end by themselves: nobody is left who would read what they measure.
        await wait_until_async(lambda: stub.in_flight == 0, 10)
    assert result.interrupted == "killed, or still running"
    assert result.verdict.verdict is Verdict.INCONCLUSIVE
    assert (folder / "requests-0-20qps.jsonl.gz").exists()
    assert records_of(folder / "requests-0-20qps.jsonl.gz").notes == ()


async def test_a_full_disk_ends_the_run_with_a_sentence_and_a_result_that_says_so(
    short_dir: Path, wait_until_async: WaitUntil
) -> None:
    async with SseStub() as stub, started(short_dir, stub.url, "--stages", "20,40,60") as gate:
        await wait_until_async(lambda: gate.stages_on_disk() == 1, 40)
        # As on a full disk, no file can grow: every further write of more than some bytes is refused.
        resource.prlimit(gate.process.pid, resource.RLIMIT_FSIZE, (512, 512))
        code, out, err = await gate.ended()
        folder = gate.files.find("last")
    assert code == 1, err
    assert "File too large; free space on its disk or raise the limit of file sizes, or choose another folder" in err
    assert out.splitlines()[0] == "Gate: INCONCLUSIVE (partial)"
    assert read_result(folder).interrupted == "killed, or still running"  # whole, of before
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == [".number"]


async def test_a_folder_that_cannot_be_made_is_told_before_any_load(short_dir: Path) -> None:
    blocked = short_dir / "file"
    blocked.write_text("")
    async with SseStub() as stub:
        async with started(short_dir, stub.url, "--output-dir", str(blocked / "runs")) as gate:
            code, _, err = await gate.ended()
        assert stub.stage() == {}
    assert code == 1
    assert err.splitlines()[-1] == (
        f"sre: {blocked / 'runs'}: {blocked} is no folder; remove the file that is in a folder's place, or choose "
        "another folder with --output-dir"
    )


KNEE_LIMITS = Limits(max_num_seqs=8, max_num_batched_tokens=2048, kv_cache_tokens=100_000)
TIME_SCALE = 3.0


async def test_the_knee_of_the_simulated_engine_is_its_computed_capacity(tmp_path: Path, short_dir: Path) -> None:
    """Within 10 %. Where the machine is too busy for the client itself, once more."""
    true = TIME_SCALE * capacity(KNEE_LIMITS, [Kind(40, 16)]).requests_per_second
    settings = SETTINGS.replace("max_tokens: 4", "max_tokens: 16").replace(
        "{enabled: false}", "{resolution_ratio: 0.15}"
    )
    settings = settings.replace("failed_ratio: 0.2", "max_qps: 1, failed_ratio: 0.2").replace(
        "client_lag_p99_seconds: 30", "client_lag_p99_seconds: 0.1"
    )
    options = (
        "--stages",
        f"{0.8 * true:.0f},{1.3 * true:.0f}",
        "--seconds",
        "4",
        "--inconclusive",
        "pass",
        "--arrivals",
        "constant",
    )
    engine_options = (
        "--time-scale", str(TIME_SCALE), "--max-num-seqs", "8", "--max-num-batched-tokens", "2048",
        "--kv-cache-tokens", "100000",
    )  # fmt: skip
    with running_sim(tmp_path / "sim.log", *engine_options) as engine:
        for _ in range(3):
            began = time.monotonic()
            async with started(short_dir, engine.url, *options, settings=settings) as gate:
                code, _, err = await gate.ended(120)
                result = gate.files.read("last")
            assert code == 0, err
            knee = result.knee
            assert knee is not None
            if knee.reason == "resolved" and knee.estimate_rps == pytest.approx(true, rel=0.1):
                break
            print(f"after {time.monotonic() - began:.0f} s: {knee}, true {true:.1f}")
        else:
            pytest.fail(f"no knee within 10 % of {true:.1f}/s: {knee}")
