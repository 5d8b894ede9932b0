"""Desired state on a real Envoy: confirmed, idempotent, and in force whatever dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from sre.actions.types import EngineDesired, GatewayDesired, PoolDesired, RejectReason
from sre.adapters.clock import SystemClock
from sre.adapters.envoy import EnvoyGateway, prepare
from sre.adapters.envoy.files import DESIRED, read_document, write_document
from sre.adapters.envoy.gateway import CONFIRM_SECONDS
from sre.errors import Rejected, Unreachable
from sre.stack.gateway_names import EngineAddress, open_gateway, reject_key
from tests.gateway.harness import Bench, engine_settings, running, until

pytestmark = pytest.mark.integration


def opened(bench: Bench) -> GatewayDesired:
    return open_gateway(bench.envoy.stack)


def refusing(bench: Bench, reason: RejectReason = RejectReason.HANG, percent: int = 100) -> GatewayDesired:
    return replace(opened(bench), pools=(PoolDesired("m", percent, reason),))


async def test_apply_returns_when_it_is_in_force_and_writes_nothing_twice(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        assert await bench.gateway.apply(opened(bench)) is False
        folder = bench.envoy.paths.gateway
        for number in range(20):
            reason = list(RejectReason)[number % len(RejectReason)]
            assert await bench.gateway.apply(refusing(bench, reason)) is True
            status, headers, _ = await bench.ask()
            assert (status, headers["x-sre-reason"]) == (503, reason.value)
            before = {p: p.stat().st_mtime_ns for p in folder.rglob("*.json")}
            assert await bench.gateway.apply(refusing(bench, reason)) is False
            assert {p: p.stat().st_mtime_ns for p in folder.rglob("*.json")} == before
            assert await bench.gateway.apply(opened(bench)) is True
            assert (await bench.ask())[0] == 200


async def test_no_running_stream_is_cut_by_anything_the_guard_does(short_dir: Path) -> None:
    async with running(short_dir, engines=engine_settings("a", "b")) as bench:
        streams = [asyncio.create_task(bench.ask(user="hold", stream=True)) for _ in range(200)]

        async def all_open() -> bool:
            return sum(stub.open for stub in bench.engines.values()) == 200

        await until(all_open, "200 open streams")
        for desired in (
            refusing(bench),
            refusing(bench, RejectReason.GPU_TEMPERATURE),
            replace(
                refusing(bench), engines=(EngineDesired("a", draining=True), EngineDesired("b", 10)),
                max_concurrent_requests=1, offline_shed_percent=100, rate_limit_enforced=False,
            ),
            replace(opened(bench), engines=(EngineDesired("a", draining=True), EngineDesired("b", draining=True))),
        ):  # fmt: skip
            assert await bench.gateway.apply(desired) is True
            assert (await bench.ask())[0] == 503
        counts = await bench.gateway.in_flight_counts()
        assert sum(r.value or 0 for r in counts.values()) == 200
        for stub in bench.engines.values():
            stub.release.set()
        answers = await asyncio.gather(*streams)
        cut = [text for status, _, text in answers if status != 200 or not text.endswith("data: [DONE]\n\n")]
        assert len(cut) == 0
        assert {r.detail for r in await bench.finished(204, 10)} == {
            "ok", "hang", "gpu_temperature", "no_healthy_upstream",
        }  # fmt: skip


async def test_draining_engine_gets_nothing_new_and_weights_share_the_rest(short_dir: Path) -> None:
    async with running(short_dir, engines=engine_settings("a", "b")) as bench:
        base = opened(bench)
        await bench.gateway.apply(replace(base, engines=(EngineDesired("a", draining=True), EngineDesired("b"))))
        for _ in range(20):
            assert (await bench.ask())[0] == 200
        assert [len(bench.engines[n].seen) for n in "ab"] == [0, 20]
        await bench.gateway.apply(replace(base, engines=(EngineDesired("a", 10), EngineDesired("b"))))
        for _ in range(220):
            await bench.ask()
        assert 5 <= len(bench.engines["a"].seen) <= 45  # 20 expected
        await bench.gateway.apply(base)
        before = len(bench.engines["a"].seen)
        for _ in range(40):
            await bench.ask()
        assert len(bench.engines["a"].seen) > before + 5


async def test_killed_envoy_comes_back_refusing(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        await bench.gateway.apply(refusing(bench))
        first = (await bench.gateway.observe()).epoch
        bench.envoy.kill()
        seen = await bench.gateway.observe()
        assert (seen.reachable, seen.epoch, seen.requests_active.value) == (False, None, None)
        with pytest.raises(Unreachable, match="is the gateway running"):
            await bench.gateway.in_flight_counts()
        prepare(bench.envoy.paths, bench.envoy.stack, bench.envoy.managed)  # as the next sre up does
        await bench.envoy.start()
        status, headers, _ = await bench.ask()
        assert (status, headers["x-sre-reason"]) == (503, "hang")
        second = (await bench.gateway.observe()).epoch
        assert None not in (first, second)
        assert first != second
        assert await bench.gateway.apply(refusing(bench)) is False
        assert await bench.gateway.apply(opened(bench)) is True
        assert (await bench.ask())[0] == 200


async def test_what_is_asked_while_envoy_is_down_holds_when_it_is_up(short_dir: Path) -> None:
    async with running(short_dir, engines=engine_settings("a", "b")) as bench:
        bench.envoy.kill()
        desired = replace(refusing(bench, RejectReason.MANUAL), engines=(EngineDesired("a", draining=True),))
        with pytest.raises(Unreachable):
            await bench.gateway.apply(desired)
        await bench.envoy.start()
        assert (await bench.ask())[1]["x-sre-reason"] == "manual"
        assert await bench.gateway.apply(desired) is False
        await bench.gateway.apply(replace(desired, pools=(PoolDesired("m", 0),)))
        for _ in range(10):
            assert (await bench.ask())[0] == 200
        assert bench.engines["a"].seen == []


async def test_new_guard_continues_where_the_old_one_stopped(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        await bench.gateway.apply(refusing(bench))
        other = EnvoyGateway(bench.envoy.paths, bench.envoy.stack, SystemClock())
        try:
            assert await other.apply(refusing(bench)) is False
            assert await other.apply(opened(bench)) is True
            assert (await bench.ask())[0] == 200
        finally:
            await other.close()


async def test_override_on_the_admin_socket_is_found_and_cleared(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        await bench.gateway.apply(refusing(bench))
        await bench.gateway._admin.request("POST", f"/runtime_modify?{reject_key('m')}=0")
        assert (await bench.ask())[0] == 200
        assert await bench.gateway.apply(refusing(bench)) is True
        assert (await bench.ask())[0] == 503


@pytest.mark.parametrize("name", ["rtds.json", "rds.json", "eds_pool-m.json"])
@pytest.mark.parametrize("bad", ["not json", '{"resources": [{"@type": "type.googleapis.com/envoy.Nonsense"}]}'])
async def test_bad_file_is_noticed_the_old_state_holds_and_the_next_apply_heals(
    short_dir: Path, name: str, bad: str
) -> None:
    async with running(short_dir) as bench:
        await bench.gateway.apply(refusing(bench))
        assert (await bench.gateway.observe()).update_rejections == 0
        path = bench.envoy.paths.gateway / "dyn" / name
        temporary = path.with_suffix(".tmp")
        temporary.write_text(bad)
        temporary.rename(path)

        async def noticed() -> bool:
            return (await bench.gateway.observe()).update_rejections == 1

        await until(noticed, "the refused update in the counters")
        assert (await bench.ask())[0] == 503
        await bench.gateway.apply(opened(bench))
        assert (await bench.ask())[0] == 200


async def test_foreign_but_valid_file_is_put_right(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        await bench.gateway.apply(opened(bench))
        path = bench.envoy.paths.gateway / "dyn" / "eds_pool-m.json"
        document = read_document(path)
        assert document is not None
        document["resources"][0]["endpoints"] = []
        write_document(path, document | {"version_info": "foreign"})

        async def emptied() -> bool:
            return (await bench.ask())[0] == 503

        await until(emptied, "the foreign endpoints in force")
        await bench.gateway.observe()
        await bench.gateway.apply(opened(bench))
        assert (await bench.ask())[0] == 200


async def test_frozen_envoy_is_unreachable_within_the_deadline(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        await bench.gateway.apply(opened(bench))
        os.kill(bench.envoy.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(2 * CONFIRM_SECONDS + 4):
                assert (await bench.gateway.observe()).reachable is False
                with pytest.raises(Unreachable):
                    await bench.gateway.apply(refusing(bench))
        finally:
            os.kill(bench.envoy.pid, signal.SIGCONT)
        await bench.gateway.apply(refusing(bench))
        assert (await bench.ask())[0] == 503


async def test_key_that_does_not_take_is_an_error_and_no_silence(short_dir: Path) -> None:
    """A clock that jumps a second per look stands in for the wait."""

    class Hasty(SystemClock):
        def __init__(self) -> None:
            self.looks = 0

        def monotonic(self) -> float:
            self.looks += 1
            return super().monotonic() + self.looks

    async with running(short_dir) as bench:
        gateway = EnvoyGateway(bench.envoy.paths, bench.envoy.stack, Hasty())
        try:
            (bench.envoy.paths.gateway / "dyn" / "rtds.json").unlink()
            (bench.envoy.paths.gateway / "dyn" / "rtds.json").mkdir()
            with pytest.raises(Exception, match=r"rtds.json: cannot be written|did not take its value"):
                await gateway.apply(refusing(bench))
        finally:
            await gateway.close()


async def test_restart_of_envoy_closes_its_requests_as_cut_by_the_gateway(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        held = asyncio.create_task(bench.ask(user="hold", stream=True))

        async def known() -> bool:
            bench.gateway.poll_log()
            return [r.engine for r in bench.gateway.in_flight()] == ["a"]

        await until(known, "the open stream in the registry")
        bench.envoy.kill()
        with pytest.raises(aiohttp.ClientError):
            await held
        await bench.envoy.start()
        assert (await bench.ask())[0] == 200
        ended = await bench.finished(2)
        assert sorted(r.detail for r in ended) == ["cut_by_gateway", "ok"]
        assert bench.gateway.in_flight() == []
        assert bench.gateway.outcomes()["a"].failure == 0


async def test_restarted_guard_knows_what_is_open_and_counts_no_history(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        await bench.ask(user="500")
        held = asyncio.create_task(bench.ask(user="hold", stream=True, max_tokens=33))
        await bench.finished(1)
        other = EnvoyGateway(bench.envoy.paths, bench.envoy.stack, SystemClock())
        try:

            async def known() -> bool:
                assert list(other.poll_log()) == []
                return [r.max_tokens for r in other.in_flight()] == [33]

            await until(known, "the open stream in the new registry")
            assert other.outcomes()["a"].failure == 0
            bench.engines["a"].release.set()
            assert (await held)[0] == 200

            async def over() -> bool:
                return [r.detail for r in other.poll_log()] == ["ok"]

            await until(over, "the end of the stream")
        finally:
            await other.close()


async def test_log_is_rotated_by_size_and_no_request_is_lost(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        stack = bench.envoy.stack
        small = stack.model_copy(update={"logs": stack.logs.model_copy(update={"max_bytes": 4096, "backups": 2})})
        gateway = EnvoyGateway(bench.envoy.paths, small, SystemClock())
        gateway.poll_log()
        ended = 0
        try:
            for _ in range(6):
                for _ in range(20):
                    await bench.ask()
                await asyncio.sleep(0.15)  # the log is flushed every 0.1 s
                await gateway.observe()
                ended += len(gateway.poll_log())

            async def complete() -> bool:
                nonlocal ended
                ended += len(gateway.poll_log())
                return ended >= 120

            await until(complete, "all requests in the log")
            assert ended == 120
            assert gateway.outcomes()["a"].success == 120
            await bench.ask()

            async def reopened() -> bool:
                return gateway.access_log.exists()

            await until(reopened, "the new log file")
            names = sorted(p.name for p in gateway.access_log.parent.glob("access.log*"))
            assert names == ["access.log", "access.log.1", "access.log.2"]
        finally:
            await gateway.close()


async def test_listener_drains_on_request_while_it_still_serves(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        held = asyncio.create_task(bench.ask(user="hold", stream=True))

        async def open_one() -> bool:
            return await bench.gateway.requests_active() == 1

        await until(open_one, "one active request")
        await bench.gateway.drain_listeners()
        bench.engines["a"].release.set()
        assert (await held)[2].endswith("data: [DONE]\n\n")
        await until(lambda: _idle(bench), "no active request")


async def _idle(bench: Bench) -> bool:
    return await bench.gateway.requests_active() == 0


async def test_engine_that_moves_is_found_at_its_new_address(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        await bench.gateway.apply(opened(bench))
        old = bench.engines["a"]
        await old.stop()
        prepare(bench.envoy.paths, bench.envoy.stack, {"a": ("127.0.0.1", old.port)})
        moved = type(old)(0)
        moved.port = await _free_port()
        await moved.start()
        try:
            prepare(bench.envoy.paths, bench.envoy.stack, {"a": ("127.0.0.1", moved.port)})
            await bench.gateway.apply(opened(bench))
            assert (await bench.ask())[0] == 200
            assert EngineAddress("127.0.0.1", moved.port).key in bench.gateway.registry.engines
            (ended,) = await bench.finished(1)
            assert ended.engine == "a"
        finally:
            await moved.stop()


async def _free_port() -> int:
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


async def test_desired_state_on_disk_is_what_was_asked(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        await bench.gateway.apply(refusing(bench))
        document = json.loads((bench.envoy.paths.gateway / DESIRED).read_text())
        assert document["pools"] == [
            {"pool": "m", "reject_percent": 100, "reason": "hang", "retry_after_seconds": 5}
        ]  # fmt: skip
        assert (bench.envoy.paths.gateway / DESIRED).stat().st_mode & 0o777 == 0o600


async def test_numbers_for_metrics_are_there(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        await bench.ask()
        numbers = await bench.gateway.stats()
        assert numbers["http.gw.downstream_rq_2xx"] == 1
        assert numbers["http.gw.lua.errors"] == 0
        assert numbers["server.memory_allocated"] > 1e6


def test_rejected_is_not_retryable() -> None:
    assert Rejected("gateway", "x").retryable is False
