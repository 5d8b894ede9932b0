"""The stack as ``sre up`` runs it: what is started, and the supervisor with its adapters."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlencode

from sre.adapters.clock import SystemClock
from sre.adapters.engines import external, simulated, vllm
from sre.adapters.engines.health import HttpReadiness
from sre.adapters.envoy import find_envoy, prepare
from sre.adapters.envoy.admin import AdminClient
from sre.adapters.processes import proc
from sre.adapters.processes.files import LedgerFile, known_ports, stack_id
from sre.adapters.processes.host import ProcessHost
from sre.adapters.processes.logs import rotate, tail
from sre.control.supervision import Say
from sre.control.supervisor import StackFacts, Supervisor
from sre.errors import DependencyError, StateError
from sre.settings.models import Root
from sre.settings.paths import StatePaths
from sre.settings.stack import EngineSettings, LogSettings, RestartSettings, StackSettings
from sre.signals.types import ProcessIdentity
from sre.stack.commands import reachable_host
from sre.stack.gateway import envoy_argv
from sre.stack.gateway_names import reject_key
from sre.stack.ledger import Ledger
from sre.stack.processes import (
    GATEWAY_NAME,
    GUARD_NAME,
    Command,
    ProcessSpec,
    Readiness,
    Role,
)
from sre.wiring.invocation import SUPERVISOR_LOG, Invocation

GATEWAY_READY_SECONDS = 30.0
GATEWAY_STOP_SECONDS = 5.0
ADMIN_SECONDS = 1.0
"""For an answer of Envoy's admin socket: half of what a client of the supervisor waits."""

GUARD_READY_SECONDS = 30.0
GUARD_STOP_SECONDS = 10.0


# What runs.


def process_specs(root: Root, stack: StackSettings, paths: StatePaths, call: Invocation) -> list[ProcessSpec]:
    """
    Return every process of ``stack`` (engines with their ports), the gateway first.

    Raises:
        BinaryNotFound: There is no Envoy.
    """
    specs = [gateway_spec(stack, paths)]
    folder = None if call.config is None else call.config.parent
    specs += [engine_spec(engine, paths, folder) for engine in stack.engines]
    if call.with_guard:
        specs.append(guard_spec(root, stack, paths, call))
    return specs


def engine_spec(engine: EngineSettings, paths: StatePaths, folder: Path | None) -> ProcessSpec:
    """Return the process of one engine; ``folder`` is that of sre.yaml."""
    if engine.kind == "vllm":
        return vllm.process(engine, paths, os.environ, folder)
    if engine.kind == "sim":
        return simulated.process(engine, paths)
    return external.process(engine)


def gateway_spec(stack: StackSettings, paths: StatePaths) -> ProcessSpec:
    """
    Return the gateway's process. Of its documents only those that Envoy cannot change while it runs count for its
    fingerprint: ``prepare`` must have written them.

    Raises:
        BinaryNotFound: There is no Envoy.
    """
    command = Command(tuple(envoy_argv(find_envoy(stack))), cwd=str(paths.gateway))
    try:
        bootstrap = hashlib.sha256((paths.gateway / "bootstrap.json").read_bytes()).hexdigest()
    except OSError:
        bootstrap = "not written yet"
    gateway = stack.gateway
    return ProcessSpec(
        name=GATEWAY_NAME,
        role=Role.GATEWAY,
        kind="envoy",
        command=command,
        readiness=Readiness("/ready", unix_socket=str(paths.admin_socket)),
        fingerprint=command.fingerprint(bootstrap, f"{gateway.host}:{gateway.port}"),
        ready_timeout_seconds=GATEWAY_READY_SECONDS,
        stop_timeout_seconds=GATEWAY_STOP_SECONDS,
        log_path=str(paths.logs / f"{GATEWAY_NAME}.log"),
        host=gateway.host,
        port=gateway.port,
    )


def guard_spec(root: Root, stack: StackSettings, paths: StatePaths, call: Invocation) -> ProcessSpec:
    """Return the guard's process; other settings, other engine ports or another version of ``sre`` make it another
    one: it must not go on reading a port that is somebody else's by now."""
    command = Command(tuple(call.argv("guard", "run")))
    return ProcessSpec(
        name=GUARD_NAME,
        role=Role.GUARD,
        kind="guard",
        command=command,
        readiness=Readiness("/status", unix_socket=str(paths.guard_socket)),
        fingerprint=command.fingerprint(root.model_dump_json(), stack.model_dump_json(), version("sre")),
        ready_timeout_seconds=GUARD_READY_SECONDS,
        stop_timeout_seconds=GUARD_STOP_SECONDS,
        log_path=str(paths.logs / f"{GUARD_NAME}.log"),
        host=root.guard.metrics_host,
        port=root.guard.metrics_port,
    )


def managed_addresses(stack: StackSettings) -> dict[str, tuple[str, int]]:
    """(host, port) by name of the engines that we run, as the gateway is to reach them."""
    specs = {engine.name: engine for engine in stack.engines if engine.kind != "external"}
    return {
        name: (reachable_host(engine.host), engine.port) for name, engine in specs.items() if engine.port is not None
    }


def resolved_stack(root: Root, paths: StatePaths) -> StackSettings:
    """
    Return the stack with the ports that are in use; for whoever talks to engines beside the supervisor.

    Raises:
        StateError: An engine has no port yet: the stack was never started.
    """
    stack = known_ports(root.stack, paths.ports)
    if stack is None:
        raise StateError(f"{paths.ports}: no ports chosen yet for this stack; start it with sre up")
    return stack


