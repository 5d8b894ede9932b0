"""The generator's processes: how they end, what is kept, and what is told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sre.adapters.load import HttpLoad
from sre.adapters.load.process import LoadProcess
from sre.errors import ExitedEarly, ProcessError
from sre.gate.arrivals import TraceEntry
from sre.gate.records import Cause, Outcome
from sre.gate.schedule import schedule
from sre.gate.stages import Arrivals, LiveCounts, RequestClass
from sre.gate.summary import summarize
from tests.gate.load.conftest import generator, plan, run, scripted, unwatched
from tests.support.sse_stub import Exchange, Script, SseStub, good

pytestmark = pytest.mark.integration


async def hang(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.text()
    await asyncio.sleep(60)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def kept() -> AsyncIterator[tuple[SseStub, HttpLoad]]:
    """For tests that leave both as they were: to start a process takes as long as a stage."""
    async with SseStub({"hang": hang}) as stub, generator(stub.url) as load:
        yield stub, load


on_kept = pytest.mark.asyncio(loop_scope="module")


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


async def test_several_processes_send_what_one_would() -> None:
    stage = plan(rate=240, seconds=0.5, arrivals=Arrivals.POISSON, extra_classes=(scripted("extra", 0.1),))
    async with SseStub({"extra": good}) as stub, generator(stub.url, processes=3) as load:
        result = await load.run(stage, watch=unwatched, drain_seconds=5)
        assert len(load.pids) == 3
        served = stub.stage()
    whole = schedule(stage)
    assert [one.number for one in result.records] == list(range(len(whole)))
    for record, planned in zip(result.records, whole, strict=True):
        assert record.intended_at == result.started_at + planned.offset_seconds
        assert record.request_class == planned.request_class.name
        assert served[record.number].script == planned.request_class.headers[0][1]
    assert {one.cause for one in result.records} == {Cause.OK}
    assert len({one.body["prompt"] for one in served.values()}) == len(whole)
    assert result.client.processes == 3
    assert result.client.cpu_seconds > 0


async def test_connections_and_processes_are_kept_between_stages() -> None:
    async with SseStub() as stub, generator(stub.url) as load:
        first = await load.run(plan(rate=100, seconds=0.2), watch=unwatched, drain_seconds=5)
        pids = load.pids
        second = await load.run(plan(rate=100, seconds=0.2), watch=unwatched, drain_seconds=5)
        assert load.pids == pids
        prompts = {one.body["prompt"] for one in stub.served if one.number >= 0}
    assert first.records[0].connect_seconds > 0
    assert second.records[0].connect_seconds == 0
    # The same plan twice, and no prompt that a prefix cache could know.
    assert len(prompts) == 40
    assert first.stopped_at < second.started_at


async def test_a_process_that_dies_is_an_error_with_its_name_and_the_next_stage_works() -> None:
    async with SseStub() as stub, generator(stub.url, processes=2) as load:
        await load.run(plan(seconds=0.1), watch=unwatched, drain_seconds=5)
        victim = load.pids[1]

        async def kill() -> None:
            await asyncio.sleep(0.4)
            os.kill(victim, signal.SIGKILL)

        killing = asyncio.create_task(kill())
        with pytest.raises(ExitedEarly, match=rf"load process 2 of 2 \(pid {victim}\).*killed by signal 9"):
            await load.run(plan(seconds=3), watch=unwatched, drain_seconds=5)
        await killing
        assert load.partial() is None
        result = await load.run(plan(seconds=0.1), watch=unwatched, drain_seconds=5)
        assert {one.cause for one in result.records} == {Cause.OK}


@on_kept
async def test_given_up_by_its_watcher_a_stage_keeps_what_it_had(kept: tuple[SseStub, HttpLoad]) -> None:
    seen: list[LiveCounts] = []

    def watch(counts: LiveCounts) -> str | None:
        seen.append(counts)
        return "too_slow" if counts.over_limit >= 10 else None

    stage = plan(scripted("hang"), rate=50, seconds=20)
    result = await kept[1].run(stage, watch=watch, ttft_limit_seconds=0.0, drain_seconds=5)
    assert result.aborted == "too_slow"
    assert {(one.cause, one.outcome, one.failed) for one in result.records} == {
        (Cause.CANCELLED, Outcome.NEUTRAL, False)
    }
    assert [one.number for one in result.records] == list(range(len(result.records)))
    assert 10 <= len(result.records) < result.planned == 1000
    last = seen[-1]
    assert last.due >= last.sent >= last.in_flight >= 10
    assert last.planned == 1000
    assert result.in_flight[-1].in_flight == 0


@on_kept
async def test_a_cancelled_stage_hands_back_what_it_had(kept: tuple[SseStub, HttpLoad]) -> None:
    stub, load = kept
    stub.forget()
    kinds = (scripted("hang", 0.5), scripted("default", 0.5))
    running = asyncio.create_task(load.run(plan(*kinds, seconds=20), watch=unwatched, drain_seconds=5))
    await stub.first_request()
    await asyncio.sleep(0.5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    partial = load.partial()
    assert partial is not None
    assert partial.aborted == "cancelled"
    assert {one.cause for one in partial.records} == {Cause.OK, Cause.CANCELLED}
    again = await load.run(plan(seconds=0.1), watch=unwatched, drain_seconds=5)
    assert again.aborted is None
    assert load.partial() is None


@on_kept
async def test_what_the_drain_did_not_bring_was_not_answered(kept: tuple[SseStub, HttpLoad]) -> None:
    load = await kept[1].run(plan(scripted("hang"), rate=40, seconds=0.2), watch=unwatched, drain_seconds=0.3)
    assert {one.cause for one in load.records} == {Cause.TIMEOUT}
    assert all(one.failed for one in load.records)
    assert load.stopped_at - load.schedule_ended_at == pytest.approx(0.3, abs=0.25)


async def test_no_connection_is_a_failure_of_each_request(free_port: Callable[[], int]) -> None:
    stub = SseStub()
    async with stub, generator(stub.url) as load:
        await load.run(plan(seconds=0.1), watch=unwatched, drain_seconds=5)
        await stub.__aexit__(None, None, None)
        result = await load.run(plan(seconds=0.3), watch=unwatched, drain_seconds=5)
        await stub.__aenter__()
    assert {one.cause for one in result.records} <= {Cause.CONNECT, Cause.TRANSPORT}
    assert all(one.failed and one.detail for one in result.records)


KILLED_PARENT = """
import asyncio, sys
from tests.gate.load.conftest import generator, plan, unwatched
async def main():
    load = generator(sys.argv[1], processes=2)
    await load.run(plan(seconds=0.1), watch=unwatched, drain_seconds=5)
    print(*load.pids, flush=True)
    await load.run(plan(seconds=60), watch=unwatched, drain_seconds=5)
