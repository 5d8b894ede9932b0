"""
The least that a load client on aiohttp (and uvloop) can be.

``python -m tests.benchmarks.bare_aiohttp URL RATE SECONDS`` sends requests at a constant rate, reads each event as
JSON, keeps nothing, and prints what it cost. No deadlines, no classes of outcomes, no schedule: what a real client on
aiohttp spends comes on top.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import time

import aiohttp

BODY = json.dumps(
    {
        "model": "stub", "prompt": " word" * 64, "max_tokens": 16, "temperature": 0.0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    },
    separators=(",", ":"),
).encode()  # fmt: skip


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _one(session: aiohttp.ClientSession, url: str) -> None:
    async with session.post(url, data=BODY, allow_redirects=False) as response:
        while data := await response.content.readany():
            for event in data.split(b"\n\n"):
                if event.startswith(b"data: {"):
                    json.loads(event[6:])


async def _stage(session: aiohttp.ClientSession, url: str, rate: float, seconds: float) -> list[float]:
    """Lateness of each start."""
    began = time.monotonic() + 0.05
    lags, tasks = [], []
    for number in range(int(rate * seconds)):
        due = began + number / rate
        if (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait + 0.0005)
        lags.append(time.monotonic() - due)
        tasks.append(asyncio.create_task(_one(session, url)))
    await asyncio.gather(*tasks)
    return lags


async def _main(base: str, rate: float, seconds: float) -> None:
    url = f"{base}/v1/completions"
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=1 << 20,
        headers={"Content-Type": "application/json"},
    ) as session:
        await _stage(session, url, rate / 4, seconds)
        gc.collect()
        gc.freeze()
        gc.disable()
        before = _cpu_seconds()
        lags = sorted(await _stage(session, url, rate, seconds))
        spent = _cpu_seconds() - before
    lag = lags[max(0, round(0.99 * len(lags)) - 1)]
    print(json.dumps({"cpu_s_per_1k": 1000 * spent / len(lags), "lag_p99_ms": 1000 * lag}))


if __name__ == "__main__":
    try:
        from uvloop import run
    except ImportError:
        from asyncio import run
    run(_main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
