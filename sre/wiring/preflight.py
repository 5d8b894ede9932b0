"""What must be there before ``sre up`` starts anything; one sentence for each thing that is missing."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from sre.adapters.engines import vllm
from sre.adapters.envoy import find_envoy
from sre.adapters.processes import proc
from sre.adapters.processes.files import read_ports
from sre.errors import BinaryNotFound, ConfigError
from sre.settings.models import Root
from sre.settings.paths import StatePaths
from sre.settings.secrets import resolve_secret
from sre.settings.stack import StackSettings
from sre.wiring.channel_checks import ChannelProblems, channel_problems, missing_channel_secrets
from sre.wiring.guard_webhook import WebhookProblems, webhook_problems

LATE_SECRETS = (
    "without these nobody would be paged: put them right; where secrets are mounted after the start, sre up"
    " --late-secrets goes on without them, and they are looked for again at each try"
)


def preflight(
    root: Root, ours: frozenset[int], environ: Mapping[str, str], *, with_guard: bool, late_secrets: bool = False
) -> list[str]:
    """
    Return everything that would make a start fail, one sentence each that says what to do. Changes nothing.

    Args:
        ours: Pids of this stack's processes that still run: what they hold is not in the way.
        late_secrets: What pages and listens may come after the start.
    """
    problems: list[str] = []
    stack = root.stack
    try:
        find_envoy(stack)
    except BinaryNotFound as error:
        problems.append(str(error))
    for engine in stack.engines:
        where = f"stack.engines.{engine.name}"
        if engine.kind == "vllm":
            problems += vllm.problems(engine)
        if engine.kind != "external" and engine.port is not None:
            problems += port_problem(engine.host, engine.port, f"{where}.port", ours)
        if engine.api_key is not None:
            try:
                resolve_secret(engine.api_key, f"{where}.api_key", environ)
            except ConfigError as error:
                problems += error.problems
    problems += port_problem(stack.gateway.host, stack.gateway.port, "stack.gateway.port", ours)
    if with_guard:
        problems += port_problem(root.guard.metrics_host, root.guard.metrics_port, "guard.metrics_port", ours)
        if root.webhook.enabled:
            problems += port_problem(root.webhook.host, root.webhook.port, "webhook.port", ours)
        # What is there and wrong does not become right by waiting.
        problems += [*channel_problems(root, environ).unusable, *_doors(root, environ).unusable]
        late = () if late_secrets else missing_secrets(root, environ)
        problems += [*late, LATE_SECRETS] if late else []
    return problems


def paging_problems(root: Root, environ: Mapping[str, str], channels: ChannelProblems) -> list[str]:
    """What would keep the guard from reaching a person, or the webhook from listening, ports aside."""
    return [*channels.unusable, *_doors(root, environ).unusable, *missing_secrets(root, environ)]


def missing_secrets(root: Root, environ: Mapping[str, str]) -> list[str]:
    """What is not there yet of what pages and listens, and may be mounted later."""
    return [*missing_channel_secrets(root, environ), *_doors(root, environ).missing]


def _doors(root: Root, environ: Mapping[str, str]) -> WebhookProblems:
    return webhook_problems(root.webhook, environ) if root.webhook.enabled else WebhookProblems()


def port_problem(host: str, port: int, where: str, ours: frozenset[int]) -> list[str]:
    """Return why nobody can listen there, as a sentence; empty when it is free or ours."""
    error = proc.bind_error(host, port)
    if error is None:
        return []
    if error.errno == errno.EADDRINUSE:
        holders = proc.listeners(port)
        if holders and set(holders) <= ours:
            return []
        if not holders:
            by = f"a process that you may not see (look with: sudo ss -ltnp 'sport = :{port}')"
        else:
            by = ", ".join(f"{_program(pid)} (pid {pid})" for pid in holders)
        return [f"{where}: {host}:{port} is taken by {by}; stop it, or write another port"]
    if error.errno in {errno.EACCES, errno.EPERM}:
        return [f"{where}: you may not listen on {host}:{port}; write a port above 1023"]
    return [f"{where}: cannot listen on {host}:{port}: {error.strerror or error}; write an address of this machine"]


def _program(pid: int) -> str:
    stat = proc.read_stat(pid)
    argv = proc.command_line(pid)
    named = " ".join(argv[:3]) if argv else ""
    return named[:60] or (stat.comm if stat is not None else "a process")


def lost_ports(stack: StackSettings, paths: StatePaths, ours: frozenset[int]) -> set[int]:
    """Return the ports chosen earlier that someone else holds now: others must be chosen."""
    kept = read_ports(paths.ports)
    engines = {engine.name: engine for engine in stack.engines if engine.port is None}
    return {
        port
        for name, port in kept.items()
        if name in engines and port_problem(engines[name].host, port, "", ours)
    }  # fmt: skip
