"""The guard's own /metrics and /healthz. Counters are kept here; gauges are read from the guard at each scrape."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from sre import __version__
from sre.actions.types import FinishedRequest
from sre.breaker.decide import Decision
from sre.metrics import own
from sre.metrics.types import Kind, Metric
from sre.signals.types import CanaryResult, GpuSeen, Reading, Seen, Snapshot

BREAKER_STATES = ("closed", "open", "half_open", "forced_open", "disabled")
RULE_STATES = ("ok", "pending", "firing", "recovering", "unknown", "disarmed")

CLIENT_ABORT = "client_abort"
"""``FinishedRequest.detail`` of a request that its client gave up."""

HEALTHY_TICK_AGE_SECONDS = 10.0
"""A guard whose last tick is older is not healthy."""

HERE = frozenset(
    {
        own.ACTIONS,
        own.BREAKER_OPENINGS,
        own.CANARIES,
        own.CANARY_FIRST_TOKEN_SECONDS,
        own.CLIENT_ABORTS,
        own.GUARD_ERRORS,
        own.GUARD_TICKS,
        own.GUARD_TICK_SECONDS,
        own.INCIDENTS,
        own.REJECTED,
        own.REQUESTS,
    }
)
"""Counters and histograms that are kept here; every other value is read at the scrape."""


class StatusSource(Protocol):
    def status(self) -> dict[str, Any]: ...
    def explain(self, engine: str) -> dict[str, Any] | None: ...


class Metrics:
    """
    Registry of ``sre_*``; the guard's ``Listener``.

    Args:
        extra: What others keep, asked at scrape time: metric → [(label values, value)].
    """

    def __init__(self, extra: Callable[[], Mapping[Metric, list[tuple[tuple[str, ...], float]]]] | None = None) -> None:
        self.registry = CollectorRegistry()
        self._extra = extra
        self.source: StatusSource | None = None
        self.snapshot: Snapshot | None = None
        self.last_tick_wall: float | None = None
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in own.OWN_METRICS.values():
            if metric not in HERE:
                continue
            if metric.kind is Kind.COUNTER:
                name = metric.name.removesuffix("_total")
                self._counters[metric.name] = Counter(name, metric.help, metric.labels, registry=self.registry)
            elif metric.kind is Kind.HISTOGRAM:
                self._histograms[metric.name] = Histogram(
                    metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=self.registry
                )
        self.registry.register(_Gauges(self))

    def count(self, metric: Metric, *labels: str, by: float = 1.0) -> None:
        """Add to a counter of ours."""
        counter = self._counters[metric.name]
        (counter.labels(*labels) if labels else counter).inc(by)

    # ---- Listener ---------------------------------------------------------------------------------------------------

    def ticked(
        self, seconds: float, snapshot: Snapshot, decision: Decision, finished: Sequence[FinishedRequest]
    ) -> None:
        self._histograms[own.GUARD_TICK_SECONDS.name].observe(seconds)
        self.count(own.GUARD_TICKS)
        self.snapshot, self.last_tick_wall = snapshot, snapshot.wall
        for request in finished:
            pool = request.model or ""
            if request.engine is None:
                # Refused before an engine was chosen. A model name is the client's word: only known pools are labels.
                known = pool if pool in decision.pools else ""
                self.count(own.REJECTED, known, request.detail)
                continue
            engine = snapshot.engines.get(request.engine)
            labels = (request.engine, engine.pool if engine else "")
            self.count(own.REQUESTS, *labels, request.outcome.value)
            if request.detail == CLIENT_ABORT:
                self.count(own.CLIENT_ABORTS, *labels)

    def canary(self, result: CanaryResult, pool: str) -> None:
        self.count(own.CANARIES, result.engine, pool, result.verdict.value)
        if result.first_token_seconds is not None:
            histogram = self._histograms[own.CANARY_FIRST_TOKEN_SECONDS.name]
            histogram.labels(result.engine, pool).observe(result.first_token_seconds)

    def acted(self, action: str, outcome: str) -> None:
        self.count(own.ACTIONS, action, outcome)

    def failed(self, boundary: str) -> None:
        self.count(own.GUARD_ERRORS, boundary)

    def opened(self, scope: str, target: str, reason: str, incident: bool) -> None:
        self.count(own.BREAKER_OPENINGS, scope, target, reason)
        if incident:
            self.count(own.INCIDENTS, reason)

    def extra(self) -> Mapping[Metric, list[tuple[tuple[str, ...], float]]]:
        return self._extra() if self._extra is not None else {}

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)


def _family(metric: Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)


def _extra_family(metric: Metric) -> GaugeMetricFamily | CounterMetricFamily:
    if metric.kind is Kind.COUNTER:
        return CounterMetricFamily(metric.name.removesuffix("_total"), metric.help, labels=metric.labels)
    return _family(metric)


def _one_of(family: GaugeMetricFamily, labels: tuple[str, ...], states: tuple[str, ...], state: str) -> None:
    """One series per state, 1 on the one that holds: no series ever vanishes or stays behind."""
    for name in states:
        family.add_metric((*labels, name), 1.0 if name == state else 0.0)


class _Gauges(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterator[Family]:
        return iter(())

    def collect(self) -> Iterator[Family]:
        build = _family(own.BUILD_INFO)
        build.add_metric((__version__,), 1.0)
        yield build
        source, snapshot = self._metrics.source, self._metrics.snapshot
        for metric, rows in self._metrics.extra().items():
            family = _extra_family(metric)
            for labels, value in rows:
                family.add_metric(labels, value)
            yield family
        if source is None:
            return
        status = source.status()
        yield from self._guard(status)
        yield from self._breakers(status)
        if snapshot is not None:
            yield from self._rules(source, snapshot)
            yield from self._engines(snapshot)
            yield from self._gpus(list(snapshot.gpus.values()))

    def _guard(self, status: dict[str, Any]) -> Iterator[Family]:
        for metric, value in (
            (own.GUARD_LAST_TICK_TIMESTAMP, self._metrics.last_tick_wall),
            (own.GUARD_PAUSED, 1.0 if status["paused"] else 0.0),
            (own.STATE_STORE_UP, 1.0 if status["store_up"] else 0.0),
            (own.GATEWAY_UP, 1.0 if status["gateway_reachable"] else 0.0),
            (own.INCIDENTS_OPEN, float(len(status["incidents"]))),
        ):
            if value is not None:
                family = _family(metric)
                family.add_metric((), value)
                yield family
        mode = _family(own.GUARD_MODE)
        _one_of(mode, (), ("auto", "observe", "suggest", "act"), status["mode"])
        yield mode

    def _breakers(self, status: dict[str, Any]) -> Iterator[Family]:
        state, admitted = _family(own.BREAKER_STATE), _family(own.BREAKER_ADMITTED_RATIO)
        for name, pool in status["pools"].items():
            _one_of(state, ("pool", name), ("closed", "open", "half_open"), pool["state"])
            admitted.add_metric(("pool", name), 1 - pool["reject_percent"] / 100)
        for name, engine in status["engines"].items():
            _one_of(state, ("engine", name), BREAKER_STATES, engine["state"])
        yield state
        yield admitted

    def _rules(self, source: StatusSource, snapshot: Snapshot) -> Iterator[Family]:
        state, armed, blind = _family(own.RULE_STATE), _family(own.RULE_ARMED), _family(own.RULE_BLIND)
        for name in snapshot.engines:
            for rule in (source.explain(name) or {}).get("rules", ()):
                base, _, gpu = rule["rule"].partition("/")
                target = f"{name}/{gpu}" if gpu else name
                _one_of(state, (base, target), RULE_STATES, rule["verdict"])
                armed.add_metric((base, target), 0.0 if rule["verdict"] == "disarmed" else 1.0)
                blind.add_metric((base, target), 1.0 if rule["blind"] else 0.0)
        yield state
        yield armed
        yield blind

    def _engines(self, snapshot: Snapshot) -> Iterator[Family]:
        process, in_flight, flat = (
            _family(own.ENGINE_STATE),
            _family(own.ENGINE_IN_FLIGHT),
            _family(own.SIGNAL_VALUE),
        )
        age, seen = _family(own.SIGNAL_AGE_SECONDS), _family(own.SIGNAL_SEEN)
        states = ("starting", "ready", "draining", "stopped", "crashed", "failed", "unknown")
        for name, engine in snapshot.engines.items():
            _one_of(process, (name, engine.pool), states, engine.process.value)
            if engine.in_flight.value is not None:
                in_flight.add_metric((name, engine.pool), engine.in_flight.value)
            readings = {"requests_in_flight": engine.in_flight, "steps_total": engine.steps_total, **engine.signals}
            for signal, reading in readings.items():
                if reading.value is not None:
                    flat.add_metric((signal, name), reading.value)
                if reading.seen is not Seen.NEVER:
                    age.add_metric((signal, name), max(0.0, snapshot.at - reading.sampled_at))
                _one_of(seen, (signal, name), tuple(s.value for s in Seen), reading.seen.value)
        yield from (process, in_flight, flat, age, seen)

    def _gpus(self, gpus: list[GpuSeen]) -> Iterator[Family]:
        fields: tuple[tuple[Metric, Callable[[GpuSeen], Reading]], ...] = (
            (own.GPU_MEMORY_USED, lambda g: g.memory_used_ratio),
            (own.GPU_TEMPERATURE, lambda g: g.temperature_celsius),
            (own.GPU_UTILIZATION, lambda g: g.utilization_ratio),
            (own.GPU_POWER, lambda g: g.power_watts),
        )
        for metric, read in fields:
            family = _family(metric)
            for gpu in gpus:
                value = read(gpu).value
                if value is not None:
                    labels = (str(gpu.index), gpu.uuid, gpu.source, "true" if gpu.injected else "false")
                    family.add_metric(labels, value)
            yield family


@contextlib.asynccontextmanager
async def serve_metrics(metrics: Metrics, host: str, port: int) -> AsyncIterator[None]:
    """
    Serve /metrics and /healthz on ``host``:``port``. /healthz answers 200 while the guard ticks, else 503 and why.

    Raises:
        OSError: The port cannot be had.
    """

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthy(_: web.Request) -> web.Response:
        age = None if metrics.source is None else metrics.source.status()["tick_age_seconds"]
        if age is None:
            return web.Response(status=503, text="the guard has not ticked yet\n")
        if age > HEALTHY_TICK_AGE_SECONDS:
            return web.Response(status=503, text=f"the guard's last tick is {age:.0f} s old; see its log\n")
        return web.Response(text="ok\n")

    app = web.Application()
    app.add_routes([web.get("/metrics", scrape), web.get("/healthz", healthy)])
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()