asyncio.run(main())
"""


async def test_processes_do_not_outlive_who_started_them(wait_until_async: Any) -> None:
    async with SseStub() as stub:
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED_PARENT, stub.url, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
        )
        assert parent.stdout is not None
        pids = [int(pid) for pid in (await asyncio.wait_for(parent.stdout.readline(), 30)).split()]
        assert len(pids) == 2
        assert not any(map(gone, pids))
        parent.kill()
        await parent.wait()
        await wait_until_async(lambda: all(map(gone, pids)), 10, what="load processes end")


async def test_the_limit_on_open_files_is_told(tmp_path: Path) -> None:
    script = tmp_path / "limited.py"
    script.write_text(
        "import resource, sys\n"
        "from sre.adapters.load.session import room_for_connections\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))\n"
        "print(room_for_connections(50), room_for_connections(1000), resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    assert output.decode().startswith("(50, '') (136, 'a load process may have 200 open files: at most 136 requests")
    assert output.decode().endswith("(200, 200)\n")


async def test_calibration_measures_this_client() -> None:
    async with generator("http://127.0.0.1:9") as load:
        easy = await load.calibrate(75.0, 0.4, 10.0)
        hopeless = await load.calibrate(75.0, 0.2, 1e-6)
    assert not easy.client_limited
    assert easy.reason == ""
    assert 20 <= easy.requests <= 45
    assert 0 < easy.ttft_floor_p50_seconds <= easy.ttft_floor_p99_seconds < 10
    assert easy.cpu_seconds_per_1000_requests > 0
    assert hopeless.client_limited
    assert "at 75 requests/s" in hopeless.reason
    assert "more free cores" in hopeless.reason


@on_kept
async def test_answers_whose_tokens_have_no_text_are_told(kept: tuple[SseStub, HttpLoad]) -> None:
    async def wordless(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.text("")
        await exchange.text("", finish="length")
        await exchange.usage()
        await exchange.done()
        await exchange.end()

    kept[0].scripts["wordless"] = wordless
    kinds = (scripted("wordless", 0.5, max_tokens=9), scripted("default", 0.5))
    load = await kept[1].run(plan(*kinds, seconds=0.3), watch=unwatched, drain_seconds=5)
    silent = [one for one in load.records if one.request_class == "wordless"]
    assert {(one.cause, one.chunks, one.output_tokens) for one in silent} == {(Cause.OK, 0, 9)}
    (note,) = load.notes
    assert note.startswith(f"{len(silent)} of {len(load.records)} answers had tokens and no text")
    counted = {name: kind.wordless for name, kind in summarize(load).classes.items()}
    assert counted == {"wordless": len(silent), "default": 0, "all": len(silent)}


@on_kept
async def test_prompts_that_came_from_a_cache_are_told(kept: tuple[SseStub, HttpLoad]) -> None:
    async def cached(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.text(finish="stop")
        usage = {"prompt_tokens": 40, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 38}}
        await exchange.event({"choices": [], "usage": usage}, "usage")
        await exchange.done()
        await exchange.end()

    kept[0].scripts["cached"] = cached
    for share, notes in ((1.0, ["95% of the prompts' tokens came from the server's cache"]), (0.1, [])):
        kinds = [scripted("cached", share)] + ([scripted("default", 1 - share)] if share < 1 else [])
        load = await kept[1].run(plan(*kinds, seconds=0.3), watch=unwatched, drain_seconds=5)
        assert [note.partition(", though")[0] for note in load.notes] == notes


@on_kept
async def test_answers_shorter_than_the_length_asked_for_are_told(kept: tuple[SseStub, HttpLoad]) -> None:
    """They make every figure better, and nobody sees it in one."""

    async def short(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.words(2)
        await exchange.usage(2)
        await exchange.done()
        await exchange.end()

    kept[0].scripts["short"] = short
    kinds = (scripted("short", 0.5, max_tokens=8), scripted("default", 0.5))
    load = await kept[1].run(plan(*kinds, seconds=0.3), watch=unwatched, drain_seconds=5)
    count = sum(one.request_class == "short" for one in load.records)
    (note,) = load.notes
    assert note.startswith(f"{count} of {len(load.records)} answers were shorter than the length asked for")
    assert f"({2 * count} tokens of {8 * count})" in note


@on_kept
@pytest.mark.parametrize(
    ("counted", "told"), [(10, "shorter"), (31, "shorter"), (32, ""), (60, ""), (114, ""), (115, "longer")]
)
async def test_prompts_far_from_the_length_asked_for_are_told(
    kept: tuple[SseStub, HttpLoad], counted: int, told: str
) -> None:
    """A server that cuts prompts is faster, and answers as if nothing were; a chat template adds a few tokens."""

    async def counting(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.words(4)
        await exchange.usage(prompt_tokens=counted)
        await exchange.done()
        await exchange.end()

    kept[0].scripts["counting"] = counting
    kinds = (scripted("counting", 0.5), scripted("default", 0.5))
    load = await kept[1].run(plan(*kinds, seconds=0.3), watch=unwatched, drain_seconds=5)
    count = sum(one.request_class == "counting" for one in load.records)
    assert len(load.notes) == bool(told)
    for note in load.notes:
        assert note.startswith(f"{count} of {len(load.records)} prompts were far {told} than the length asked for")
        assert f"({counted * count} tokens of {40 * count}, by the server's usage)" in note


def claiming(events: int, tokens: int, thoughts: int = 0) -> Script:
    """So many events with text, and a usage that says what it likes."""

    async def script(exchange: Exchange) -> None:
        await exchange.head()
        for _ in range(thoughts):
            await exchange.delta({"reasoning_content": "hm"}, "reasoning")
        await exchange.words(events)
        await exchange.usage(tokens)
        await exchange.done()
        await exchange.end()

    return script


@on_kept
@pytest.mark.parametrize(
    ("events", "tokens", "thoughts", "ratio", "told"),
    [
        (8, 8, 0, 1.0, ""),
        (2, 8, 0, 0.25, ""),
        (2, 8, 6, 1.0, ""),  # usage counts what was thought, too
        (1, 16, 0, 1 / 16, "one content event per 16.0 tokens of usage: the server packs them together, or claims"),
        (16, 8, 0, 2.0, "2.00 content events per token of usage: the server sends text more than once, or its usage"),
    ],
)
async def test_what_is_sent_beside_what_usage_claims(
    kept: tuple[SseStub, HttpLoad], events: int, tokens: int, thoughts: int, ratio: float, told: str
) -> None:
    kept[0].scripts["claiming"] = claiming(events, tokens, thoughts)
    kind = scripted("claiming", max_tokens=tokens)
    load = await kept[1].run(plan(kind, seconds=0.2), watch=unwatched, drain_seconds=5)
    assert summarize(load).classes["claiming"].events_per_token == ratio
    assert [note[: len(told)] for note in load.notes] == ([told] if told else [])


async def test_a_trace_is_replayed_with_its_own_sizes() -> None:
    trace = [TraceEntry(0.05 * number, 40 + 20 * (number % 2), 1 + number % 3) for number in range(10)]
    async with SseStub() as stub:
        stage = plan(scripted("default"), seconds=0.4, arrivals=Arrivals.REPLAY)
        load = await run(stub.url, stage, trace=trace)
        served = stub.stage()
    assert load.planned == 8
    for record, entry in zip(load.records, trace, strict=False):
        assert record.intended_at - load.started_at == pytest.approx(entry.offset_seconds)
        assert record.output_tokens == record.max_tokens == entry.max_tokens
        assert len(served[record.number].body["prompt"].split()) == entry.prompt_tokens


async def test_headers_of_a_class_are_sent_and_requests_can_be_told_apart_in_logs() -> None:
    kind = RequestClass("short", 1.0, 40, 2, headers=(("X-Priority", "batch"),))
    async with SseStub() as stub, generator(stub.url, api_key="hush") as load:
        await load.run(plan(kind, seconds=0.2), watch=unwatched, drain_seconds=5)
        heads = [one.headers for one in stub.stage().values()]
    assert {head["x-priority"] for head in heads} == {"batch"}
    assert {head["authorization"] for head in heads} == {"Bearer hush"}
    ids = [head["x-request-id"] for head in heads]
    assert len(set(ids)) == len(ids)
    assert all(one.startswith("sre-gate-") for one in ids)


async def test_a_second_cancel_leaves_no_process() -> None:
    async with SseStub({"hang": hang}) as stub, generator(stub.url) as load:
        running = asyncio.create_task(load.run(plan(scripted("hang"), seconds=20), watch=unwatched, drain_seconds=5))
        await stub.first_request()
        (pid,) = load.pids
        os.kill(pid, signal.SIGSTOP)  # it can report nothing
        running.cancel()
        await asyncio.sleep(0.1)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert gone(pid)
        assert load.pids == ()


class Starts:
    """The first process comes up; the second then fails, or takes for ever."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails
        self.first_is_up = asyncio.Event()
        self.pid = 0

    async def __call__(self, name: str) -> LoadProcess:
        if name.startswith("load process 1 "):
            process = await LoadProcess.start(name)
            self.pid = process.pid
            self.first_is_up.set()
            return process
        await self.first_is_up.wait()
        if self._fails:
            raise ProcessError(f"{name}: cannot be started")
        await asyncio.Event().wait()
        raise AssertionError


async def test_where_one_process_does_not_start_the_others_end() -> None:
    starts = Starts(fails=True)
    async with SseStub() as stub, generator(stub.url, processes=2, start=starts) as load:
        with pytest.raises(ProcessError, match=r"load process 2 of 2: cannot be started"):
            await load.run(plan(seconds=0.2), watch=unwatched, drain_seconds=5)
        assert gone(starts.pid)
        assert load.pids == ()


async def test_a_cancel_while_processes_start_leaves_none() -> None:
    starts = Starts(fails=False)
    async with SseStub() as stub, generator(stub.url, processes=2, start=starts) as load:
        running = asyncio.create_task(load.run(plan(seconds=0.2), watch=unwatched, drain_seconds=5))
        await starts.first_is_up.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert gone(starts.pid)
        assert load.pids == ()
