"""``sre guard run``: the guard with real adapters."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from sre.actions.records import OutboxLoad
from sre.adapters.clock import SystemClock
from sre.adapters.engine_telemetry import EngineEndpoint, VllmTelemetry
from sre.adapters.envoy.gateway import EnvoyGateway
from sre.adapters.gpu.choose import gpu_reader
from sre.adapters.gpu.reader import ChildGpuReader
from sre.adapters.host_counters import HostCountersReader
from sre.adapters.incident_files import IncidentFiles
from sre.adapters.kernel_log import read_nvidia_lines
from sre.adapters.notifiers.process import AppriseSender
from sre.adapters.notifiers.templates import load_templates
from sre.adapters.processes import logs, proc
from sre.adapters.processes.lock import StackLock
from sre.adapters.store import GuardStore
from sre.adapters.supervisor_client import SupervisorClient
from sre.breaker.policy import policy_of
from sre.control.acknowledgements import Acknowledgements
from sre.control.alert_guard import GuardHands
from sre.control.blocking import BlockingCalls
from sre.control.delivery import Delivery, NoOutbox
from sre.control.desk import Desk
from sre.control.guard import Guard
from sre.control.notify_proof import Canaries
from sre.control.observe import EngineConfig, Observer
from sre.control.tasks import kept_up
from sre.errors import Refused, StateError
from sre.metrics import own
from sre.metrics.types import Metric
from sre.notify.escalation import told_of_acknowledgement
from sre.notify.policy import RANKS
from sre.notify.renderer import Renderer
from sre.servers.exporter import Metrics, serve_metrics
from sre.servers.exporter_gpu import answering
from sre.servers.guard_api import guard_app, serve_unix
from sre.settings.models import Root
from sre.settings.paths import StatePaths
from sre.settings.secrets import resolve_secret
from sre.settings.stack import StackSettings
from sre.stack.commands import reachable_host
from sre.wiring.channel_checks import log_channels
from sre.wiring.chaos_watch import ChaosWatch
from sre.wiring.guard_host import HostWatch
from sre.wiring.guard_store import OutboxWatch, StoreView, until_opens
from sre.wiring.guard_webhook import Webhook, make_webhook, message_links, serves_webhook
from sre.wiring.known_secrets import Redaction
from sre.wiring.stack import resolved_stack

log = logging.getLogger("sre.guard")

LOG_TAIL_LINES = 200
PORT_RETRY_SECONDS = 5.0
EVIDENCE_SECONDS = 5.0
HOST_SECONDS = 0.5
"""A look at the host's counters takes a millisecond; a scrape is not held longer than this by one that hangs."""
NOT_TAKEN = "not-taken.txt"


def engine_configs(root: Root) -> list[EngineConfig]:
    """What the guard watches."""
    return [EngineConfig(e.name, e.served_name, e.kind != "external", e.gpus) for e in root.stack.engines]


def endpoints(stack: StackSettings, environ: Mapping[str, str]) -> dict[str, EngineEndpoint]:
    """Where each engine's own interface is. Raises ConfigError when a key cannot be resolved."""
    found: dict[str, EngineEndpoint] = {}
    for index, engine in enumerate(stack.engines):
        key = engine.api_key and resolve_secret(engine.api_key, f"stack.engines[{index}].api_key", environ)
        url = engine.url or f"http://{_bracketed(reachable_host(engine.host))}:{engine.port}"
        found[engine.name] = EngineEndpoint(url, key)
    return found


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class ProcessEvidence:
    """
    What a restart would destroy: the last log lines, the processes as they stand, what the driver said.

    Never raises, and takes ``seconds`` at most: a restart waits for it. What could not be had is said instead.
    """

    def __init__(self, paths: StatePaths, *, seconds: float = EVIDENCE_SECONDS) -> None:
        self._paths = paths
        self._calls = BlockingCalls("evidence", seconds=seconds)

    async def __call__(self, engine: str) -> dict[str, str]:
        try:
            return await self._calls(lambda: self._collect(engine))
        except (StateError, OSError, ValueError) as error:
            return {NOT_TAKEN: str(error)}

    def _collect(self, engine: str) -> dict[str, str]:
        kernel = read_nvidia_lines()
        lines = logs.tail(self._paths.logs / f"{engine}.log", LOG_TAIL_LINES)
        return {
            f"{engine}.log": "\n".join(lines),
            "processes.txt": "\n".join(self._processes()),
            "kernel.log": "\n".join(kernel.lines) if kernel.problem is None else f"not seen: {kernel.problem}",
        }

    def _processes(self) -> list[str]:
        """State and command of every process that could be an engine's. T is stopped, D waits for a device."""
        rows = ["pid ppid state command"]
        for pid, stat in sorted(proc.process_table().items()):
            command = " ".join(proc.command_line(pid)) or stat.comm
            if "VLLM::" in command or "vllm" in command or "simulated_engine" in command:
                rows.append(f"{pid} {stat.parent} {stat.state} {command[:200]}")
        return rows


