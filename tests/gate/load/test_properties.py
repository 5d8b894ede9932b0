"""The eleven properties: wrong numbers that load tools gave, each provoked by a stub that misbehaves that way."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from sre.adapters.load import HttpLoad
from sre.gate.records import Cause, RequestRecord
from sre.gate.stages import StageLoad, StagePlan
from tests.gate.load.conftest import generator, plan, run, scripted, unwatched
from tests.gate.load.endings import ENDINGS, busy
from tests.support.sse_stub import Exchange, Script, Served, SseStub, event_bytes, good

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


class Bench:
    """One stub and one generator for all of these tests: to start a process takes as long as a stage."""

    def __init__(self, stub: SseStub, load: HttpLoad) -> None:
        self.stub, self.load = stub, load

    async def run(self, stage: StagePlan, **scripts: Script) -> StageLoad:
        self.stub.forget()
        self.stub.scripts.update(scripts)
        return await self.load.run(stage, watch=unwatched, drain_seconds=10)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def bench() -> AsyncIterator[Bench]:
    async with SseStub() as stub, generator(stub.url) as load:
        yield Bench(stub, load)


async def four_in_one(exchange: Exchange) -> None:
    await exchange.head()
    for number in range(4):
        await asyncio.sleep(0.03)
        await exchange.text(" one two three four", finish="length" if number == 3 else None)
    await exchange.usage(16)
    await exchange.done()
    await exchange.end()


async def silent(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.words(4)
    await exchange.done()
    await exchange.end()


async def too_many(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.words(4)
    await exchange.usage(5)
    await exchange.done()
    await exchange.end()


async def cut_up(exchange: Exchange) -> None:
    """Each request's bytes in pieces of another size."""
    words = [event_bytes({"choices": [{"index": 0, "text": " wörd", "finish_reason": None}]}) for _ in range(3)]
    words.append(event_bytes({"choices": [{"index": 0, "text": " end", "finish_reason": "stop"}]}))
    words.append(event_bytes({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}))
    stream = b"\xef\xbb\xbf: hello\r\n\r\n" + b"".join(words).replace(b"\n", b"\r\n") + b"id: 7\rdata: [DONE]\r\r"
    await exchange.head()
    size = 1 + len(exchange.stub.served) % 7
    for at in range(0, len(stream), size):
        await exchange.send(stream[at : at + size], "content")
        await asyncio.sleep(0)
    await exchange.end()


async def drip(exchange: Exchange) -> None:
    await exchange.head()
    await asyncio.sleep(0.05)
    await exchange.words(32, 0.01)
    await exchange.usage()
    await exchange.done()
    await exchange.end()


async def one_in_ten(exchange: Exchange) -> None:
    """Fails at once, each tenth time."""
    before = sum(one.script == exchange.served.script for one in exchange.stub.served)
    await (busy if before % 10 == 0 else good)(exchange)


@dataclass(frozen=True)
class Mixed:
    """One stage in which the server misbehaves in many ways at once, and what it says it did."""

    load: StageLoad
    served: dict[int, Served]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def mixed(bench: Bench) -> Mixed:
    ways = {four_in_one: 16, silent: 4, too_many: 4, cut_up: 4, drip: 32, one_in_ten: 4}
    kinds = [scripted(script.__name__, 0.4 / len(ENDINGS)) for script in ENDINGS]
    kinds += [scripted(script.__name__, 0.1, max_tokens=tokens) for script, tokens in ways.items()]
    load = await bench.run(
        plan(*kinds, rate=200, seconds=1.2), **{script.__name__: script for script in (*ENDINGS, *ways)}
    )
    return Mixed(load, bench.stub.stage())


def p_nearest(values: list[float], ratio: float) -> float:
    return sorted(values)[max(0, math.ceil(ratio * len(values)) - 1)]


def of_class(load: StageLoad, name: str) -> list[RequestRecord]:
    found = [record for record in load.records if record.request_class == name]
    assert found, f"none of class {name}"
    return found


def causes(load: StageLoad, name: str) -> set[Cause]:
    return {record.cause for record in of_class(load, name)}


async def test_1_a_freeze_of_the_server_is_seen_by_every_request_it_held_and_delays_no_sending(bench: Bench) -> None:
    """Coordinated omission."""
    freeze, rate = 0.6, 100.0

    async def freeze_later() -> None:
        await bench.stub.first_request()
        await asyncio.sleep(0.3)
        await bench.stub.freeze(freeze)

    freezing = asyncio.create_task(freeze_later())
    load = await bench.run(plan(rate=rate, seconds=1.4))
    await freezing
    assert {record.cause for record in load.records} == {Cause.OK}
    waits = [record.ttft_seconds for record in load.records]
    assert p_nearest(waits, 0.99) >= 0.9 * freeze
    held = sum(wait > 0.1 * freeze for wait in waits)
    assert held >= 0.85 * freeze * rate
    # Sent as if nothing were: during the freeze as many as at any other time.
    assert len(load.records) == load.planned == 140
    assert statistics.median(record.lag_seconds or 0.0 for record in load.records) < 0.1 * freeze


