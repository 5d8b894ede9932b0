"""
The simulated engine: an honest stand-in for vLLM where there is no GPU. ``python -m sre.servers.simulated_engine
--help``.

This process is the API server; the engine core is its child (``simulated_engine_core``), in the same session and
process group. Exit codes are vLLM's: 0 after SIGTERM and after the death of the core, 1 when it could not start.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp import web

from sre.errors import SreError
from sre.servers.simulated_engine_client import EngineClient, Totals
from sre.servers.simulated_engine_core import CoreOptions
from sre.servers.simulated_engine_http import VERSION, EngineApi, HttpOptions, make_server
from sre.servers.simulated_engine_metrics import EngineMetrics
from sre.simulator.scheduler import Limits

STATS_LOG_SECONDS = 10.0
"""vLLM's log line about throughput: that it stops is a sign of a hang."""
DEATH_GRACE_SECONDS = 0.25
"""After the death of the core requests are answered 500 this long, then the port closes."""
CORE_EXIT_SECONDS = 1.5
"""From SIGTERM (and the drain) to SIGKILL of the core."""
ANSWER_SECONDS = 1.0
"""For handlers to send their last bytes."""
BACKLOG = 2048


def parser() -> argparse.ArgumentParser:
    """Options: vLLM's names where vLLM has them."""
    parser = argparse.ArgumentParser(
        prog="python -m sre.servers.simulated_engine",
        description="SIMULATED inference engine with vLLM's interfaces and failure behaviour. No model, no GPU.",
    )
    parser.add_argument("--name", default="sim", help="name of this engine in logs")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", default="sim-7b", help="any name")
    parser.add_argument("--served-model-name", help="name clients use; default: --model")
    parser.add_argument("--max-num-seqs", type=int, default=256, help="requests in one batch at the most")
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048, help="tokens per step: the prefill chunk")
    parser.add_argument("--max-model-len", type=int, default=40960, help="prompt + answer at the most, tokens")
    parser.add_argument("--kv-cache-tokens", type=int, default=400_000, help="size of the simulated KV cache")
    parser.add_argument("--no-enable-chunked-prefill", action="store_true", help="a prompt is computed in one step")
    parser.add_argument("--no-enable-prefix-caching", action="store_true")
    parser.add_argument("--scheduling-policy", choices=["fcfs", "priority"], default="fcfs")
    parser.add_argument("--max-num-queued-reqs", type=int, help="more unfinished requests are answered 503")
    parser.add_argument("--max-num-queued-tokens", type=int, help="more prompt tokens in the queue are answered 503")
    parser.add_argument("--enable-server-load-tracking", action="store_true", help="/load counts")
    parser.add_argument("--enable-request-id-headers", action="store_true", help="answers carry X-Request-Id")
    parser.add_argument("--shutdown-timeout", type=float, default=0.0, help="SIGTERM: seconds for requests to finish")
    parser.add_argument("--api-key-env", metavar="VAR", help="environment variable that holds the API key")
    parser.add_argument("--gpus", default="", help="indices of simulated GPUs, e.g. 0,1")
    parser.add_argument("--gpu-file", metavar="FILE", help="where to say how these GPUs are loaded")
    parser.add_argument("--fault-file", metavar="FILE", help="faults to act out, read again when it changes")
    parser.add_argument("--time-scale", type=float, default=1.0, help="simulated seconds per real second")
    parser.add_argument("--load-seconds", type=float, default=0.5, help="real seconds until ready")
    parser.add_argument("--seed", type=int, default=0)
    return parser


class StartError(SreError):
    """The engine could not start; one sentence."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; exit code as vLLM's."""
    options = parser().parse_args(argv)
    try:
        _check(options)
        listener = _bind(options.host, options.port)
    except StartError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    with listener:
        try:
            return asyncio.run(ApiServer(options, listener).run())
        except StartError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        except KeyboardInterrupt:
            return 0


