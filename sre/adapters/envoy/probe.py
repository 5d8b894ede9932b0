"""The canary: a tiny real completion to one engine, judged by what it answers and how fast."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path

import aiohttp

from sre.clock import Clock
from sre.signals.types import QUEUE_FULL, CanaryResult, CanaryVerdict
from sre.stack.gateway_names import PROBE_HEADER, probe_cluster

GOOD_FINISH = frozenset({"stop", "length"})
MAX_ANSWER_BYTES = 64 * 1024
"""One token with its frame takes under 2 kB."""


async def probe(
    socket_path: Path,
    *,
    engine: str,
    model: str,
    generation: int,
    token: str | None,
    first_token_timeout_seconds: float,
    timeout_seconds: float,
    clock: Clock,
) -> CanaryResult:
    """Send one canary; never raises (cancellation apart). ``token`` is the engine's bearer token, if it wants one."""
    started = clock.monotonic()
    first: float | None = None

    def result(verdict: CanaryVerdict, detail: str) -> CanaryResult:
        return CanaryResult(engine, generation, verdict, detail, started, clock.monotonic(), first)

    body = {
        "model": model,
        # A nonce in front: the answer must not come from the prefix cache alone.
        "prompt": f"{secrets.token_hex(4)} ping",
        "max_tokens": 1,
        "temperature": 0,
        "stream": True,
    }
    headers = {PROBE_HEADER: probe_cluster(engine)}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    finish: str | None = None
    received = 0
    try:
        async with (
            asyncio.timeout(timeout_seconds),
            aiohttp.UnixConnector(path=str(socket_path), force_close=True) as connector,
            aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session,
        ):
            async with asyncio.timeout(first_token_timeout_seconds) as first_deadline:
                async with session.post("http://gateway/v1/completions", json=body, headers=headers) as response:
                    if response.status != 200:
                        text = (await response.content.read(MAX_ANSWER_BYTES)).decode("utf-8", "replace")
                        return result(*_refused(response.status, text))
                    while line := await response.content.readline():
                        received += len(line)
                        if received > MAX_ANSWER_BYTES:
                            return result(CanaryVerdict.FAILURE, "answer_too_long")
                        if not line.startswith(b"data:"):
                            continue
                        data = line[5:].strip()
                        if data == b"[DONE]":
                            break
                        event = json.loads(data)
                        if event.get("error"):
                            return result(CanaryVerdict.FAILURE, "error")
                        for choice in event.get("choices") or ():
                            if first is None:
                                first = clock.monotonic() - started
                                first_deadline.reschedule(None)
                            finish = choice.get("finish_reason") or finish
    except TimeoutError:
        return result(CanaryVerdict.FAILURE, "first_token_timeout" if first is None else "timeout")
    except (aiohttp.ClientError, OSError, ValueError, AttributeError, TypeError) as error:
        return result(CanaryVerdict.FAILURE, f"transport: {type(error).__name__}")
    if finish in GOOD_FINISH:
        return result(CanaryVerdict.SUCCESS, "ok")
    return result(CanaryVerdict.FAILURE, "no_finish" if finish is None else f"finish_{finish}")


def _refused(status: int, text: str) -> tuple[CanaryVerdict, str]:
    if status == 503 and QUEUE_FULL in text:
        return CanaryVerdict.NEUTRAL, "queue_full"
    if 400 <= status < 500:
        return CanaryVerdict.NEUTRAL, f"http_{status}"
    return CanaryVerdict.FAILURE, f"http_{status}"
