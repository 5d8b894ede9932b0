"""vLLM's own interfaces, read from outside: /metrics reduced to the guard's signals, and /is_paused."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from sre.actions.ports import EngineSample
from sre.clock import Clock
from sre.metrics import vllm
from sre.metrics.exposition import MAX_PAGE_BYTES
from sre.metrics.signals import (
    ENGINE_SOURCES,
    SIGNALS,
    STEPS_TOTAL,
    VLLM_AWAKE,
    Aggregation,
    EngineSource,
)
from sre.signals.types import NEVER, Reading, Seen

_WANTED_NAMES = (*(name for source in ENGINE_SOURCES for name in source.metrics), vllm.ENGINE_SLEEP_STATE.sample)
_WANTED_LINES = tuple((name + end).encode() for name in _WANTED_NAMES for end in ("{", " "))
"""How a wanted line begins; the rest (buckets, _created, help) is never parsed: it is 99 % of the text."""

# A compressed answer would cost the engine's front end CPU for nothing on a local link, and hide its size from us.
_HEADERS = {"Accept": "text/plain; version=0.0.4", "Accept-Encoding": "identity"}


@dataclass(frozen=True, slots=True)
class EngineEndpoint:
    """
    Where an engine answers.

    Attributes:
        url: Base URL, ``http://host:port``, a path prefix allowed.
        api_key: Bearer token it demands, resolved; never logged.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)


@dataclass(slots=True)
class _Engine:
    endpoint: EngineEndpoint
    latest: EngineSample
    task: asyncio.Task[None] | None = None
    task_started_at: float = 0.0
    problem: str | None = None


class VllmTelemetry:
    """
    ``EngineTelemetry`` over HTTP.

    At most one scrape per engine runs at any time. ``sample`` waits ``patience_seconds`` for it; when it takes longer
    (a busy front end answers in seconds) it goes on in the background, and ``sample`` returns the sample before, with
    its old ``sampled_at``: late shows as stale, not as hung. A sample is dated by the arrival of the answer's first
    byte, since vLLM collects its values right before it.

    Args:
        engines: Endpoint per engine name; ``set_engines`` replaces them.
        deadline_seconds: A scrape that takes longer is given up: UNREACHABLE.
    """

    def __init__(
        self,
        engines: Mapping[str, EngineEndpoint],
        clock: Clock,
        *,
        patience_seconds: float = 0.5,
        deadline_seconds: float = 10.0,
        connect_timeout_seconds: float = 1.0,
        max_body_bytes: int = MAX_PAGE_BYTES,
    ) -> None:
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._deadline_seconds = deadline_seconds
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=connect_timeout_seconds, sock_connect=connect_timeout_seconds
        )
        self._max_body_bytes = max_body_bytes
        self._session: aiohttp.ClientSession | None = None
        self._engines: dict[str, _Engine] = {}
        self.set_engines(engines)

    def set_engines(self, engines: Mapping[str, EngineEndpoint]) -> None:
        """Read these engines from now on. What is known of an engine whose endpoint stays the same is kept."""
        for name, known in list(self._engines.items()):
            if engines.get(name) != known.endpoint:
                if known.task is not None:
                    known.task.cancel()
                del self._engines[name]
        for name, endpoint in engines.items():
            if name not in self._engines:
                self._engines[name] = _Engine(endpoint, _uniform(NEVER))

    async def sample(self, engine: str) -> EngineSample:
        """Scrape ``engine``. Never raises; returns within ``patience_seconds``. An unknown engine is UNREACHABLE."""
        known = self._engines.get(engine)
        if known is None:
            return _uniform(Reading.missing(self._clock.monotonic(), Seen.UNREACHABLE))
        if known.task is None:
            known.task_started_at = self._clock.monotonic()
            known.task = asyncio.create_task(self._scrape(known), name=f"scrape {engine}")
        left = self._patience_seconds - (self._clock.monotonic() - known.task_started_at)
        if left > 0:
            await asyncio.wait({known.task}, timeout=left)
        return known.latest

    def problem(self, engine: str) -> str | None:
        """What was wrong with the last finished scrape, as a sentence; None when nothing was."""
        known = self._engines.get(engine)
        return None if known is None else known.problem

    async def is_paused(self, engine: str, *, timeout_seconds: float) -> bool:
        """Whether the engine says that it is paused (vLLM's dev mode). No answer, 404 and odd answers are False."""
        known = self._engines.get(engine)
        if known is None:
            return False
        try:
            async with (
                asyncio.timeout(timeout_seconds),
                self._get(known.endpoint, "/is_paused") as response,
            ):
                if response.status != 200:
                    return False
                body = await _bounded(response, 4096)
            answer = json.loads(body)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return False
        return isinstance(answer, dict) and answer.get("is_paused") is True

    async def close(self) -> None:
        """Give up what still runs and close all connections."""
        tasks = [known.task for known in self._engines.values() if known.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _get(self, endpoint: EngineEndpoint, path: str) -> aiohttp.client._RequestContextManager:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=_HEADERS, timeout=self._timeout, connector=aiohttp.TCPConnector(limit_per_host=4)
            )
        headers = {} if endpoint.api_key is None else {"Authorization": f"Bearer {endpoint.api_key}"}
        return self._session.get(endpoint.url.rstrip("/") + path, headers=headers, allow_redirects=False)

    async def _scrape(self, known: _Engine) -> None:
        """Replace ``known.latest`` by what the engine says now, or by why it was not seen."""
        try:
            known.latest, known.problem = await self._scraped(known.endpoint)
        finally:
            known.task = None

    async def _scraped(self, endpoint: EngineEndpoint) -> tuple[EngineSample, str | None]:
        where = f"engine metrics {endpoint.url}/metrics"
        try:
            async with asyncio.timeout(self._deadline_seconds), self._get(endpoint, "/metrics") as response:
                sampled_at = self._clock.monotonic()
                if response.status != 200:
                    problem = f"{where}: answered {response.status}; is this a vLLM server, and is the api key right?"
                    return _uniform(Reading.missing(sampled_at, Seen.ABSENT)), problem
                body = await _bounded(response, self._max_body_bytes)
        except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError, _TooLarge) as error:
            return self._missing(Seen.INVALID), f"{where}: broken answer ({type(error).__name__}: {error})"
        except TimeoutError:
            return self._missing(Seen.UNREACHABLE), f"{where}: no answer within its deadline"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return self._missing(Seen.UNREACHABLE), f"{where}: {type(error).__name__}: {error}"
        if body and not body.endswith(b"\n"):
            return self._missing(Seen.INVALID), f"{where}: the answer was cut off"
        return parse(body, sampled_at), None

    def _missing(self, why: Seen) -> EngineSample:
        return _uniform(Reading.missing(self._clock.monotonic(), why))