class ApiServer:
    """Life of the API server process."""

    def __init__(self, options: argparse.Namespace, listener: socket.socket) -> None:
        self._options = options
        self._listener = listener
        self._stop = asyncio.Event()
        self._died = asyncio.Event()
        self._keep_alive = os.environ.get("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH") == "1"

    async def run(self) -> int:
        """Start the core, serve, end. Raises StartError."""
        options = self._options
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        served = options.served_model_name or options.model
        log(f"SIMULATED ENGINE (sre): {options.name} answers for model {served} without a model and without a GPU")
        limits = limits_of(options)
        metrics = EngineMetrics(served, options.max_model_len, options.kv_cache_tokens, limits.prefix_caching)
        client = EngineClient(
            metrics,
            max_queued_requests=options.max_num_queued_reqs,
            max_queued_tokens=options.max_num_queued_tokens,
            seed=options.seed,
            on_death=self._died.set,
        )
        core = await self._start_core(limits, client)
        try:
            if not await self._ready(client):
                return 0
            return await self._serve(client, metrics, core)
        finally:
            await _end(core, 0.0)
            client.close()

    async def _start_core(self, limits: Limits, client: EngineClient) -> subprocess.Popen[bytes]:
        options = self._options
        ours, theirs = socket.socketpair()
        with theirs:
            told = CoreOptions(
                socket_fd=theirs.fileno(),
                name=options.name,
                limits=asdict(limits),
                time_scale=options.time_scale,
                load_seconds=options.load_seconds,
                seed=options.seed,
                gpus=[int(index) for index in options.gpus.split(",") if index],
                gpu_file=options.gpu_file,
                fault_file=options.fault_file,
                shutdown_timeout_seconds=options.shutdown_timeout,
            )
            argv = [sys.executable, "-m", "sre.servers.simulated_engine_core", told.to_argument()]
            # The start takes milliseconds; nothing else runs in the loop yet.
            core = subprocess.Popen(argv, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)  # noqa: ASYNC220
        await client.connect(ours)
        return core

    async def _ready(self, client: EngineClient) -> bool:
        """Wait for the core; False when told to stop meanwhile. Raises StartError when it died."""
        stop = asyncio.create_task(self._stop.wait())
        waiting: set[asyncio.Future[Any]] = {stop, client.ready}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if client.dead:
            raise StartError(f"engine {self._options.name}: its core died while starting; see the lines above")
        return client.ready.done()

    async def _serve(self, client: EngineClient, metrics: EngineMetrics, core: subprocess.Popen[bytes]) -> int:
        options = self._options
        http = HttpOptions(
            served_model=options.served_model_name or options.model,
            root=options.model,
            max_model_len=options.max_model_len,
            api_key=_api_key(options),
            dev_mode=os.environ.get("VLLM_SERVER_DEV_MODE") == "1",
            request_id_headers=options.enable_request_id_headers,
            track_load=options.enable_server_load_tracking,
        )
        runner = web.ServerRunner(make_server(EngineApi(http, client, metrics)), shutdown_timeout=ANSWER_SECONDS)
        await runner.setup()
        site = web.SockSite(runner, self._listener, backlog=BACKLOG)
        await site.start()
        log(f"vLLM {VERSION} imitation on http://{options.host}:{options.port}: Application startup complete.")
        stats = asyncio.create_task(_log_stats(client.totals))
        try:
            await self._until_the_end(client, core)
        finally:
            stats.cancel()
            await site.stop()
            await runner.cleanup()
        log("Application shutdown complete.")
        return 0

    async def _until_the_end(self, client: EngineClient, core: subprocess.Popen[bytes]) -> None:
        stop = asyncio.create_task(self._stop.wait())
        died = asyncio.create_task(self._died.wait())
        await asyncio.wait({stop, died}, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if not self._stop.is_set():
            log("ERROR EngineDeadError: EngineCore encountered an issue: its process ended")
            if not self._keep_alive:
                stop.cancel()
                await asyncio.sleep(DEATH_GRACE_SECONDS)
                return
            await stop
        client.stopping = True
        log(f"SIGTERM: {client.unfinished} requests unfinished, {self._options.shutdown_timeout:g} s to drain")
        await _end(core, self._options.shutdown_timeout)
        client.abort(None)  # what a core that could not answer left open


async def _end(core: subprocess.Popen[bytes], drain_seconds: float) -> None:
    """SIGTERM, patience, SIGKILL; reaps."""
    if core.poll() is None:
        core.terminate()
        until = time.monotonic() + drain_seconds + CORE_EXIT_SECONDS
        while core.poll() is None and time.monotonic() < until:  # noqa: ASYNC110 - a process sets no Event
            await asyncio.sleep(0.01)
        if core.poll() is None:
            core.kill()
    core.wait()


async def _log_stats(totals: Totals) -> None:
    """vLLM's line every 10 s, while something happens."""
    before = (0, 0)
    while True:
        await asyncio.sleep(STATS_LOG_SECONDS)
        now = (totals.prompt_tokens, totals.generation_tokens)
        if now == before:
            continue
        prompt, generation = ((new - old) / STATS_LOG_SECONDS for new, old in zip(now, before, strict=True))
        before = now
        hits = totals.prefix_hits / totals.prefix_queries if totals.prefix_queries else 0.0
        log(
            f"Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation throughput: {generation:.1f} "
            f"tokens/s, Running: {totals.running} reqs, Waiting: {totals.waiting} reqs, GPU KV cache usage: "
            f"{totals.kv_usage_ratio:.1%}, Prefix cache hit rate: {hits:.1%}"
        )


def limits_of(options: argparse.Namespace) -> Limits:
    """Scheduler settings of the command line."""
    return Limits(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        kv_cache_tokens=options.kv_cache_tokens,
        chunked_prefill=not options.no_enable_chunked_prefill,
        prefix_caching=not options.no_enable_prefix_caching,
        by_priority=options.scheduling_policy == "priority",
    )


def log(message: str) -> None:
    """One line on stderr; a closed pipe is no reason to die."""
    try:
        sys.stderr.write(f"(APIServer pid={os.getpid()}) {time.strftime('%m-%d %H:%M:%S')} {message}\n")
        sys.stderr.flush()
    except OSError:
        pass


def _check(options: argparse.Namespace) -> None:
    where = f"engine {options.name}"
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "time_scale"):
        if getattr(options, name) <= 0:
            raise StartError(f"{where}: --{name.replace('_', '-')} must be above 0")
    if options.max_model_len > options.kv_cache_tokens:
        raise StartError(
            f"{where}: --max-model-len {options.max_model_len} does not fit into the KV cache of "
            f"{options.kv_cache_tokens} tokens; lower it or raise --kv-cache-tokens"
        )
    if not all(part.isdecimal() for part in options.gpus.split(",") if part):
        raise StartError(f"{where}: --gpus {options.gpus} is not a list of indices; write e.g. 0,1")
    if options.api_key_env and not os.environ.get(options.api_key_env):
        raise StartError(f"{where}: environment variable {options.api_key_env} is empty; put the API key there")
    for name in ("gpu_file", "fault_file"):
        path = getattr(options, name)
        if path and not Path(path).parent.is_dir():
            raise StartError(f"{where}: folder {Path(path).parent} of --{name.replace('_', '-')} is missing; create it")


def _bind(host: str, port: int) -> socket.socket:
    """A socket bound, not yet listening: clients are refused until the engine is ready, as with vLLM."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StartError(
            f"engine: cannot listen on {host}:{port}: {error.strerror or error}; choose another --port or --host"
        ) from error
    return listener


def _api_key(options: argparse.Namespace) -> str | None:
    return os.environ.get(options.api_key_env or "VLLM_API_KEY") or None


if __name__ == "__main__":
    sys.exit(main())
