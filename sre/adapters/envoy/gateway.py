"""The Gateway port on Envoy: desired state by watched files, facts by admin socket and access log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sre.actions.types import FinishedRequest, GatewayDesired, InFlightRequest
from sre.adapters.envoy.addresses import AddressBook
from sre.adapters.envoy.admin import AdminClient, rename_log, socket_name
from sre.adapters.envoy.files import (
    DESIRED,
    desired_from_document,
    desired_to_document,
    read_document,
    write_document,
)
from sre.adapters.envoy.probe import probe
from sre.adapters.envoy.registry import NO_COUNTS, RequestRegistry
from sre.adapters.envoy.tail import LogTail
from sre.adapters.envoy.trust import FilterTrust, LogWatch
from sre.clock import Clock
from sre.errors import DependencyError, Rejected, StateError, Unreachable
from sre.settings.paths import StatePaths
from sre.settings.stack import StackSettings
from sre.signals.types import CanaryResult, CanaryVerdict, GatewaySeen, OutcomeCounts, Reading, Seen
from sre.stack.gateway import render
from sre.stack.gateway_names import (
    ACCESS_LOG,
    RDS_PATH,
    RTDS_PATH,
    Document,
    GatewayPlan,
    complete,
    pool_cluster,
    runtime_layer,
)

CONFIRM_SECONDS = 2.0
"""How long a change may take to show; measured 1–20 ms."""
REASON_SECONDS = 0.5
"""How long a refusal waits for the reason it is to give."""
REWRITE_SECONDS = 0.25
"""A file that Envoy did not notice by then is written once more."""
POLL_BYTES = 1 << 20
POLL_READS = 4
"""A poll reads the access log so many times at the most: 4 MiB, about 20,000 lines; what is left waits for the next."""
HISTORY_BYTES = 2 << 20
"""Of the access log read at start to learn which requests are open."""
NUMBERS = (
    r"^(http\.gw\.(downstream_rq_(active|total|[2345]xx)|downstream_cx_active|lua\.errors)|server\.memory_allocated"
    r"|cluster\.pool-[^.]+\.(upstream_rq_active_overflow|upstream_rq_retry|outlier_detection\.ejections_active))$"
)
UPDATE_STATS = r"^(runtime|listener_manager\.lds|cluster_manager\.cds|http\.gw\.rds\.gw_routes|cluster\.[^.]+)\.(version_text|update_rejected|update_failure)$"  # noqa: E501


class EnvoyGateway:
    """
    Steers the Envoy that runs in ``paths.gateway``; ``prepare`` must have written its files.

    Args:
        bearer: Returns the token that an engine wants, by engine name, or None.
    """

    def __init__(
        self,
        paths: StatePaths,
        stack: StackSettings,
        clock: Clock,
        bearer: Callable[[str], str | None] = lambda _engine: None,
    ) -> None:
        self._paths = paths
        self._stack = stack
        self._clock = clock
        self._bearer = bearer
        self._admin = AdminClient(paths.admin_socket)
        self._book = AddressBook(paths.gateway, stack, clock)
        self._plan: GatewayPlan | None = None
        self._rendered: Mapping[str, Document] = {}
        self._written: dict[str, Document] = {}
        self._confirmed_epoch: str | None = None
        self._drifted = False
        self._lock = asyncio.Lock()
        self._log = LogTail(self.access_log, HISTORY_BYTES)
        self._log_epoch: str | None = None
        self._history = True
        self._filter = FilterTrust()
        self._watch = LogWatch()
        self.registry = RequestRegistry({}, {pool_cluster(p): p for p in stack.pools})
        self._load_addresses()

    @property
    def access_log(self) -> Path:
        return self._paths.admin_socket.parent / ACCESS_LOG

    async def close(self) -> None:
        """Release sockets and files."""
        self._log.close()
        await self._book.close()
        await self._admin.close()

    def _load_addresses(self) -> None:
        if self._book.reload():
            # Old addresses stay known: their last lines may still come.
            self.registry.engines |= {a.key: n for n, a in self._book.current.items()}

    async def apply(self, desired: GatewayDesired) -> bool:
        """
        See ``sre.actions.ports.Gateway``. Files are written first, so that an Envoy that is down comes up as desired.

        Raises:
            Unreachable: Envoy is down; the files are in place.
            Rejected: Envoy refused a file; the old state is in force.
            StateError: A file cannot be written.
        """
        async with self._lock:
            self._load_addresses()
            desired = self._keep_reasons(complete(self._stack, desired))
            documents = self._documents(GatewayPlan(self._stack, self._book.current, desired))
            first = {RDS_PATH: documents[RDS_PATH]}  # the reason stands before the first refusal
            changed = self._write({DESIRED: desired_to_document(desired)} | first)
            problem = None
            if changed:
                problem = await self._refused(self._confirm_versions(first, REASON_SECONDS))
            changed |= self._write({RTDS_PATH: documents[RTDS_PATH]})
            layer = {key: str(value) for key, value in runtime_layer(self._stack, desired).items()}
            try:
                changed |= await self._confirm_runtime(layer, documents[RTDS_PATH])
            finally:
                moved = self._write(documents)
            if problem is not None:
                raise problem
            epoch = self._admin.peer()
            if moved or self._drifted or epoch != self._confirmed_epoch:
                await self._confirm_versions(documents, CONFIRM_SECONDS)
                self._confirmed_epoch, self._drifted = epoch, False
            return changed or moved

    def _keep_reasons(self, desired: GatewayDesired) -> GatewayDesired:
        """A pool that admits everything keeps the reason it last had: no answer shows it, and no route is rewritten."""
        last = desired_from_document(self._written.get(DESIRED) or read_document(self._paths.gateway / DESIRED))
        known = {} if last is None else {p.pool: p for p in last.pools}
        return replace(
            desired,
            pools=tuple(
                replace(p, reason=known[p.pool].reason, retry_after_seconds=known[p.pool].retry_after_seconds)
                if p.reject_percent == 0 and p.pool in known
                else p
                for p in desired.pools
            ),
        )

    @staticmethod
    async def _refused(confirmation: Awaitable[None]) -> DependencyError | None:
        """A refused reason must not keep the refusal itself from taking effect."""
        try:
            await confirmation
        except DependencyError as problem:
            return problem
        return None

    def _documents(self, plan: GatewayPlan) -> Mapping[str, Document]:
        if self._plan != plan:
            self._plan, self._rendered = plan, render(plan).dynamic
        return self._rendered

    def _write(self, documents: Mapping[str, Document]) -> bool:
        """Write what differs from what is on disk; return whether anything did."""
        changed = False
        for name, document in documents.items():
            path = self._paths.gateway / name
            if name not in self._written:
                on_disk = read_document(path)
                if on_disk is not None:
                    self._written[name] = on_disk
            if self._written.get(name) != document:
                write_document(path, document)
                self._written[name] = document
                changed = True
        return changed

    async def _confirm_runtime(self, layer: Mapping[str, str], document: Document) -> bool:
        """Return once Envoy runs with ``layer``; True if it took more than looking."""
        deadline = self._clock.monotonic() + CONFIRM_SECONDS
        rewrite_at = self._clock.monotonic() + REWRITE_SECONDS
        delay, looked = 0.001, 0
        while True:
            entries = await self._admin.runtime()
            wrong = [key for key, value in layer.items() if entries.get(key) != value]
            if not wrong:
                return looked > 0
            looked += 1
            now = self._clock.monotonic()
            if now >= deadline:
                raise Rejected(
                    self._admin.system, f"runtime key {wrong[0]} did not take its value; see the gateway's log"
                )
            if now >= rewrite_at:
                write_document(self._paths.gateway / RTDS_PATH, document)
                await self._admin.clear_overrides(wrong)
                rewrite_at = deadline
            await self._clock.sleep(delay)
            delay = min(delay * 2, 0.02)

    async def _confirm_versions(self, documents: Mapping[str, Document], within_seconds: float) -> None:
        wanted = {_version_stat(path): str(document["version_info"]) for path, document in documents.items()}
        deadline = self._clock.monotonic() + within_seconds
        rewrite_at = self._clock.monotonic() + REWRITE_SECONDS
        delay = 0.001
        while True:
            stats = await self._admin.stats(UPDATE_STATS)
            wrong = [name for name, version in wanted.items() if stats.get(name) != version]
            if not wrong:
                return
            now = self._clock.monotonic()
            if now >= deadline:
                raise Rejected(self._admin.system, f"{wrong[0]} is not the one we wrote; see the gateway's log")
            if now >= rewrite_at:
                for path, document in documents.items():
                    if _version_stat(path) in wrong:
                        write_document(self._paths.gateway / path, document)
                rewrite_at = deadline
            await self._clock.sleep(delay)
            delay = min(delay * 2, 0.05)

    async def observe(self) -> GatewaySeen:
        """See the port. Also rotates the access log when it has grown."""
        at = self._clock.monotonic()
        try:
            epoch = self._admin.peer()
            stats = await self._admin.stats(rf"{UPDATE_STATS}|^http\.gw\.(downstream_rq_active|lua\.errors)$")
        except DependencyError:
            return GatewaySeen(reachable=False, sampled_at=at, requests_active=Reading.missing(at, Seen.UNREACHABLE))
        rejected = sum(int(v) for k, v in stats.items() if k.endswith((".update_rejected", ".update_failure")))
        versions = {_version_stat(p): str(d["version_info"]) for p, d in self._written.items() if "version_info" in d}
        self._drifted |= any(stats.get(name) != version for name, version in versions.items())
        self.registry.filter_works = self._filter.works(epoch, int(stats.get("http.gw.lua.errors", "0")))
        await self._rotate()
        self._book.look_up_when_due()
        active = stats.get("http.gw.downstream_rq_active")
        return GatewaySeen(
            reachable=True,
            sampled_at=at,
            epoch=epoch,
            update_rejections=rejected,
            requests_active=Reading.of(None if active is None else float(active), at),
        )

    async def _rotate(self) -> None:
        """Rotate the access log when it has grown. What fails is tried again with the next tick."""
        try:
            if self.access_log.stat().st_size <= self._stack.logs.max_bytes:
                return
            rename_log(self.access_log, self._stack.logs.backups)
        except FileNotFoundError:
            pass  # renamed, but Envoy was not told yet
        except OSError:
            return
        with contextlib.suppress(DependencyError):
            await self._admin.request("POST", "/reopen_logs")

    async def in_flight_counts(self) -> Mapping[str, Reading]:
        at = self._clock.monotonic()
        hosts = await self._admin.hosts()
        names = {a.key: n for n, a in self._book.current.items()}
        counts = {e.name: Reading.missing(at) for e in self._stack.engines}
        for pool in self._stack.pools:
            for host in hosts.get(pool_cluster(pool), []):
                engine = names.get(socket_name(host))
                active = [s.get("value", 0) for s in host.get("stats", []) if s.get("name") == "rq_active"]
                if engine is not None and active:
                    counts[engine] = Reading.of(float(active[0]), at)
        self._watch.counted(sum(reading.value or 0 for reading in counts.values()), at)
        return counts

    def poll_log(self) -> Sequence[FinishedRequest]:
        now = self._clock.monotonic()
        self._load_addresses()
        try:
            epoch: str | None = self._admin.peer()
        except Unreachable:
            epoch = None
        finished = []
        gained, odd_before = 0, self.registry.odd_lines
        for _ in range(POLL_READS):
            lines = self._log.read(POLL_BYTES)
            gained += len(lines)
            for line in lines:
                ended = self.registry.feed(line, now, history=self._history)
                if ended is not None:
                    finished.append(ended)
            if not lines:
                break
        self._history = False
        self._watch.read(gained - (self.registry.odd_lines - odd_before), now)
        if epoch is not None and epoch != self._log_epoch:
            if self._log_epoch is not None:
                self.registry.suspect_all()
                self._watch.restarted()
            self._log_epoch = epoch
        finished.extend(self.registry.expire(now))
        return finished

    def in_flight(self) -> Sequence[InFlightRequest]:
        return self.registry.in_flight(self._clock.monotonic())

    def outcomes(self) -> Mapping[str, OutcomeCounts]:
        if not self._watch.seen:
            return {}
        return {e.name: NO_COUNTS for e in self._stack.engines} | self.registry.outcomes()

    def sent_bytes(self) -> Mapping[str, Reading]:
        now = self._clock.monotonic()
        if not self._watch.seen:
            return {e.name: Reading.missing(now, Seen.UNREACHABLE) for e in self._stack.engines}
        return {e.name: Reading.of(0.0, now) for e in self._stack.engines} | self.registry.sent_bytes(now)

    async def probe(
        self, engine: str, generation: int, *, first_token_timeout_seconds: float, timeout_seconds: float
    ) -> CanaryResult:
        models = {e.name: e.served_name for e in self._stack.engines}
        try:
            token = self._bearer(engine)
        except (StateError, OSError) as error:
            now = self._clock.monotonic()
            return CanaryResult(engine, generation, CanaryVerdict.NEUTRAL, f"no token: {error}", now, now)
        return await probe(
            self._paths.probe_socket,
            engine=engine,
            model=models.get(engine, ""),
            generation=generation,
            token=token,
            first_token_timeout_seconds=first_token_timeout_seconds,
            timeout_seconds=timeout_seconds,
            clock=self._clock,
        )

    async def requests_active(self) -> int:
        """Return how many requests the public listener has open."""
        stats = await self._admin.stats(r"^http\.gw\.downstream_rq_active$")
        return int(stats.get("http.gw.downstream_rq_active", "0"))

    async def stats(self) -> Mapping[str, float]:
        """
        Return a few numbers of Envoy's own, for metrics, by Envoy's name: requests, refusals, ejections, memory.

        Raises:
            Unreachable: Envoy is down.
        """
        found = await self._admin.stats(NUMBERS)
        return {name: float(value) for name, value in found.items() if value.isdigit()}

    async def drain_listeners(self) -> None:
        """Ask clients to go elsewhere (``connection: close``); serving goes on until Envoy is stopped."""
        await self._admin.request("POST", "/drain_listeners?graceful&skip_exit")


def _version_stat(path: str) -> str:
    if path == RTDS_PATH:
        return "runtime.version_text"
    if path == RDS_PATH:
        return "http.gw.rds.gw_routes.version_text"
    return f"cluster.{path.removeprefix('dyn/eds_').removesuffix('.json')}.version_text"
