"""Pages of engines and guard, over HTTP: only the lines that are wanted are parsed."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from sre.gate import engine_signals
from sre.gate.engine_signals import EnginePage, engine_page
from sre.gate.stages import SILENT
from sre.metrics import own, vllm
from sre.metrics.catalogue import RAY_PREFIXES, VLLM_PREFIX, variants
from sre.metrics.exposition import MAX_PAGE_BYTES, ExpositionError, parse_exposition
from sre.metrics.types import Kind

READ_DEADLINE_SECONDS = 10.0
TRIP_DEADLINE_SECONDS = 2.0
TRIPS = 4
"""Trivial requests per round-trip measurement; the first opens the connection and does not count."""
NO_ENGINE = "no metric of an inference engine on the page"
MODELS = "/v1/models"


class Pages:
    """
    One session. Every read gives a value, or None and why.

    Args:
        url: Base URL of the target; ``api_key`` goes to its host and port, and nowhere else.
    """

    def __init__(self, url: str, api_key: str | None, monotonic: Callable[[], float]) -> None:
        self._url = url
        self._key = api_key
        self._monotonic = monotonic
        self._session = aiohttp.ClientSession(
            headers={"Accept-Encoding": "identity"},
            connector=aiohttp.TCPConnector(limit_per_host=4),
            timeout=aiohttp.ClientTimeout(total=None, connect=5),
        )

    async def close(self) -> None:
        await self._session.close()

    async def engine(self, url: str, deadline_seconds: float = READ_DEADLINE_SECONDS) -> tuple[EnginePage | None, str]:
        """An engine's page."""
        body, why = await self._get(url, deadline_seconds)
        if body is None:
            return None, why
        lines = [line for line in body.split(b"\n") if line.startswith(_WANTED)]
        if not lines:
            return None, NO_ENGINE
        try:
            page = engine_page(parse_exposition(b"\n".join(lines) + b"\n"))
        except ExpositionError as error:
            return None, str(error)
        return (page, "") if page.is_engine else (None, NO_ENGINE)

    async def round_trip(self) -> tuple[float | None, str]:
        """Seconds to the head of a trivial answer, the lowest of a few on an open connection."""
        found: list[float] = []
        for _ in range(TRIPS):
            began_at = self._monotonic()
            try:
                async with (
                    asyncio.timeout(TRIP_DEADLINE_SECONDS),
                    self._session.get(
                        self._url + MODELS, headers=self._headers(self._url), allow_redirects=False
                    ) as got,
                ):
                    took = self._monotonic() - began_at
                    await got.read()
                    if got.status >= 500:
                        return None, f"{MODELS} answered {got.status}"
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                return None, f"{MODELS}: {_why(error)}"
            found.append(took)
        return min(found[1:]), ""

    async def guard(self, url: str) -> tuple[dict[str, float] | None, str]:
        """Counters of the guard of an sre stack: requests by outcome, refusals."""
        body, why = await self._get(url, READ_DEADLINE_SECONDS)
        if body is None:
            return None, why
        found = dict.fromkeys(("requests", "successes", "failures", "refused", "client_aborts"), 0.0)
        lines = [line for line in body.split(b"\n") if line.startswith(_GUARD)]
        if not lines:
            return found, ""  # a series appears with its first event
        try:
            samples = parse_exposition(b"\n".join(lines) + b"\n").samples
        except ExpositionError as error:
            return None, str(error)
        for series in samples.get(own.REQUESTS.sample, ()):
            found["requests"] += series.value
            name = {"success": "successes", "failure": "failures"}.get(series.labels.get(own.OUTCOME, ""))
            if name is not None:
                found[name] += series.value
        found["refused"] = math.fsum(series.value for series in samples.get(own.REJECTED.sample, ()))
        found["client_aborts"] = math.fsum(series.value for series in samples.get(own.CLIENT_ABORTS.sample, ()))
        return found, ""

    async def document(self, base: str, path: str) -> Mapping[str, Any]:
        """A JSON object; empty where there is none."""
        body, _ = await self._get(base + path, READ_DEADLINE_SECONDS)
        if body is None:
            return {}
        try:
            found = json.loads(body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    async def _get(self, url: str, deadline_seconds: float) -> tuple[bytes | None, str]:
        try:
            async with (
                asyncio.timeout(deadline_seconds),
                self._session.get(url, headers=self._headers(url), allow_redirects=False) as got,
            ):
                if got.status != 200:
                    return None, f"answered {got.status}"
                parts, size = [], 0
                async for part in got.content.iter_any():
                    parts.append(part)
                    size += len(part)
                    if size > MAX_PAGE_BYTES:
                        return None, f"more than {MAX_PAGE_BYTES} bytes"
                return b"".join(parts), ""
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            return None, _why(error)

    def _headers(self, url: str) -> dict[str, str]:
        mine = self._key is not None and urlsplit(url)[:2] == urlsplit(self._url)[:2]
        return {"Authorization": f"Bearer {self._key}"} if mine else {}


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return SILENT
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _wanted() -> tuple[bytes, ...]:
    names = {vllm.CACHE_CONFIG_INFO.name}
    for metric in (*engine_signals.COUNTERS.values(), *engine_signals.MEANS.values(), *engine_signals.GAUGES.values()):
        for one in variants(metric, None):
            if one.kind is Kind.HISTOGRAM:
                names |= {f"{one.name}_sum", f"{one.name}_count"}
            else:
                names.add(one.sample)
    spelled = {prefix + name.removeprefix(VLLM_PREFIX) for name in names for prefix in (VLLM_PREFIX, *RAY_PREFIXES)} | {
        "process_start_time_seconds"
    }
    return tuple((name + end).encode() for name in sorted(spelled) for end in ("{", " "))


_WANTED = _wanted()
"""How a wanted line begins; buckets, _created and help are most of a page."""
_GUARD = tuple(metric.sample.encode() for metric in (own.REQUESTS, own.REJECTED, own.CLIENT_ABORTS))
