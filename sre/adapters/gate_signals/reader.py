"""The reader: before, during and after a stage."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sre.actions.ports import GpuReader
from sre.adapters.gate_signals.machine import HostSource, client_host, host_read, is_this_machine
from sre.adapters.gate_signals.pages import MODELS, READ_DEADLINE_SECONDS, Pages
from sre.clock import Clock
from sre.gate.engine_signals import EngineDelta, EnginePage, combine, difference, engine_uses
from sre.gate.host_signals import HostRead, host_signals
from sre.gate.latency_budget import ROUND_TRIP
from sre.gate.stages import SILENT, Resource, ResourceUse, StageSignals
from sre.settings.gate import CapacitySettings
from sre.signals.types import GpuSeen, Seen

SAMPLE_SECONDS = 0.5
GAUGE_DEADLINE_SECONDS = 2.0
"""A front end that is busy answers in seconds; such a sample is left out."""
STABLE_CONFIG = frozenset({"block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization"})
"""Of cache_config_info: what an operator sets. The number of blocks differs a little from start to start."""
SILENT_PART = 0.2
"""Of its deadline, for a page that was waited for in vain the last time: it must not make every stage longer."""
BROKEN_OFF = "the stage was broken off before it was read the second time"


@dataclass(slots=True)
class _Seen:
    """What is gathered around one stage."""

    here: bool
    trips: list[float] = field(default_factory=list)
    before: dict[str, EnginePage] = field(default_factory=dict)
    samples: list[list[EnginePage]] = field(default_factory=list)
    gpu_busy: list[float] = field(default_factory=list)
    gateway: Mapping[str, float] | None = None
    host: HostRead | None = None
    unseen: dict[str, str] = field(default_factory=dict)


class GateSignals:
    """
    ``SignalReader`` over HTTP and /proc.

    Args:
        metrics_urls: /metrics pages of the engines.
        url: Base URL of what is loaded; for the round trip, version and models. "" takes that of the first page.
        api_key: Bearer token; sent to ``url``'s host and port only.
        host: Reads this machine; used where the target is on it. None: not read.
        gpus: Used where the target is on this machine. Not closed here.
        guard_metrics_url: Page of the guard of an sre stack in front.
        batch_slots: max_num_seqs of all engines together, if known.
        root: Stands for ``/``.
        page_deadline_seconds: For an engine's page before and after a stage.
    """

    def __init__(
        self,
        metrics_urls: Sequence[str],
        *,
        clock: Clock,
        url: str = "",
        api_key: str | None = None,
        capacity: CapacitySettings | None = None,
        host: HostSource | None = None,
        gpus: GpuReader | None = None,
        guard_metrics_url: str | None = None,
        batch_slots: int | None = None,
        root: Path = Path("/"),
        page_deadline_seconds: float = READ_DEADLINE_SECONDS,
    ) -> None:
        self._urls = tuple(metrics_urls)
        self._url = (url or (_base(self._urls[0]) if self._urls else "")).rstrip("/")
        self._clock = clock
        self._key = api_key
        self._capacity = capacity or CapacitySettings()
        self._host, self._gpus, self._guard = host, gpus, guard_metrics_url
        self._slots = batch_slots
        self._root = root
        self._page_deadline_seconds = page_deadline_seconds
        self._silent: set[str] = set()
        """Pages that said nothing when last asked."""

    def around(self) -> AbstractAsyncContextManager[Callable[[], StageSignals]]:
        """See ``SignalReader``."""
        return self._around()

    async def describe(self) -> Sequence[tuple[str, str]]:
        """Name and value pairs for the fingerprint; what is not told is left out."""
        pairs: list[tuple[str, str]] = []
        async with self._pages() as pages:
            bases = sorted({self._url, *map(_base, self._urls)})
            documents = [await pages.document(base, "/version") for base in bases]
            versions = sorted({str(found["version"]) for found in documents if "version" in found})
            if versions:
                pairs.append(("engine_version", ", ".join(versions)))
            lengths = {
                str(one["max_model_len"])
                for one in _entries(await pages.document(self._url, MODELS))
                if isinstance(one.get("max_model_len"), int)
            }
            if lengths:
                pairs.append(("max_model_len", ", ".join(sorted(lengths))))
            read = [page for url in self._urls if (page := (await self._engine(pages, url))[0]) is not None]
        configs: dict[str, set[str]] = {}
        for name, value in (pair for page in read for pair in page.config):
            if name in STABLE_CONFIG:
                configs.setdefault(name, set()).add(value)
        if read:
            pairs.append(("engines", str(len(read))))
        pairs += [(f"engine.{name}", ", ".join(sorted(values))) for name, values in sorted(configs.items())]
        if self._gpus is not None and await self._is_here():
            cards = Counter(map(_card, await self._gpus.read()))
            if cards:
                pairs.append(("gpus", ", ".join(f"{count} x {card}" for card, count in sorted(cards.items()))))
        return [*pairs, *await asyncio.to_thread(client_host, self._root)]

    @contextlib.asynccontextmanager
    async def _around(self) -> AsyncIterator[Callable[[], StageSignals]]:
        result = StageSignals(0.0, unseen={"engine": BROKEN_OFF})
        async with self._pages() as pages:
            seen = _Seen(await self._is_here())
            await self._round_trip(pages, seen)
            for url in self._urls:
                page, why = await self._engine(pages, url)
                if page is None:
                    seen.unseen[f"engine {url}"] = why
                else:
                    seen.before[url] = page
            if self._guard is not None:
                seen.gateway, why = await pages.guard(self._guard)
                if why:
                    seen.unseen["gateway"] = why
            seen.host = await self._read_host(seen)
            began_at = self._clock.monotonic()
            sampler = asyncio.create_task(self._sample(pages, seen), name="gate signals")
            try:
                yield lambda: result
            finally:
                sampler.cancel()
                (ended,) = await asyncio.gather(sampler, return_exceptions=True)
                if isinstance(ended, Exception):
                    seen.unseen["gauges"] = f"no longer sampled: {ended!r}"
            result = await self._finish(pages, seen, self._clock.monotonic() - began_at)

    async def _sample(self, pages: Pages, seen: _Seen) -> None:
        """Gauges, until cancelled. A moment in which an engine does not answer is left out: sums would lack it."""
        while True:
            due = self._clock.monotonic() + SAMPLE_SECONDS
            answers = await asyncio.gather(*(pages.engine(url, GAUGE_DEADLINE_SECONDS) for url in seen.before))
            read = [page for page, _ in answers if page is not None]
            if read and len(read) == len(answers):
                seen.samples.append(read)
            if seen.here and self._gpus is not None:
                shares = [
                    gpu.utilization_ratio.value
                    for gpu in await self._gpus.read()
                    if gpu.utilization_ratio.seen is Seen.OK and gpu.utilization_ratio.value is not None
                ]
                if shares:
                    seen.gpu_busy.append(max(shares))
            await self._clock.sleep(max(0.0, due - self._clock.monotonic()))

    async def _finish(self, pages: Pages, seen: _Seen, seconds: float) -> StageSignals:
        deltas = await self._deltas(pages, seen)
        engine = combine(deltas, seen.samples)
        uses: list[ResourceUse] = []
        if deltas:
            uses, missing = engine_uses(
                engine,
                seconds,
                batch_slots=self._slots,
                flops_per_second=self._capacity.compute_flops_per_second,
                memory_bytes_per_second=self._capacity.gpu_memory_bytes_per_second,
            )
            seen.unseen.update(missing)
        else:
            whys = [why for name, why in seen.unseen.items() if name.startswith("engine ")]
            seen.unseen["engine"] = whys[0] if whys else "no metrics page is known; set gate.target.metrics_urls"
        figures: dict[str, float] = {}
        after = None if seen.host is None else await self._read_host(seen)
        if seen.host is not None and after is not None:
            figures, more, missing = host_signals(
                seen.host,
                after,
                storage_bytes_per_second=self._capacity.storage_bytes_per_second,
                network_bits_per_second=self._capacity.network_bits_per_second,
            )
            uses += more
            seen.unseen.update(missing)
        await self._round_trip(pages, seen)
        if seen.trips:
            seen.unseen.pop("round_trip", None)
            figures[ROUND_TRIP] = min(seen.trips)
        if seen.gpu_busy:
            figures["gpu_busy_ratio"] = busy = math.fsum(seen.gpu_busy) / len(seen.gpu_busy)
            uses.append(ResourceUse(Resource.ENGINE_BUSY, busy, False, "GPU utilization: time with any kernel running"))
        elif seen.here:
            seen.unseen["gpu"] = "no GPU tells its utilization"
        return StageSignals(seconds, tuple(uses), seen.unseen, engine, await self._gateway(pages, seen), figures)

    async def _engine(self, pages: Pages, url: str) -> tuple[EnginePage | None, str]:
        page, why = await pages.engine(url, self._page_deadline_seconds * (SILENT_PART if url in self._silent else 1))
        (self._silent.add if why == SILENT else self._silent.discard)(url)
        return page, why

    async def _deltas(self, pages: Pages, seen: _Seen) -> list[EngineDelta]:
        deltas: list[EngineDelta] = []
        for url, before in seen.before.items():
            after, why = await self._engine(pages, url)
            if after is None:
                seen.unseen[f"engine {url}"] = f"it answered before the stage, not after it: {why}"
                continue
            deltas.append(difference(before, after))
            if deltas[-1].restarted:
                seen.unseen[f"restart {url}"] = "the engine was started again during the stage; it counts since then"
        return deltas

    async def _gateway(self, pages: Pages, seen: _Seen) -> dict[str, float]:
        if self._guard is None or seen.gateway is None:
            return {}
        after, why = await pages.guard(self._guard)
        if after is None:
            seen.unseen["gateway"] = why
            return {}
        if any(after[name] < value for name, value in seen.gateway.items()):
            seen.unseen["restart guard"] = "the guard was started again during the stage; it counts since then"
            return after
        return {name: value - seen.gateway[name] for name, value in after.items()}

    async def _round_trip(self, pages: Pages, seen: _Seen) -> None:
        found, why = await pages.round_trip()
        if found is None:
            seen.unseen["round_trip"] = why
        else:
            seen.trips.append(found)

    async def _read_host(self, seen: _Seen) -> HostRead | None:
        if seen.here and self._host is not None:
            return await asyncio.to_thread(host_read, self._host, self._root)
        why = "nobody reads this host" if seen.here else f"{urlsplit(self._url).hostname} is another machine"
        names = [Resource.CPU.value, Resource.STORAGE.value, Resource.NETWORK.value, *([] if seen.here else ["gpu"])]
        seen.unseen.update(dict.fromkeys(names, why))
        return None

    async def _is_here(self) -> bool:
        """Whether what is loaded runs on this machine."""
        return await asyncio.to_thread(is_this_machine, urlsplit(self._url).hostname or "")

    @contextlib.asynccontextmanager
    async def _pages(self) -> AsyncIterator[Pages]:
        pages = Pages(self._url, self._key, self._clock.monotonic)
        try:
            yield pages
        finally:
            await pages.close()


def _card(gpu: GpuSeen) -> str:
    total = gpu.details.memory_total_bytes if gpu.details is not None else None
    return gpu.source if total is None else f"{gpu.source} {total / 2**30:.0f} GiB"


def _entries(models: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = models.get("data")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _base(page: str) -> str:
    return page.rstrip("/").removesuffix("/metrics")