def our_pids(host: ProcessHost, ledger: Ledger | None) -> frozenset[int]:
    """Return the pids of everything of this stack that still runs, by marks and by ledger."""
    pids = {found.identity.pid for found in host.marked()}
    if ledger is not None and ledger.boot_id == host.boot_id():
        families = {
            entry.launch_id: (entry.identity, entry.members) for entry in ledger.entries if entry.identity is not None
        }
        for members in host.families(families).values():
            pids |= {member.identity.pid for member in members}
    return frozenset(pids)


# The supervisor.


class LogFolder:
    """Rotates and reads log files as ``stack.logs`` says."""

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings

    def rotate(self, path: str) -> None:
        """Rotate if too large; a disk that refuses is no reason to stop anything."""
        with contextlib.suppress(OSError):
            rotate(Path(path), max_bytes=self._settings.max_bytes, backups=self._settings.backups)

    def tail(self, path: str, lines: int) -> Sequence[str]:
        """The last lines."""
        return tail(Path(path), lines)


class EnvoyDrain:
    """
    Refuses new requests with a clear 503 and lets the open ones finish.

    By the admin layer of Envoy's runtime: it wins over what the guard's files say and is gone with this Envoy, so the
    next start admits again.
    """

    def __init__(self, paths: StatePaths, pools: Sequence[str]) -> None:
        self._admin = AdminClient(paths.admin_socket, timeout_seconds=ADMIN_SECONDS)
        self._pools = tuple(pools)

    async def drain(self) -> None:
        """Refuse from now on. Raises DependencyError."""
        keys = {reject_key(pool): "100" for pool in self._pools}
        await self._admin.request("POST", "/runtime_modify?" + urlencode(keys))
        await self._admin.request("POST", "/drain_listeners?graceful&skip_exit")

    async def requests_active(self) -> int | None:
        """Requests open at the public listener; None when Envoy does not say."""
        try:
            stats = await self._admin.stats(r"^http\.gw\.downstream_rq_active$")
            return int(stats.get("http.gw.downstream_rq_active", "0"))
        except (DependencyError, ValueError):
            return None

    async def close(self) -> None:
        """Release the connection."""
        await self._admin.close()


def make_host(paths: StatePaths, environ: Mapping[str, str], cwd: Path) -> ProcessHost:
    """Return the processes of the stack in ``paths``."""
    return ProcessHost(stack_id(paths.root), environ, cwd)


def own_identity() -> ProcessIdentity:
    """Identity of this process."""
    return proc.identity_of(os.getpid()) or ProcessIdentity(os.getpid(), 0)


@contextlib.asynccontextmanager
async def supervisor_for(
    specs: Sequence[ProcessSpec],
    paths: StatePaths,
    host: ProcessHost,
    say: Say,
    *,
    name: str,
    gateway_url: str,
    metrics_url: str | None,
    pools: Sequence[str],
    policy: RestartSettings,
    logs: LogSettings,
) -> AsyncIterator[Supervisor]:
    """A supervisor of ``specs`` with its adapters; these are closed afterwards. The caller holds the lock."""
    drain = EnvoyDrain(paths, pools)
    facts = StackFacts(
        name=name,
        supervisor=own_identity(),
        gateway_url=gateway_url,
        state_dir=str(paths.root),
        metrics_url=metrics_url,
        supervisor_log=str(paths.logs / SUPERVISOR_LOG),
    )
    try:
        yield Supervisor(
            facts,
            specs,
            host=host,
            ledger=LedgerFile(paths.ledger),
            probe=HttpReadiness(),
            gateway=drain if any(spec.role is Role.GATEWAY for spec in specs) else None,
            clock=SystemClock(),
            policy=policy,
            logs=LogFolder(logs),
            say=say,
        )
    finally:
        await drain.close()


def specs_of_leftovers(host: ProcessHost, ledger: Ledger | None, root: Root | None) -> list[ProcessSpec]:
    """
    Return what an earlier supervisor left running as specs that match it exactly, whatever sre.yaml says now: for a
    stop without that supervisor.
    """
    engines = {} if root is None else {engine.name: engine for engine in root.stack.engines}
    specs: dict[str, ProcessSpec] = {}

    def add(name: str, role: Role, fingerprint: str, argv: tuple[str, ...]) -> None:
        engine = engines.get(name)
        specs.setdefault(
            name,
            ProcessSpec(
                name=name,
                role=role,
                kind=role.value,
                command=Command(argv),
                readiness=Readiness("/", port=0),
                fingerprint=fingerprint,
                stop_timeout_seconds=15.0 if engine is None else engine.stop_timeout_seconds,
                drain_timeout_seconds=30.0 if engine is None else engine.drain_timeout_seconds,
            ),
        )

    if ledger is not None and ledger.boot_id == host.boot_id():
        for entry in ledger.entries:
            add(entry.name, entry.role, entry.fingerprint, ())
    for found in host.marked():
        if found.leader:
            role = {GATEWAY_NAME: Role.GATEWAY, GUARD_NAME: Role.GUARD}.get(found.name, Role.ENGINE)
            add(found.name, role, found.fingerprint, found.argv)
    return list(specs.values())


def prepare_gateway(paths: StatePaths, stack: StackSettings) -> list[str]:
    """Write the gateway's documents; return sentences about engines that stay out of rotation."""
    return prepare(paths, stack, managed_addresses(stack))