async def test_2_a_client_that_is_held_up_shows_it_and_the_server_is_not_blamed(bench: Bench) -> None:
    """The client is the limit: SIGSTOP stands for a machine that has no time for it."""

    async def hold_up() -> None:
        await bench.stub.first_request()
        (pid,) = bench.load.pids
        for _ in range(3):
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(0.15)
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(0.1)

    holding = asyncio.create_task(hold_up())
    result = await bench.run(plan(rate=100, seconds=1.0))
    await holding
    assert len(result.records) == 100
    assert result.client.lag_p99_seconds > 0.1
    assert result.client.lag_max_seconds >= result.client.lag_p99_seconds >= result.client.lag_p50_seconds
    assert result.client.loop_lag_p99_seconds > 0.05


async def test_2_many_slow_answers_are_all_awaited_at_once(bench: Bench) -> None:
    all_asked = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        # Nobody gets an answer before all have asked: a client that keeps some back would wait until its deadline.
        if exchange.stub.in_flight == 400:
            all_asked.set()
        await all_asked.wait()
        await good(exchange)

    load = await bench.run(plan(scripted("slow", max_tokens=1), rate=800, seconds=0.5), slow=slow)
    assert bench.stub.most_in_flight == 400
    assert {record.cause for record in load.records} == {Cause.OK}


