"""What this client can do on this machine: the load generator against a stub that is known to be fast."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from sre.adapters.load.wire import Target
from sre.errors import ExitedEarly, NotReady, ProcessError
from sre.gate.percentiles import nearest_rank
from sre.gate.prompts import PromptScale, scale_by_chars
from sre.gate.stages import Calibration, RequestClass, StageKind, StageLoad, StagePlan, Watch

STUB_MODULE = "sre.servers.load_stub"
STUB_START_SECONDS = 15.0
STAMPS_SECONDS = 15.0
"""A stub that has not told what it saw by then hangs."""
FIRST_TOKEN_SECONDS = 0.02
TOKENS = 16
TOKEN_SECONDS = 0.005
PROMPT_TOKENS = 256
DRAIN_SECONDS = 5.0

RunOn = Callable[[Target, PromptScale, StagePlan, Watch, float | None, float], Awaitable[StageLoad]]


@asynccontextmanager
async def running_stub(
    first_token_seconds: float = FIRST_TOKEN_SECONDS, token_seconds: float = TOKEN_SECONDS
) -> AsyncIterator[str]:
    """
    The base URL of a stub in a process of its own (in ours it would eat the client's time); it ends with the block.

    Raises:
        ProcessError: It cannot be started, or is not ready in time.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", STUB_MODULE, "--first-token-seconds", repr(first_token_seconds),
            "--token-seconds", repr(token_seconds),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise ProcessError(f"calibration stub: cannot be started: {error.strerror}") from error
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        try:
            async with asyncio.timeout(STUB_START_SECONDS):
                line = await process.stdout.readline()
        except TimeoutError:
            raise NotReady(
                f"calibration stub: not ready within {STUB_START_SECONDS:g} s; is the machine busy?"
            ) from None
        if not line:
            raise ExitedEarly("calibration stub: ended before it was ready; see the messages above")
        yield f"http://127.0.0.1:{int(line)}"
    finally:
        process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(process.wait())


async def calibrate(run_on: RunOn, rate_rps: float, seconds: float, limit_seconds: float, *, seed: int) -> Calibration:
    """
    Return what the client did at ``rate_rps`` for ``seconds``.

    Its share of a TTFT is what lies between the stub's writing of the first token, stamped by the stub, and our noting
    of it, and its lateness in sending; a stub that is itself late does not count against the client.

    Raises:
        ProcessError: The stub cannot be started, or went away.
    """
    plan = StagePlan(
        name="calibration", kind=StageKind.WARM_UP, rate_rps=rate_rps, duration_seconds=seconds, seed=seed,
        classes=(RequestClass("calibration", 1.0, PROMPT_TOKENS, TOKENS),),
    )  # fmt: skip
    async with running_stub() as url:
        load = await run_on(
            Target(url, "completions", "stub"), scale_by_chars(), plan, lambda _: None, None, DRAIN_SECONDS
        )
        wrote = await _stamps(url)
    floors = []
    for record in load.records:
        if record.failed or record.first_content_at is None or record.number not in wrote:
            continue
        floors.append((record.lag_seconds or 0.0) + max(0.0, record.first_content_at - wrote[record.number]))
    floors.sort()
    missed = len(load.records) - len(floors)
    floor = nearest_rank(floors, 0.99)
    lag = load.client.lag_p99_seconds
    reasons = []
    if lag > limit_seconds:
        reasons.append(f"99 % of requests are sent within {1000 * lag:.1f} ms of their moment")
    if floor is not None and floor > limit_seconds:
        reasons.append(f"the client adds {1000 * floor:.1f} ms to the 99th percentile of TTFT")
    if missed:
        reasons.append(f"{missed} of {len(load.records)} requests to the loopback stub failed or were not sent")
    count = max(1, len(load.records))
    return Calibration(
        rate_rps=rate_rps,
        requests=len(load.records),
        ttft_floor_p50_seconds=nearest_rank(floors, 0.5) or 0.0,
        ttft_floor_p99_seconds=floor or 0.0,
        lag_p99_seconds=lag,
        cpu_seconds_per_1000_requests=1000 * load.client.cpu_seconds / count,
        processes=load.client.processes,
        client_limited=bool(reasons),
        reason="" if not reasons else f"at {rate_rps:g} requests/s " + "; ".join(reasons)
        + f" (limit {1000 * limit_seconds:g} ms); use a machine with more free cores, or lower rates",
    )  # fmt: skip


async def _stamps(url: str) -> dict[int, float]:
    """
    Number of the request → monotonic moment at which the stub wrote its first token.

    Raises:
        ProcessError: The stub is gone.
    """
    import aiohttp

    timeout = aiohttp.ClientTimeout(STAMPS_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{url}/stamps") as response:
            found = json.loads(await response.read())
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ProcessError(
            f"calibration stub: went away during the calibration ({type(error).__name__}); what this client can do is "
            "not known: run again, and free memory if it was killed for that"
        ) from error
    return {int(name.rpartition("-")[2]): float(row["first_token_at"]) for name, row in found.items()}