class _TooLarge(ValueError):
    """The answer is larger than we are willing to read."""


async def _bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the whole body. Raises _TooLarge, having dropped the connection, when it exceeds ``limit`` bytes."""
    parts: list[bytes] = []
    size = 0
    while part := await response.content.readany():
        size += len(part)
        if size > limit:
            response.close()
            raise _TooLarge(f"more than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


def _uniform(reading: Reading) -> EngineSample:
    """A sample in which every signal is ``reading``."""
    readings = {source.signal: reading for source in ENGINE_SOURCES}
    return EngineSample(readings.pop(STEPS_TOTAL), readings)


def parse(body: bytes, at: float) -> EngineSample:
    """
    Return the guard's signals from the Prometheus text ``body``, dated ``at``.

    A signal without a line is ABSENT; one with a line that cannot be read, is NaN or out of its range is INVALID, and
    leaves the others alone. Series of one metric (one per rank) are summed; of KV-cache usage the largest counts.
    """
    samples: dict[str, list[Sample]] = {}
    broken: set[str] = set()
    lines = [line for line in body.split(b"\n") if line.startswith(_WANTED_LINES)]
    for sample in _samples(lines, broken):
        samples.setdefault(sample.name, []).append(sample)
    readings = {source.signal: _reading(source, samples, broken, at) for source in ENGINE_SOURCES}
    return EngineSample(readings.pop(STEPS_TOTAL), readings, _asleep(samples.get(vllm.ENGINE_SLEEP_STATE.sample, ())))


def _samples(lines: list[bytes], broken: set[str]) -> Iterable[Sample]:
    try:
        return _parsed(b"\n".join(lines))
    except ValueError:
        pass
    good: list[Sample] = []
    for line in lines:
        try:
            good += _parsed(line)
        except ValueError:
            broken.add(line.replace(b"{", b" ", 1).split(b" ", 1)[0].decode())
    return good


def _parsed(text: bytes) -> list[Sample]:
    families = text_string_to_metric_families(text.decode("utf-8", "replace") + "\n")
    return [sample for family in families for sample in family.samples]


def _reading(source: EngineSource, samples: Mapping[str, list[Sample]], broken: set[str], at: float) -> Reading:
    for name in source.metrics:
        if name in broken:
            return Reading.missing(at, Seen.INVALID)
        if name in samples:
            values = [sample.value for sample in samples[name]]
            if not all(map(math.isfinite, values)):
                return Reading.missing(at, Seen.INVALID)
            value = max(values) if source.aggregation is Aggregation.MAX else math.fsum(values)
            signal = SIGNALS[source.signal]
            low_ok = signal.low is None or min(values) >= signal.low
            high_ok = signal.high is None or value <= signal.high
            return Reading.of(value, at) if low_ok and high_ok else Reading.missing(at, Seen.INVALID)
    return Reading.missing(at)


def _asleep(states: Iterable[Sample]) -> bool:
    """Whether a rank sleeps: its series ``awake`` is 0, or a series of a sleep level is 1. NaN says nothing."""
    return any(
        sample.value == (0.0 if sample.labels.get(vllm.ENGINE_SLEEP_STATE.labels[-1]) == VLLM_AWAKE else 1.0)
        for sample in states
    )