class Numbers:
    """What outbox, delivery and GPU reader count, for the exporter. Nothing here waits for a disk."""

    def __init__(self) -> None:
        self.outbox: OutboxWatch | None = None
        self.delivery: Delivery | None = None
        self.gpu: ChildGpuReader | None = None
        self.gateway: EnvoyGateway | None = None
        self.guard: Guard | None = None
        self.chaos: ChaosWatch | None = None
        self.webhook: Webhook | None = None
        self.canaries: Canaries | None = None

    def deaf(self) -> str:
        """Why the webhook takes nothing in; "" where it does, or none is wanted."""
        return "" if self.webhook is None else self.webhook.metrics.not_taken_in()

    def __call__(self) -> dict[Metric, list[tuple[tuple[str, ...], float]]]:
        rows: dict[Metric, list[tuple[tuple[str, ...], float]]] = {}
        loads = self.outbox.loads() if self.outbox is not None else None
        if loads is not None:
            quiet = {c: OutboxLoad(c, 0, 0, None) for c in (self.delivery.statistics if self.delivery else ())}
            found = quiet | {load.channel: load for load in loads}
            rows[own.OUTBOX_MESSAGES] = [
                ((channel, state), float(count))
                for channel, waits in found.items()
                for state, count in (
                    ("pending", waits.pending),
                    ("dead", waits.dead - waits.perhaps_told),
                    ("perhaps_told", waits.perhaps_told),
                )
            ]
            rows[own.OUTBOX_OLDEST_SECONDS] = [((c,), waits.oldest_seconds or 0.0) for c, waits in found.items()]
        waiting = self.outbox.unacknowledged() if self.outbox is not None else None
        if waiting is not None:
            rows[own.INCIDENTS_UNACKNOWLEDGED] = [((name,), float(waiting.get(name, 0))) for name in RANKS]
        if self.delivery is not None:
            rows[own.DELIVERIES] = [
                ((channel, outcome), float(count))
                for channel, numbers in self.delivery.statistics.items()
                for outcome, count in numbers.outcomes.items()
            ]
        if self.gpu is not None:
            rows[own.GPU_READER_UP] = [((), 1.0 if self.gpu.problem is None else 0.0)]
            rows[own.GPU_READER_REPLACED] = [((), float(self.gpu.replaced))]
            rows[own.GPU_READER_STUCK] = [((), float(self.gpu.stuck))]
            snapshot = self.guard.snapshot if self.guard is not None else None
            count = answering(snapshot.gpus.values()) if snapshot is not None else None
            if count is not None and self.gpu.problem is None:
                rows[own.GPUS] = [((), float(count))]
        if self.chaos is not None:
            rows[own.FAULTS_ACTIVE] = [((fault,), float(count)) for fault, count in self.chaos.active.items()]
        if self.webhook is not None:
            rows |= self.webhook.metrics.rows()
        if self.canaries is not None:
            rows[own.CANARY_ALERT] = [((identifier,), 1.0) for identifier in self.canaries.active()]
        if self.gateway is not None:
            rows[own.GATEWAY_LOG_ODD_LINES] = [((), float(self.gateway.registry.odd_lines))]
        if self.guard is not None and self.guard.snapshot is not None and self.guard.snapshot.gateway is not None:
            rows[own.GATEWAY_UPDATE_REJECTIONS] = [((), float(self.guard.snapshot.gateway.update_rejections))]
        return rows


