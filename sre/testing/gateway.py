"""An in-memory gateway with the semantics of the real one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sre.actions.types import FinishedRequest, GatewayDesired, InFlightRequest, Outcome
from sre.clock import Clock
from sre.errors import Unreachable
from sre.settings.stack import StackSettings
from sre.signals.types import CanaryResult, CanaryVerdict, GatewaySeen, OutcomeCounts, Reading, Seen
from sre.stack.gateway_names import complete, open_gateway
from sre.stack.gateway_routes import BATCH_PATHS

NEUTRAL_DETAILS = frozenset(
    {"client_abort", "queue_full", "opaque", "client_stalled", "engine_free", "cut_by_gateway", "unjudged"}
)
COMPLETION_PATHS = frozenset({"/v1/completions", "/v1/chat/completions", *BATCH_PATHS})
"""Only their bytes need engine steps."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """
    What became of a request that arrived.

    Attributes:
        request_id: Set when an engine has it.
        status: 200 while it runs, else the status of the refusal.
        reason: Named reason of a refusal.
    """

    request_id: str | None
    status: int = 200
    reason: str | None = None
    engine: str | None = None


class FakeGateway:
    """
    Implements ``sre.actions.ports.Gateway``; tests let requests arrive and end by hand.

    Attributes:
        up: False: Envoy is down.
        log_seen: False: nothing of the access log can be read; it is noticed at once while engines have requests.
        canaries: What the next canaries of an engine will say, by engine name; default: success.
        applied: What is in force.
        writes: How many times ``apply`` changed something.
    """

    def __init__(self, stack: StackSettings, clock: Clock) -> None:
        self._stack = stack
        self._clock = clock
        self._ids = itertools.count(1)
        self._arrivals = itertools.count()
        self._open: dict[str, InFlightRequest] = {}
        self._born: dict[str, float] = {}
        self._finished: list[FinishedRequest] = []
        self._counts = {e.name: OutcomeCounts() for e in stack.engines}
        self._sent = {e.name: 0.0 for e in stack.engines}
        self._epoch = 1
        self.up = True
        self.log_seen = True
        self.canaries: dict[str, tuple[CanaryVerdict, str]] = {}
        self.probed: list[str] = []
        self.applied = complete(stack, open_gateway(stack))
        self.writes = 0

    # ---- What tests do ----------------------------------------------------------------------------------------------

    def arrive(self, pool: str, *, path: str = "/v1/completions", max_tokens: int | None = None) -> Arrival:
        """A client sends a streamed request for ``pool``. Of a share, every n-th is refused, evenly."""
        desired = next((p for p in self.applied.pools if p.pool == pool), None)
        if desired is None:
            return self._refuse(path, None, 404, "model_not_found")
        number = next(self._arrivals)
        if (number * desired.reject_percent) // 100 != ((number + 1) * desired.reject_percent) // 100:
            return self._refuse(path, pool, 503, desired.reason.value if desired.reason else "manual")
        limit = self.applied.max_concurrent_requests or self._stack.gateway.max_concurrent_requests
        if sum(1 for r in self._open.values() if r.model == pool) >= limit:
            return self._refuse(path, pool, 503, "concurrency_limit")
        wanted = {e.engine: e for e in self.applied.engines}
        candidates = [
            e.name for e in self._stack.pools[pool] if not wanted[e.name].draining and wanted[e.name].weight_percent > 0
        ]
        if not candidates:
            return self._refuse(path, pool, 503, "no_healthy_upstream")
        engine = min(candidates, key=lambda name: sum(1 for r in self._open.values() if r.engine == name))
        request_id = f"fake-{next(self._ids)}"
        self._open[request_id] = InFlightRequest(
            request_id, path, pool, engine, "127.0.0.1:1", self._clock.wall(), 0.0, max_tokens, True, 0
        )
        self._born[request_id] = self._clock.monotonic()
        return Arrival(request_id, engine=engine)

    def send(self, request_id: str, count: int, status: int = 200) -> None:
        """The engine answers ``count`` bytes of an answer with ``status``."""
        request = self._open[request_id]
        self._open[request_id] = replace(request, bytes_sent=request.bytes_sent + count)
        if request.engine is not None and status == 200 and request.path in COMPLETION_PATHS:
            self._sent[request.engine] += count

    def end(self, request_id: str, detail: str = "ok", status: int = 200) -> None:
        """The request ends; ``detail`` is a named reason as in ``FinishedRequest``."""
        request = self._open.pop(request_id)
        if detail == "ok":
            outcome = Outcome.SUCCESS
        elif detail in NEUTRAL_DETAILS or 400 <= status < 500:
            outcome = Outcome.NEUTRAL
        else:
            outcome = Outcome.FAILURE
        assert request.engine is not None
        old = self._counts[request.engine]
        failed, succeeded = outcome is Outcome.FAILURE, outcome is Outcome.SUCCESS
        self._counts[request.engine] = OutcomeCounts(
            success=old.success + succeeded,
            failure=old.failure + failed,
            neutral=old.neutral + (not failed and not succeeded),
            consecutive_failures=0 if succeeded else old.consecutive_failures + failed,
            client_aborts=old.client_aborts + (detail == "client_abort"),
        )
        age = self._clock.monotonic() - self._born.pop(request_id)
        self._finished.append(
            FinishedRequest(
                request_id, request.path, request.model, request.engine, request.client, request.started_wall, age,
                status, outcome, detail, 1, request.bytes_sent,
            )
        )  # fmt: skip

    def restart(self) -> None:
        """Envoy dies and comes back: open requests are cut, what was applied stays in force."""
        for request in list(self._open.values()):
            self._open.pop(request.request_id)
            age = self._clock.monotonic() - self._born.pop(request.request_id)
            self._finished.append(
                FinishedRequest(
                    request.request_id, request.path, request.model, request.engine, request.client,
                    request.started_wall, age, 200, Outcome.NEUTRAL, "cut_by_gateway", 1, request.bytes_sent,
                )
            )  # fmt: skip
        self._epoch += 1
        self.up = True

    def _refuse(self, path: str, pool: str | None, status: int, reason: str) -> Arrival:
        self._finished.append(
            FinishedRequest(
                f"fake-{next(self._ids)}", path, pool, None, "127.0.0.1:1", self._clock.wall(), 0.0, status,
                Outcome.NEUTRAL, reason, 0,
            )
        )  # fmt: skip
        return Arrival(None, status, reason)

    # ---- The port ---------------------------------------------------------------------------------------------------

    async def apply(self, desired: GatewayDesired) -> bool:
        desired = complete(self._stack, desired)
        changed = desired != self.applied
        self.applied = desired
        self.writes += changed
        self._reach()
        return changed

    async def observe(self) -> GatewaySeen:
        at = self._clock.monotonic()
        if not self.up:
            return GatewaySeen(reachable=False, sampled_at=at, requests_active=Reading.missing(at, Seen.UNREACHABLE))
        return GatewaySeen(True, at, str(self._epoch), 0, Reading.of(float(len(self._open)), at))

    async def in_flight_counts(self) -> Mapping[str, Reading]:
        self._reach()
        at = self._clock.monotonic()
        return {
            e.name: Reading.of(float(sum(1 for r in self._open.values() if r.engine == e.name)), at)
            for e in self._stack.engines
        }

    def poll_log(self) -> Sequence[FinishedRequest]:
        if not self.log_seen:
            return []
        finished, self._finished = self._finished, []
        return finished

    def in_flight(self) -> Sequence[InFlightRequest]:
        now = self._clock.monotonic()
        found = [replace(r, age_seconds=now - self._born[r.request_id]) for r in self._open.values()]
        return sorted(found, key=lambda r: (r.started_wall, r.request_id))

    def outcomes(self) -> Mapping[str, OutcomeCounts]:
        return {} if self._log_missing() else dict(self._counts)

    def sent_bytes(self) -> Mapping[str, Reading]:
        at = self._clock.monotonic()
        if self._log_missing():
            return {name: Reading.missing(at, Seen.UNREACHABLE) for name in self._sent}
        return {name: Reading.of(value, at) for name, value in self._sent.items()}

    async def probe(
        self, engine: str, generation: int, *, first_token_timeout_seconds: float, timeout_seconds: float
    ) -> CanaryResult:
        self.probed.append(engine)
        now = self._clock.monotonic()
        if not self.up:
            return CanaryResult(engine, generation, CanaryVerdict.FAILURE, "transport: down", now, now)
        verdict, detail = self.canaries.get(engine, (CanaryVerdict.SUCCESS, "ok"))
        first = 0.0 if verdict is CanaryVerdict.SUCCESS else None
        return CanaryResult(engine, generation, verdict, detail, now, now, first)

    def _log_missing(self) -> bool:
        return not self.log_seen and any(r.engine is not None for r in self._open.values())

    def _reach(self) -> None:
        if not self.up:
            raise Unreachable("gateway (fake)", "nobody listens; is the gateway running? see: sre status")
