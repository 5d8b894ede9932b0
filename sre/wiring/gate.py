"""The deploy gate on the servers that settings and options name."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sre.adapters.clock import SystemClock
from sre.adapters.gate_files import GateFiles, regular_bytes
from sre.control.gate_end import Ended
from sre.control.gate_run import run_gate
from sre.control.gate_world import Listener, Order, Target
from sre.errors import ConfigError, StateError, Unreachable
from sre.gate import plan
from sre.gate.plan import Trace
from sre.settings.base import from_folder
from sre.settings.gate import GateSettings
from sre.settings.gate_checks import url_problem
from sre.settings.models import Root
from sre.settings.paths import StatePaths
from sre.settings.secrets import resolve_secret
from sre.stack.commands import reachable_host
from sre.wiring.gate_naming import naming_options

if TYPE_CHECKING:
    from sre.gate.arrivals import TraceEntry
    from sre.gate.baseline import Baseline
    from sre.gate.stages import RequestClass

LARGEST_TRACE_BYTES = 256 << 20
"""Some four million arrivals: far more than a client of one machine sends."""


@dataclass(frozen=True, slots=True)
class Server:
    """
    Where load goes, and what may be read there.

    Attributes:
        metrics_urls: Pages of its engines; empty: tried at ``url`` itself.
        ours: It is the gateway of the stack in sre.yaml.
    """

    url: str
    metrics_urls: Sequence[str] = ()
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Servers:
    """All that one gate run may send to."""

    target: Server
    against: Server | None = None
    policies: Mapping[str, Server] = field(default_factory=dict)


def results(paths: StatePaths, folder: Path | None = None) -> GateFiles:
    """Where results are kept: ``folder``, else in the state folder."""
    return GateFiles(folder if folder is not None else paths.root / "gate")


def baselines_folder(settings: GateSettings, config: Path | None) -> Path:
    """Folder of the baselines, from the folder of sre.yaml, where there is one."""
    base = config.parent if config is not None else Path()
    return Path(from_folder(settings.baseline.folder, str(base)))


def servers_of(
    root: Root, settings: GateSettings, paths: StatePaths, against: str | None, url_name: str = "gate.target.url"
) -> Servers:
    """
    Resolve the servers.

    Args:
        url_name: Where the target's URL was given, for the message.

    Raises:
        ConfigError: A URL is none.
    """
    target = settings.target
    if target.url is not None:
        first = Server(checked_url(target.url, url_name), target.metrics_urls)
    else:
        gateway = root.stack.gateway
        host = reachable_host(gateway.host)
        url = f"http://[{host}]:{gateway.port}" if ":" in host else f"http://{host}:{gateway.port}"
        first = Server(url, target.metrics_urls or engine_metrics(root, paths), ours=True)
    return Servers(
        first,
        None if against is None else Server(checked_url(against, "--against")),
        {
            policy.name: Server(checked_url(policy.url, f"gate.long_tail.policies {policy.name}"), policy.metrics_urls)
            for policy in settings.long_tail.policies
        },
    )


def checked_url(url: str, where: str) -> str:
    """
    Base URL, without a slash at the end.

    Raises:
        ConfigError: It is none, or holds credentials.
    """
    problem = url_problem(url)
    if problem is not None:
        raise ConfigError([f"{where}: {problem}"])
    return url.rstrip("/").removesuffix("/v1")


def engine_metrics(root: Root, paths: StatePaths) -> tuple[str, ...]:
    """Metrics pages of the engines in sre.yaml; those whose port is not known are left out."""
    from sre.wiring.stack import managed_addresses, resolved_stack

    pages = [f"{engine.url.rstrip('/')}/metrics" for engine in root.stack.engines if engine.url is not None]
    try:
        addresses = managed_addresses(resolved_stack(root, paths))
    except StateError:  # never started: its gateway does not answer either, and that is what will be told
        addresses = {}
    pages += [f"http://{host}:{port}/metrics" for host, port in addresses.values()]
    return tuple(pages)


def read_trace(path: Path) -> tuple[Trace, tuple[TraceEntry, ...]]:
    """
    The arrivals to replay.

    Raises:
        ConfigError: No such file, or no trace; a sentence per line that is wrong.
    """
    from sre.gate.arrivals import parse_trace

    try:
        raw = regular_bytes(path, LARGEST_TRACE_BYTES)
        text = raw.decode("utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        why = "is not text" if isinstance(error, UnicodeDecodeError) else why
        raise ConfigError(
            [f"{path}: {why}; name a file of lines with offset_seconds, prompt_tokens, max_tokens"]
        ) from None
    entries = parse_trace(text.splitlines(), str(path))
    # The last arrival is part of the schedule: it ends one mean gap later.
    last = entries[-1].offset_seconds
    seconds = last + max(last / max(1, len(entries) - 1), 0.1)
    return Trace(len(entries), seconds, hashlib.sha256(raw).hexdigest()), entries


@dataclass(frozen=True, slots=True)
class Asked:
    """
    What one ``sre gate run`` asks for, options and settings together.

    Attributes:
        given: Setting → option, of the options that were given: ``gate.target.url`` → ``--url``.
    """

    root: Root
    settings: GateSettings
    servers: Servers
    paths: StatePaths
    output_dir: Path | None
    tool_version: str
    baseline: Baseline | None = None
    trace: Trace | None = None
    entries: Sequence[TraceEntry] = ()
    given: Mapping[str, str] = field(default_factory=dict)


async def perform(asked: Asked, environ: Mapping[str, str], listener: Listener, stop: asyncio.Event) -> Ended:
    """
    Run the gate.

    Raises:
        As ``run_gate``; and ConfigError for a key that cannot be resolved.
    """
    clock = SystemClock()
    files = results(asked.paths, asked.output_dir)
    key = asked.settings.target.api_key
    api_key = None if key is None else resolve_secret(key, "gate.target.api_key", environ)
    async with contextlib.AsyncExitStack() as stack:

        async def opened(server: Server) -> Target:
            return await stack.enter_async_context(_target(asked, server, api_key, clock, environ))

        order = Order(
            settings=asked.settings,
            target=await opened(asked.servers.target),
            tool_version=asked.tool_version,
            against=None if asked.servers.against is None else await opened(asked.servers.against),
            policies={name: await opened(server) for name, server in asked.servers.policies.items()},
            baseline=asked.baseline,
            trace=asked.trace,
        )
        try:
            with naming_options(asked.given, None if order.against is None else order.against.url):
                return await run_gate(order, lambda: files.create(clock.wall()), clock, listener, stop)
        except Unreachable as error:
            if asked.servers.target.ours and asked.servers.target.url in str(error):
                raise Unreachable(
                    f"gateway {asked.servers.target.url}",
                    "no connection; start the stack with sre up, or name another server with --url",
                ) from error
            raise


def _tried(asked: Asked) -> Sequence[RequestClass]:
    """One request of each kind that will be sent; of a trace the longest."""
    mix = plan.classes(asked.settings.load.mix)
    if not asked.entries:
        return mix
    longest = max(asked.entries, key=lambda one: one.prompt_tokens + one.max_tokens)
    return (replace(mix[0], prompt_tokens=longest.prompt_tokens, max_tokens=longest.max_tokens),)


@contextlib.asynccontextmanager
async def _target(
    asked: Asked, server: Server, api_key: str | None, clock: SystemClock, environ: Mapping[str, str]
) -> AsyncIterator[Target]:
    from sre.adapters.load import HttpLoad
    from sre.wiring.gate_signals import opened_signals

    settings, load = asked.settings, asked.settings.load
    generator = HttpLoad(
        server.url,
        model=settings.target.model,
        api=settings.target.api,
        api_key=api_key,
        ca_file=settings.target.tls_ca_file,
        clock=clock,
        request_timeout_seconds=load.request_timeout_seconds,
        max_in_flight=load.max_in_flight,
        processes=load.processes,
        seed=load.seed,
        trace=asked.entries,
        classes=_tried(asked),
    )
    signals = opened_signals(
        server.url,
        server.metrics_urls,
        ours=server.ours,
        root=asked.root,
        settings=settings,
        paths=asked.paths,
        api_key=api_key,
        clock=clock,
        environ=environ,
    )
    async with generator, signals as reader:
        yield Target(server.url, generator, reader)