async def run_guard(root: Root, paths: StatePaths, environ: Mapping[str, str], record: Path | None) -> None:
    """
    Guard the stack until SIGTERM or SIGINT.

    Raises:
        Refused: Another guard has this stack.
        StateError: The stack was never started, so there is nothing to guard.
    """
    paths.create()
    lock = StackLock(paths.run / "guard.lock")
    if not lock.acquire():
        pid = lock.holder()
        if serves_webhook(pid):
            raise Refused(
                f"guard: sre webhook serve (pid {pid}) has {paths.root}; stop it and set webhook.enabled: true"
            )
        raise Refused(f"guard: already running for {paths.root} as pid {pid}; see sre guard status")
    try:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        while not stop.is_set():
            await _guard(root, paths, environ, record, stop)
    finally:
        lock.release()


async def _guard(
    root: Root, paths: StatePaths, environ: Mapping[str, str], record: Path | None, stop: asyncio.Event
) -> None:
    """Guard until ``stop`` is set; where the store could not be opened, only until it can be."""
    leave = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        guard, desk, delivery, metrics, numbers = await _build(root, paths, environ, record, stack)
        sender = asyncio.create_task(delivery.run())
        clock = SystemClock()
        chaos = ChaosWatch(paths.chaos, guard, clock)
        numbers.chaos = chaos

        def keep_up(what: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
            failed = functools.partial(metrics.failed, what)
            return asyncio.create_task(kept_up(work, f"guard: {what}", clock, failed=failed))

        watches = [keep_up("chaos", chaos.run), asyncio.create_task(_forward(stop, leave))]
        if numbers.outbox is not None:
            watches.append(keep_up("outbox", numbers.outbox.run))
        else:
            watches.append(keep_up("store", lambda: until_opens(paths.guard_db, lambda: not delivery.unstored, leave)))
        if numbers.webhook is not None:
            watches.append(keep_up("webhook", functools.partial(numbers.webhook.run, environ)))
        await stack.enter_async_context(serve_unix(guard_app(desk), paths.guard_socket))
        exporter = keep_up("metrics", lambda: _keep_exporting(metrics, root, leave))
        try:
            await guard.run(leave)
        finally:
            await delivery.stop()
            await sender
            for task in (exporter, *watches):
                task.cancel()
            await asyncio.gather(exporter, *watches, return_exceptions=True)


async def _forward(stop: asyncio.Event, leave: asyncio.Event) -> None:
    await stop.wait()
    leave.set()


async def _keep_exporting(metrics: Metrics, root: Root, stop: asyncio.Event) -> None:
    """Serve /metrics; a port that is taken costs the metrics, not the guard."""
    told = False
    while True:
        try:
            async with serve_metrics(metrics, root.guard.metrics_host, root.guard.metrics_port):
                await stop.wait()
                return
        except OSError as error:
            if not told:
                told = True
                log.error(
                    "guard.metrics_port %d: %s; the guard works on without /metrics and tries again",
                    root.guard.metrics_port,
                    error.strerror or error,
                )
            await asyncio.sleep(PORT_RETRY_SECONDS)


async def _build(
    root: Root, paths: StatePaths, environ: Mapping[str, str], record: Path | None, stack: contextlib.AsyncExitStack
) -> tuple[Guard, Desk, Delivery, Metrics, Numbers]:
    clock, boot_id, policy = SystemClock(), proc.boot_id(), policy_of(root)
    resolved = resolved_stack(root, paths)
    where = endpoints(resolved, environ)
    store, problem = await _open_store(paths, clock, boot_id)
    gateway = EnvoyGateway(paths, resolved, clock, lambda name: where[name].api_key)
    stack.push_async_callback(gateway.close)
    telemetry = VllmTelemetry(where, clock)
    stack.push_async_callback(telemetry.close)
    gpu = gpu_reader(
        root.guard, resolved, overlay=paths.gpu_overlay, sim_folder=paths.sim_gpu, clock=clock, environ=environ
    )
    stack.push_async_callback(gpu.close)
    supervisor = SupervisorClient(paths.supervisor_socket)
    if store is not None:
        stack.callback(store.close)
    # Without a store pages still go out, from memory.
    outbox = store if store is not None else NoOutbox()
    render = Renderer(root.notify, load_templates(root.notify), message_links(root, environ))
    sender = AppriseSender(environ)
    if root.notify.channels:
        await stack.enter_async_context(sender)
        looking = asyncio.create_task(log_channels(root, environ, sender))
        stack.callback(looking.cancel)
    numbers = Numbers()
    metrics = Metrics(numbers, host_watch(clock), tick_seconds=root.guard.tick_seconds)
    delivery = Delivery(
        outbox, root.notify, clock, sender, rng=random.Random(), render=render,
        count_failure=functools.partial(metrics.failed, "outbox"),
    )  # fmt: skip
    hide = Redaction(root, environ, clock)
    guard = Guard(
        observer=Observer(engine_configs(root), gateway, telemetry, supervisor, gpu, clock),
        gateway=gateway,
        supervisor=supervisor,
        store=store,
        store_problem=problem,
        incidents=IncidentFiles(paths.incidents, redact=hide),
        policy=policy,
        clock=clock,
        boot_id=boot_id,
        evidence=ProcessEvidence(paths),
        listener=metrics,
        tick_seconds=root.guard.tick_seconds,
        record=await _recorder(record, stack),
        page_unstored=delivery.send_unstored,
        wake_delivery=delivery.wake,
    )
    numbers.delivery, numbers.gateway, numbers.guard = delivery, gateway, guard
    numbers.gpu = gpu if isinstance(gpu, ChildGpuReader) else None
    numbers.canaries = canaries = Canaries(clock)
    acknowledge = None
    desk = Desk(guard, policy, clock, deaf=numbers.deaf)
    if store is not None:
        view = StoreView(paths.guard_db, clock=clock, boot_id=boot_id)
        # One pair of hands each: a journal that is slow to read must not make the metrics old.
        numbers.outbox = OutboxWatch(
            view.outbox_load, clock, BlockingCalls(f"guard state {paths.guard_db}"), view.unacknowledged
        )
        told = told_of_acknowledgement(root.notify.channels)
        acknowledge = Acknowledgements(store, told, wake=delivery.wake)
        desk = Desk(
            guard,
            policy,
            clock,
            view.journal,
            acknowledge=acknowledge,
            canaries=canaries if root.webhook.enabled else None,
            deaf=numbers.deaf,
        )
    if root.webhook.enabled:
        addresses = {name: urlsplit(one.url).netloc for name, one in where.items()}
        numbers.webhook = make_webhook(
            root,
            store,
            GuardHands(guard, engine_configs(root), addresses, policy),
            clock,
            metrics,
            incidents=paths.incidents,
            redact=hide,
            canaries=canaries,
            wake_delivery=delivery.wake,
            send_unstored=delivery.send_unstored,
            problem=problem or "",
            acknowledgements=acknowledge,
        )
    metrics.source = desk
    return guard, desk, delivery, metrics, numbers


def host_watch(clock: SystemClock) -> HostWatch:
    """This machine's counters, looked at with each scrape."""
    calls = BlockingCalls("host counters (/proc, /sys)", seconds=HOST_SECONDS)
    return HostWatch(HostCountersReader(clock.monotonic).read, clock, calls)


async def _open_store(paths: StatePaths, clock: SystemClock, boot_id: str) -> tuple[GuardStore | None, str | None]:
    """A store that cannot be trusted costs the guard its hands, not its eyes."""
    try:
        return await asyncio.to_thread(lambda: GuardStore.open(paths.guard_db, clock=clock, boot_id=boot_id)), None
    except StateError as error:
        log.error("%s; the guard watches and does not act, traffic goes on", error)
        return None, f"{error}; the guard watches and does not act"


async def _recorder(record: Path | None, stack: contextlib.AsyncExitStack) -> Callable[[str], None] | None:
    """Append one line per tick to ``record``, for ``sre breaker replay``."""
    if record is None:
        return None
    try:
        file = stack.enter_context(record.open("a", encoding="utf-8"))
    except OSError as error:
        raise StateError(f"--record {record}: {error.strerror}; give a file that can be written") from error

    def write(line: str) -> None:
        try:
            file.write(line + "\n")
            file.flush()
        except OSError as error:
            log.error("--record %s: %s", record, error.strerror)

    return write


def configure_logging(debug: bool) -> None:
    """One line per record on stderr; the supervisor keeps and rotates it."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if debug else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
