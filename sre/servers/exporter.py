"""The guard's own /metrics and /healthz. Counters are kept here; gauges are read from the guard at each scrape."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from sre import __version__
from sre.actions.types import FinishedRequest, Outcome
from sre.breaker.decide import Decision
from sre.metrics import own
from sre.metrics.types import Kind, Metric
from sre.servers.exporter_gpu import gpu_families
from sre.servers.exporter_host import HostSource, host_families
from sre.servers.exposition import Row, family, filled, one_of, weighted
from sre.servers.gate import Gate
from sre.servers.listening import listening
from sre.servers.quiet import HttpLog
from sre.signals.batching import Batching, Weighted, observe
from sre.signals.types import CanaryResult, EngineSeen, ProcessIdentity, ProcessState, Seen, Snapshot

BREAKER_STATES = ("closed", "open", "half_open", "forced_open", "disabled")
RULE_STATES = ("ok", "pending", "firing", "recovering", "unknown", "disarmed")

CLIENT_ABORT = "client_abort"
"""``FinishedRequest.detail`` of a request that its client gave up."""

GUARD_MODES = ("auto", "observe", "suggest", "act")
GUARD_BOUNDARIES = ("tick", "store", "effect", "outbox", "chaos", "metrics")
"""What ``Listener.failed`` is told: there from the start, so that the first failure is an increase."""
PROCESS_STATES = tuple(state.value for state in ProcessState)

LONGEST_GAP_TICKS = 2.0
"""A batch size stands for the time since the sample before it, at most so many ticks: lateness is no outage."""

MOST_CONNECTIONS = 32
"""Scrapes and probes at once; more push out whoever has waited longest."""
HEADER_SECONDS = 10.0
HEALTHY_TICK_AGE_SECONDS = 10.0
"""A guard whose last tick is older is not healthy."""

HERE = frozenset(
    {
        own.ACTIONS,
        own.BREAKER_OPENINGS,
        own.CANARIES,
        own.CANARY_FIRST_TOKEN_SECONDS,
        own.CLIENT_ABORTS,
        own.ENGINE_RESTARTS,
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
        host: Where the host's counters come from; None shows none.
        tick_seconds: Time between two snapshots.
    """

    def __init__(
        self,
        extra: Callable[[], Mapping[Metric, list[Row]]] | None = None,
        host: HostSource | None = None,
        *,
        tick_seconds: float = 1.0,
    ) -> None:
        self.registry = CollectorRegistry()
        self._extra, self.host = extra, host
        self._longest_gap_seconds = LONGEST_GAP_TICKS * tick_seconds
        self.batching: dict[tuple[str, str], Batching] = {}
        """By (engine, pool)."""
        self._identities: dict[str, ProcessIdentity] = {}
        self.source: StatusSource | None = None
        self.snapshot: Snapshot | None = None
        self.last_tick_wall: float | None = None
        self._counts: dict[str, dict[tuple[str, ...], float]] = {}
        self._observed: dict[str, dict[tuple[str, ...], Weighted]] = {}
        # A series without labels is there from the start; of the others nobody knows the labels yet.
        self.keep(*sorted(HERE, key=lambda m: m.name))
        for boundary in GUARD_BOUNDARIES:
            self.count(own.GUARD_ERRORS, boundary, by=0.0)
        self.registry.register(_Families(self))

    def keep(self, *metrics: Metric) -> None:
        """From now on also count and observe these here."""
        for metric in metrics:
            if metric.kind is Kind.HISTOGRAM:
                self._observed[metric.name] = {} if metric.labels else {(): Weighted.empty(metric.buckets)}
            else:
                self._counts[metric.name] = {} if metric.labels else {(): 0.0}

    def count(self, metric: Metric, *labels: str, by: float = 1.0) -> None:
        """Add to a counter of ours; by 0 it is there from now on."""
        counts = self._counts[metric.name]
        counts[labels] = counts.get(labels, 0.0) + by

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """One observation of a histogram of ours."""
        observed = self._observed[metric.name]
        observed[labels] = observed.get(labels, Weighted.empty(metric.buckets)).add(value, 1.0)

    def kept(self) -> Iterator[Family]:
        """What is counted and observed here."""
        yield from (filled(own.OWN_METRICS[name], rows.items()) for name, rows in self._counts.items())
        yield from (weighted(own.OWN_METRICS[name], rows.items()) for name, rows in self._observed.items())

    # ---- Listener ---------------------------------------------------------------------------------------------------

    def ticked(
        self, seconds: float, snapshot: Snapshot, decision: Decision, finished: Sequence[FinishedRequest]
    ) -> None:
        self.observe(own.GUARD_TICK_SECONDS, seconds)
        self.count(own.GUARD_TICKS)
        self.snapshot, self.last_tick_wall = snapshot, snapshot.wall
        for seen in snapshot.engines.values():
            self._observe(seen)
        for name in decision.pools:
            for reason in own.REFUSED_FOR_OUR_REASONS:
                self.count(own.REJECTED, name, reason, by=0.0)
        for request in finished:
            pool = request.model or ""
            if request.engine is None:
                # Refused before an engine was chosen. A model name is the client's word: only known pools are labels.
                known = pool if pool in decision.pools else ""
                self.count(own.REJECTED, known, request.detail)
                continue
            engine = snapshot.engines.get(request.engine)
            labels = (request.engine, engine.pool if engine else self._pool_of(request.engine, pool, decision))
            self.count(own.REQUESTS, *labels, request.outcome.value)
            if request.detail == CLIENT_ABORT:
                self.count(own.CLIENT_ABORTS, *labels)

    def _pool_of(self, engine: str, model: str, decision: Decision) -> str:
        """Of an engine that is gone: the pool it was last seen in, else the model asked for if it is one, else ""."""
        seen = next((pool for name, pool in reversed(self.batching) if name == engine), "")
        return seen or (model if model in decision.pools else "")

    def _observe(self, engine: EngineSeen) -> None:
        key = (engine.name, engine.pool)
        if key not in self.batching:
            # A counter born with its first event has no increase: the first failure would be invisible.
            for outcome in Outcome:
                self.count(own.REQUESTS, *key, outcome.value, by=0.0)
            self.count(own.CLIENT_ABORTS, *key, by=0.0)
        self.batching[key] = observe(
            self.batching.get(key, Batching()),
            engine,
            size_bounds=own.ENGINE_BATCH_SIZE.buckets,
            wait_bounds=own.ENGINE_BATCH_FORMATION_SECONDS.buckets,
            longest_gap_seconds=self._longest_gap_seconds,
        )
        if engine.identity is not None:
            before = self._identities.get(engine.name, engine.identity)
            self._identities[engine.name] = engine.identity
            self.count(own.ENGINE_RESTARTS, *key, by=0.0 if before == engine.identity else 1.0)

    def canary(self, result: CanaryResult, pool: str) -> None:
        self.count(own.CANARIES, result.engine, pool, result.verdict.value)
        if result.first_token_seconds is not None:
            self.observe(own.CANARY_FIRST_TOKEN_SECONDS, result.first_token_seconds, result.engine, pool)

    def acted(self, action: str, outcome: str) -> None:
        self.count(own.ACTIONS, action, outcome)

    def failed(self, boundary: str) -> None:
        self.count(own.GUARD_ERRORS, boundary)

    def opened(self, scope: str, target: str, reason: str, incident: bool) -> None:
        self.count(own.BREAKER_OPENINGS, scope, target, reason)
        if incident:
            self.count(own.INCIDENTS, reason)

    def extra(self) -> Mapping[Metric, list[Row]]:
        return self._extra() if self._extra is not None else {}

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)


