"""The signal reader on servers that answer as told: pages that fail, engines that restart, a guard in front."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from sre.adapters.clock import SystemClock
from sre.adapters.gate_signals import GateSignals
from sre.adapters.gate_signals.machine import is_this_machine
from sre.gate.stages import SILENT, StageSignals

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).parents[2] / "monitoring" / "data" / "vllm-0.32.metrics.txt").read_text()
Answer = Callable[[web.Request], web.StreamResponse]


@asynccontextmanager
async def serving(answers: dict[str, Answer]) -> AsyncIterator[str]:
    """A server with these paths; everything else is 404."""

    async def handle(request: web.Request) -> web.StreamResponse:
        answer = answers.get(request.path)
        return web.Response(status=404) if answer is None else answer(request)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def texts(*pages: str) -> Answer:
    """One page after the other; the last one stays."""
    left = list(pages)
    return lambda _: web.Response(text=left.pop(0) if len(left) > 1 else left[0])


async def around(reader: GateSignals) -> StageSignals:
    async with reader.around() as result:
        pass
    return result()


async def test_a_server_without_metrics_is_one_of_which_only_the_way_is_known() -> None:
    async with serving({"/v1/models": lambda _: web.json_response({"data": []})}) as url:
        signals = await around(GateSignals((f"{url}/metrics",), clock=SystemClock()))
        described = dict(await GateSignals((f"{url}/metrics",), clock=SystemClock()).describe())
    assert (signals.uses, dict(signals.engine)) == ((), {})
    assert signals.unseen["engine"] == "answered 404"
    assert set(signals.host) == {"round_trip_seconds"}
    assert "engine_version" not in described
    assert "client_cpu" in described


async def test_nobody_there_is_said_and_not_raised() -> None:
    signals = await around(GateSignals(("http://127.0.0.1:1/metrics",), clock=SystemClock()))
    assert "ClientConnectorError" in signals.unseen["engine"]
    assert "round_trip" in signals.unseen
    signals = await around(GateSignals((), clock=SystemClock(), url="http://127.0.0.1:1"))
    assert signals.unseen["engine"] == "no metrics page is known; set gate.target.metrics_urls"


async def test_a_web_page_and_a_broken_page_are_no_engines() -> None:
    async with serving(
        {"/a/metrics": texts("<html></html>"), "/b/metrics": texts("vllm:num_requests_running{ 1\n")}
    ) as url:
        signals = await around(GateSignals((f"{url}/a/metrics", f"{url}/b/metrics"), clock=SystemClock(), url=url))
    assert signals.unseen[f"engine {url}/a/metrics"] == "no metric of an inference engine on the page"
    assert "no sample" in signals.unseen[f"engine {url}/b/metrics"]


@pytest.mark.parametrize("drips", [False, True])
async def test_a_page_that_says_nothing_is_waited_for_once_and_not_around_every_stage(drips: bool) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await asyncio.sleep(0.1 if drips else 3600)
            await response.write(b"# more\n")

    application = web.Application()
    application.router.add_get("/metrics", handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    page = f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    try:
        reader, clock = GateSignals((page,), clock=SystemClock(), page_deadline_seconds=2.0), SystemClock()
        await reader.describe()
        began_at = clock.monotonic()
        seen = [await around(reader) for _ in range(3)]
        took = clock.monotonic() - began_at
    finally:
        await runner.cleanup()
    assert [signals.unseen[f"engine {page}"] for signals in seen] == [SILENT] * 3
    assert took < 5, "three times the whole deadline is 6 s"


async def test_a_restart_during_the_stage_is_noticed() -> None:
    def page(tokens: int) -> str:
        return f"vllm:num_requests_running 1\nvllm:generation_tokens_total {tokens}\n"

    async with serving({"/metrics": texts(page(1000), page(40))}) as url:
        signals = await around(GateSignals((f"{url}/metrics",), clock=SystemClock()))
    assert signals.engine["generation_tokens"] == 40
    assert "started again" in signals.unseen[f"restart {url}/metrics"]


async def test_an_engine_that_dies_during_the_stage_is_said() -> None:
    gone = iter((web.Response(text=PAGE),))
    async with serving({"/metrics": lambda _: next(gone, web.Response(status=503))}) as url:
        signals = await around(GateSignals((f"{url}/metrics",), clock=SystemClock()))
    assert signals.unseen["engine"] == "it answered before the stage, not after it: answered 503"


async def test_the_guard_in_front_is_read() -> None:
    def page(ok: int, refused: int) -> str:
        return (
            f'sre_requests_total{{engine="a",pool="p",outcome="success"}} {ok}\n'
            f'sre_requests_total{{engine="a",pool="p",outcome="failure"}} 2\n'
            f'sre_requests_rejected_total{{pool="p",reason="ramp"}} {refused}\n'
        )

    async with serving({"/metrics": texts(PAGE), "/guard": texts(page(10, 0), page(110, 7))}) as url:
        reader = GateSignals((f"{url}/metrics",), clock=SystemClock(), guard_metrics_url=f"{url}/guard")
        signals = await around(reader)
    assert signals.gateway == {
        "requests": 100, "successes": 100, "failures": 0, "refused": 7, "client_aborts": 0,
    }  # fmt: skip


async def test_the_key_goes_to_the_target_and_nowhere_else() -> None:
    seen: dict[str, str | None] = {}

    def noting(name: str) -> Answer:
        def answer(request: web.Request) -> web.Response:
            seen[name] = request.headers.get("Authorization")
            return web.Response(text=PAGE)

        return answer

    async with serving({"/v1/models": noting("target")}) as url, serving({"/metrics": noting("engine")}) as engine:
        await around(GateSignals((f"{engine}/metrics",), clock=SystemClock(), url=url, api_key="k"))
    assert seen == {"target": "Bearer k", "engine": None}


async def test_a_broken_off_stage_keeps_its_exception() -> None:
    async with serving({"/metrics": texts(PAGE)}) as url:
        reader = GateSignals((f"{url}/metrics",), clock=SystemClock())
        with pytest.raises(RuntimeError, match="given up"):
            async with reader.around() as result:
                raise RuntimeError("given up")
    assert "broken off" in result().unseen["engine"]


def test_this_machine_is_known_by_its_addresses() -> None:
    assert is_this_machine("127.0.0.1")
    assert is_this_machine("localhost")
    assert not is_this_machine("192.0.2.1")
    assert not is_this_machine("")
    assert not is_this_machine("no-such-host.invalid")