async def test_3_first_content_is_neither_the_role_chunk_nor_reasoning() -> None:
    async def role(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.delta({"role": "assistant", "content": ""}, "role")
        await asyncio.sleep(0.3)
        await exchange.words(4)
        await exchange.usage()
        await exchange.done()
        await exchange.end()

    async def reasoning(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.delta({"role": "assistant", "content": ""}, "role")
        await asyncio.sleep(0.1)
        await exchange.delta({"reasoning_content": "hm"}, "reasoning")
        await asyncio.sleep(0.2)
        await exchange.words(3)
        await exchange.usage(4)
        await exchange.done()
        await exchange.end()

    async def only_reasoning(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.delta({"reasoning": "hm"}, "reasoning")
        await exchange.delta({"reasoning": "so"}, "reasoning", finish="length")
        await exchange.usage(2)
        await exchange.done()
        await exchange.end()

    kinds = [scripted(name, 1 / 3) for name in ("role", "reasoning", "only_reasoning")]
    async with SseStub({"role": role, "reasoning": reasoning, "only_reasoning": only_reasoning}) as stub:
        load = await run(stub.url, plan(*kinds, rate=60, seconds=0.5), api="chat")
        served = stub.stage()
    assert {record.cause for record in load.records} == {Cause.OK}
    for record in load.records:
        wrote = served[record.number].written
        assert record.first_content_at is not None
        if record.request_class == "only_reasoning":
            assert record.first_content_at == record.first_reasoning_at
            continue
        assert record.first_chunk_at is not None
        assert 0 <= record.first_content_at - wrote["content"][0] < 0.2
        assert record.first_chunk_at <= record.first_content_at - 0.25
        assert record.ttft_seconds >= 0.3
        if record.request_class == "reasoning":
            assert record.first_reasoning_at is not None
            assert wrote["reasoning"][0] <= record.first_reasoning_at < wrote["content"][0]
        else:
            assert record.first_reasoning_at is None
    errors = [
        (record.first_content_at or 0) - served[record.number].written["content"][0]
        for record in of_class(load, "role")
    ]
    assert statistics.median(errors) < 0.1


async def test_4_failures_after_a_200_are_failures_each_of_its_class_and_their_tokens_count_for_nothing(
    mixed: Mixed,
) -> None:
    for script, (cause, outcome) in ENDINGS.items():
        records = of_class(mixed.load, script.__name__)
        assert records, script.__name__
        for record in records:
            assert (record.cause, record.outcome) == (cause, outcome), (record.request_class, record.detail)
            assert record.failed == (script is not good)
            if record.failed:
                assert record.output_tokens is None
                assert record.detail
                assert math.isinf(record.ttft_seconds)
                assert math.isinf(record.e2e_seconds)


async def test_5_failures_stand_in_the_percentiles_as_infinitely_slow(mixed: Mixed) -> None:
    records = of_class(mixed.load, "one_in_ten")
    share = sum(record.failed for record in records) / len(records)
    assert 0.05 < share < 0.2
    assert math.isinf(p_nearest([record.e2e_seconds for record in records], 0.96))
    assert math.isfinite(p_nearest([record.e2e_seconds for record in records if not record.failed], 0.99))


async def test_6_chunks_are_not_tokens(mixed: Mixed) -> None:
    for record in of_class(mixed.load, "four_in_one"):
        assert (record.cause, record.chunks, record.output_tokens) == (Cause.OK, 4, 16)
        assert record.first_content_at is not None
        assert record.last_content_at is not None
        spent = record.last_content_at - record.first_content_at
        assert record.tpot_seconds == pytest.approx(spent / 15)
        assert record.max_gap_seconds is not None
        assert record.gap_seconds_sum == pytest.approx(spent)
        assert record.max_gap_seconds >= spent / 3


async def test_7_tokens_come_from_usage_or_are_not_known(mixed: Mixed) -> None:
    load = mixed.load
    assert causes(load, "silent") == {Cause.OK}
    assert {(one.output_tokens, one.prompt_tokens) for one in of_class(load, "silent")} == {(None, None)}
    assert {one.tpot_seconds for one in of_class(load, "silent")} == {None}
    assert causes(load, "too_many") == {Cause.TOO_MANY_TOKENS}
    assert {(one.output_tokens, one.prompt_tokens) for one in of_class(load, "good")} == {(4, 40)}


async def test_8_nothing_is_in_flight_between_stages_and_a_slow_start_stays_in_its_own(bench: Bench) -> None:
    async def cold(exchange: Exchange) -> None:
        await asyncio.sleep(0.4)
        await good(exchange)

    slow = await bench.run(plan(scripted("cold"), rate=40, seconds=0.2), cold=cold)
    assert bench.stub.in_flight == 0
    began = time.monotonic()
    measured = await bench.run(plan(scripted("cold"), rate=50, seconds=0.5), cold=good)
    assert bench.stub.in_flight == 0
    assert min(one.ttft_seconds for one in slow.records) >= 0.4
    assert p_nearest([one.ttft_seconds for one in measured.records], 0.9) < 0.35
    assert all(one.intended_at >= began for one in measured.records)
    assert slow.in_flight[-1].in_flight == measured.in_flight[-1].in_flight == 0
    assert max(sample.in_flight for sample in slow.in_flight) >= 7


async def test_9_every_planned_request_is_accounted_for_and_rates_go_by_the_schedule() -> None:
    async def never(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.text()
        await asyncio.sleep(60)

    async def late(exchange: Exchange) -> None:
        await asyncio.sleep(0.4)
        await good(exchange)

    kinds = [scripted(name, 0.25) for name in ("never", "late", "busy", "good")]
    async with SseStub({"never": never, "late": late, "busy": busy, "good": good}) as stub:
        load = await run(stub.url, plan(*kinds, rate=100, seconds=0.8), request_timeout_seconds=0.7, max_in_flight=20)
        arrived = len(stub.stage())
    assert [one.number for one in load.records] == list(range(load.planned)) == list(range(80))
    ends = Counter(one.cause for one in load.records)
    assert ends[Cause.TIMEOUT] > 0
    assert ends[Cause.SHED_BY_CLIENT] > 0
    failed = sum(one.failed for one in load.records)
    assert load.planned == ends[Cause.OK] + failed + ends[Cause.CANCELLED] + ends[Cause.SHED_BY_CLIENT]
    assert sum(one.sent_at is not None for one in load.records) == arrived
    offsets = [one.intended_at - load.started_at for one in load.records]
    assert offsets == pytest.approx([number / 100 for number in range(80)])
    for record in of_class(load, "never"):
        if record.cause is Cause.TIMEOUT:
            assert record.ended_at is not None
            assert record.ended_at - record.intended_at >= 0.7


async def test_10_moments_stand_in_order_and_bytes_may_be_cut_anywhere(mixed: Mixed) -> None:
    for one in of_class(mixed.load, "cut_up"):
        assert (one.cause, one.chunks, one.output_tokens, one.finish_reason) == (Cause.OK, 4, 4, "stop"), one.detail
    for one in mixed.load.records:
        if one.cause is not Cause.OK:
            continue
        assert one.sent_at is not None
        assert one.head_at is not None
        assert one.first_chunk_at is not None
        assert one.first_content_at is not None
        assert one.last_content_at is not None
        assert one.ended_at is not None
        moments = [
            one.intended_at, one.sent_at, one.head_at, one.first_chunk_at, one.first_content_at, one.last_content_at,
            one.ended_at,
        ]  # fmt: skip
        assert moments == sorted(moments)
        assert 0 < one.ttft_seconds <= one.e2e_seconds


async def test_11_the_client_holds_nothing_back(mixed: Mixed) -> None:
    records = of_class(mixed.load, "drip")
    assert {one.cause for one in records} == {Cause.OK}
    errors = [(one.first_content_at or 0) - mixed.served[one.number].first_content_at for one in records]
    assert min(errors) >= 0
    assert statistics.median(errors) < 0.03
    assert statistics.median(one.chunks for one in records) == 32