class _Families(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterator[Family]:
        return iter(())

    def collect(self) -> Iterator[Family]:
        yield filled(own.BUILD_INFO, [((__version__,), 1.0)])
        yield from self._metrics.kept()
        source, snapshot = self._metrics.source, self._metrics.snapshot
        yield from (filled(metric, rows) for metric, rows in self._metrics.extra().items())
        if self._metrics.host is not None:
            yield from host_families(self._metrics.host.view())
        if source is None:
            return
        status = source.status()
        yield from self._guard(status)
        yield from self._breakers(status)
        if snapshot is not None:
            yield from self._rules(source, snapshot)
            yield from self._engines(snapshot)
            yield from self._batches()
            yield from gpu_families(list(snapshot.gpus.values()))

    def _guard(self, status: dict[str, Any]) -> Iterator[Family]:
        for metric, value in (
            (own.GUARD_LAST_TICK_TIMESTAMP, self._metrics.last_tick_wall),
            (own.GUARD_PAUSED, 1.0 if status["paused"] else 0.0),
            (own.STATE_STORE_UP, 1.0 if status["store_up"] else 0.0),
            (own.GATEWAY_UP, 1.0 if status["gateway_reachable"] else 0.0),
            (own.INCIDENTS_OPEN, float(len(status["incidents"]))),
        ):
            if value is not None:
                yield filled(metric, [((), value)])
        mode = family(own.GUARD_MODE)
        one_of(mode, (), GUARD_MODES, status["mode"])
        yield mode

    def _breakers(self, status: dict[str, Any]) -> Iterator[Family]:
        state, admitted = family(own.BREAKER_STATE), family(own.BREAKER_ADMITTED_RATIO)
        for name, pool in status["pools"].items():
            one_of(state, ("pool", name), ("closed", "open", "half_open"), pool["state"])
            admitted.add_metric(("pool", name), 1 - pool["reject_percent"] / 100)
        weight, budget = family(own.ENGINE_WEIGHT_RATIO), family(own.ACTION_BUDGET)
        for name, engine in status["engines"].items():
            one_of(state, ("engine", name), BREAKER_STATES, engine["state"])
            if engine["weight_percent"] is not None:
                weight.add_metric((name, engine["pool"]), engine["weight_percent"] / 100)
            budget.add_metric(("restart", "engine", name), engine["restarts_left"])
        yield from (state, admitted, weight, budget)

    def _rules(self, source: StatusSource, snapshot: Snapshot) -> Iterator[Family]:
        state, armed, blind = family(own.RULE_STATE), family(own.RULE_ARMED), family(own.RULE_BLIND)
        step_age, hung = family(own.ENGINE_STEP_AGE_SECONDS), family(own.ENGINE_HUNG)
        limit = family(own.ENGINE_HANG_LIMIT_SECONDS)
        for name, engine in snapshot.engines.items():
            explained = source.explain(name) or {}
            if engine.steps_total.value is not None and explained:
                labels = (name, engine.pool)
                seconds = explained["no_step_for_seconds"] or 0.0
                step_age.add_metric(labels, seconds)
                limit.add_metric(labels, explained["hang_after_seconds"])
                # Not the breaker's verdict alone: it doubts where /metrics does not answer, and the canary takes time.
                hung.add_metric(labels, 1.0 if seconds > explained["hang_after_seconds"] > 0 else 0.0)
            for rule in explained.get("rules", ()):
                base, _, gpu = rule["rule"].partition("/")
                target = f"{name}/{gpu}" if gpu else name
                one_of(state, (base, target), RULE_STATES, rule["verdict"])
                armed.add_metric((base, target), 0.0 if rule["verdict"] == "disarmed" else 1.0)
                blind.add_metric((base, target), 1.0 if rule["blind"] else 0.0)
        yield from (state, armed, blind, step_age, hung, limit)

    def _engines(self, snapshot: Snapshot) -> Iterator[Family]:
        process, in_flight, flat = (
            family(own.ENGINE_STATE),
            family(own.ENGINE_IN_FLIGHT),
            family(own.SIGNAL_VALUE),
        )
        age, seen = family(own.SIGNAL_AGE_SECONDS), family(own.SIGNAL_SEEN)
        for name, engine in snapshot.engines.items():
            one_of(process, (name, engine.pool), PROCESS_STATES, engine.process.value)
            if engine.in_flight.value is not None:
                in_flight.add_metric((name, engine.pool), engine.in_flight.value)
            readings = {"requests_in_flight": engine.in_flight, "steps_total": engine.steps_total, **engine.signals}
            for signal, reading in readings.items():
                if reading.value is not None:
                    flat.add_metric((signal, name), reading.value)
                if reading.seen is not Seen.NEVER:
                    age.add_metric((signal, name), max(0.0, snapshot.at - reading.sampled_at))
                one_of(seen, (signal, name), tuple(s.value for s in Seen), reading.seen.value)
        yield from (process, in_flight, flat, age, seen)

    def _batches(self) -> Iterator[Family]:
        known = self._metrics.batching.items()
        yield weighted(own.ENGINE_BATCH_SIZE, [(key, b.sizes) for key, b in known if b.sizes is not None])
        yield weighted(own.ENGINE_BATCH_FORMATION_SECONDS, [(key, b.waits) for key, b in known if b.waits is not None])


@contextlib.asynccontextmanager
async def serve_metrics(metrics: Metrics, host: str, port: int) -> AsyncIterator[None]:
    """
    Serve /metrics and /healthz on ``host``:``port``. /healthz answers 200 while the guard ticks, else 503 and why.

    Raises:
        OSError: The port cannot be had.
    """

    async def scrape(_: web.Request) -> web.Response:
        if metrics.host is not None:
            await metrics.host.look()
        return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthy(_: web.Request) -> web.Response:
        age = None if metrics.source is None else metrics.source.status()["tick_age_seconds"]
        if age is None:
            return web.Response(status=503, text="the guard has not ticked yet\n")
        if age > HEALTHY_TICK_AGE_SECONDS:
            return web.Response(status=503, text=f"the guard's last tick is {age:.0f} s old; see its log\n")
        return web.Response(text="ok\n")

    @web.middleware
    async def answered(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        finally:
            gate.answered(request.transport)

    app = web.Application(middlewares=[answered])
    app.add_routes([web.get("/metrics", scrape), web.get("/healthz", healthy)])
    runner = web.AppRunner(app, access_log=None, handle_signals=False, logger=HttpLog("metrics"))
    await runner.setup()
    assert runner.server is not None
    # Connections that only wait would take the open files that store, gateway and deliveries need.
    gate = Gate(runner.server, most_connections=MOST_CONNECTIONS, header_seconds=HEADER_SECONDS, name="metrics")
    try:
        async with listening(gate, host, port):
            yield
    finally:
        await runner.cleanup()
        gate.close()
