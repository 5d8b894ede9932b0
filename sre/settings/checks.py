"""What no single field can know: contradictions between settings. Errors stop; warnings are said."""

from __future__ import annotations

import difflib
import ipaddress
import zoneinfo
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

from sre.settings import gate_checks, monitoring_checks
from sre.settings.base import SECRET_REFERENCE
from sre.settings.document import Location
from sre.settings.models import Root
from sre.settings.secrets import is_secret_name
from sre.settings.stack import EngineSettings

Finding = tuple[Location, str]
"""Where, and the sentence: *what is wrong; what to write instead*."""

RATIO_SIGNALS = frozenset({"gpu_memory_used_ratio", "error_ratio", "kv_cache_usage_ratio"})
RESERVED_NAMES = frozenset({"gateway", "guard", "supervisor"})
"""Names of processes and log files of ours (a test compares them with ``sre.stack.processes``)."""
OWN_ARGUMENTS = ("--host", "--port", "--model", "--served-model-name")
"""Arguments of vLLM that sre writes itself."""


def errors(root: Root) -> Iterator[Finding]:
    """Contradictions that make the file unusable."""
    for index, engine in enumerate(root.stack.engines):
        for where, sentence in _engine_errors(engine):
            yield ("stack", "engines", index, *where), sentence
    for pool, engines in root.stack.pools.items():
        if len(engines) < root.guard.min_healthy_engines:
            yield (
                ("guard", "min_healthy_engines"),
                f"{root.guard.min_healthy_engines} is more than pool {pool} has engines ({len(engines)}), so it would"
                " never admit traffic; lower it or add engines",
            )
    yield from _port_errors(root)
    yield from _guard_errors(root)
    for where, sentence in monitoring_checks.errors(root.monitoring):
        yield ("monitoring", *where), sentence
    for where, sentence in gate_checks.errors(root.gate):
        yield ("gate", *where), sentence
    names = [channel.name for channel in root.notify.channels]
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield ("notify", "channels"), f'two channels are named "{name}"; names must differ'
    yield from _fallback_errors(root)
    yield from _telling_errors(root)
    if root.notify.max_backoff_seconds < root.notify.initial_backoff_seconds:
        yield ("notify", "max_backoff_seconds"), "is less than initial_backoff_seconds; raise it"
    if root.stack.restart.max_backoff_seconds < root.stack.restart.initial_backoff_seconds:
        yield ("stack", "restart", "max_backoff_seconds"), "is less than initial_backoff_seconds; raise it"


def _fallback_errors(root: Root) -> Iterator[Finding]:
    nexts = {channel.name: channel.fallback for channel in root.notify.channels}
    for index, channel in enumerate(root.notify.channels):
        where: Location = ("notify", "channels", index, "fallback")
        if channel.fallback is None:
            continue
        if channel.fallback not in nexts:
            yield where, _no_channel(channel.fallback, nexts)
            continue
        passed = [channel.name]
        while (following := nexts.get(passed[-1])) is not None and following not in passed:
            passed.append(following)
        if following == channel.name:
            yield where, f"leads back to {channel.name} ({' → '.join([*passed, following])}); name another channel"


def _no_channel(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known := tuple(known), n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known) or 'none'}"
    return f'no channel "{name}"; {hint}'


def _telling_errors(root: Root) -> Iterator[Finding]:
    """When messages go where: escalation and quiet hours."""
    notify = root.notify
    known = [channel.name for channel in notify.channels]
    if notify.escalation is not None:
        for index, name in enumerate(notify.escalation.channels):
            if name not in known:
                yield ("notify", "escalation", "channels", index), _no_channel(name, known)
            elif name in notify.escalation.channels[:index]:
                yield ("notify", "escalation", "channels", index), f'"{name}" stands here twice; remove one'
    hours = notify.quiet_hours
    if hours is not None:
        if hours.start == hours.end:
            yield ("notify", "quiet_hours", "end"), "is the same as start, which is no time at all; change one of them"
        problem = _zone_problem(hours.timezone)
        if problem is not None:
            yield ("notify", "quiet_hours", "timezone"), problem


def _zone_problem(name: str) -> str | None:
    if name == "UTC":
        return None
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        known = zoneinfo.available_timezones()
        if not known:
            return "this machine has no time zones; install tzdata, or write UTC"
        near = difflib.get_close_matches(name, known, n=1)
        return f'no time zone "{name}"; {f"did you mean {near[0]}?" if near else "write one like Asia/Shanghai"}'
    return None


def _engine_errors(engine: EngineSettings) -> Iterator[Finding]:
    if engine.name in RESERVED_NAMES:
        yield ("name",), f'"{engine.name}" names a process of sre itself; choose another name'
    if engine.url is not None:
        problem = _url_problem(engine.url)
        if problem:
            yield ("url",), problem
    for index, argument in enumerate(engine.args):
        flag = argument.split("=", 1)[0].replace("_", "-")
        if flag == "--api-key":
            yield ("args", index), "a secret is never written here; remove --api-key and write api_key: env:NAME"
        elif flag in OWN_ARGUMENTS:
            key = {"--served-model-name": "served_model_name"}.get(flag, flag.removeprefix("--"))
            yield ("args", index), f"sre writes {flag} itself; remove it and set {key} of this engine"
    for name, value in engine.env.items():
        if is_secret_name(name) and not SECRET_REFERENCE.match(value):
            yield ("env", name), "a secret is never written here; write env:NAME or file:/path"
    if len(set(engine.gpus)) != len(engine.gpus) or any(g < 0 for g in engine.gpus):
        yield ("gpus",), "indices must differ and be 0 or more; write each GPU once"


def _url_problem(url: str) -> str | None:
    remedy = "write http://host:port"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return f"is not a URL; {remedy}"
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        return f"is not a URL of an engine; {remedy}"
    if parts.username is not None or parts.password is not None:
        return "a secret is never written here; remove user and password, and write api_key: env:NAME"
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        return f"has a path; {remedy} only"
    return None


def _port_errors(root: Root) -> Iterator[Finding]:
    taken = {root.stack.gateway.port: "stack.gateway.port"}
    for index, engine in enumerate(root.stack.engines):
        if engine.port is not None:
            taken[engine.port] = f"stack.engines[{index}].port"
    if root.guard.metrics_port in taken:
        other = taken[root.guard.metrics_port]
        yield ("guard", "metrics_port"), f"{root.guard.metrics_port} is also {other}; ports must differ"
    taken[root.guard.metrics_port] = "guard.metrics_port"
    if root.webhook.enabled and root.webhook.port in taken:
        other = taken[root.webhook.port]
        yield ("webhook", "port"), f"{root.webhook.port} is also {other}; ports must differ"


def _guard_errors(root: Root) -> Iterator[Finding]:
    guard = root.guard
    for index, rule in enumerate(guard.rules):
        where: Location = ("guard", "rules", index)
        if rule.signal in RATIO_SIGNALS and not 0 <= rule.threshold <= 1:
            hint = f"{rule.threshold / 100:g} for {rule.threshold:g} %" if 1 < rule.threshold <= 100 else "0 to 1"
            yield (*where, "threshold"), f"{rule.threshold:g} is not in 0..1; {rule.signal} is a ratio, write {hint}"
        if rule.recover_below is not None:
            rising = rule.comparison in {">", ">="}
            if (rule.recover_below > rule.threshold) if rising else (rule.recover_below < rule.threshold):
                side = "at most" if rising else "at least"
                yield (
                    (*where, "recover_below"),
                    f"{rule.recover_below:g} is on the tripping side; write {side} the threshold, {rule.threshold:g}",
                )
    if guard.hang.restart_after_seconds <= guard.hang.hang_after_seconds:
        yield (
            ("guard", "hang", "restart_after_seconds"),
            "must be more than hang_after_seconds: refusing comes first, restarting is the last resort",
        )
    if guard.hang.hang_after_max_seconds < guard.hang.hang_after_seconds:
        yield ("guard", "hang", "hang_after_max_seconds"), "is less than hang_after_seconds; raise it"
    if guard.half_open.max_open_seconds < guard.half_open.open_seconds:
        yield ("guard", "half_open", "max_open_seconds"), "is less than open_seconds; raise it"


def warnings(root: Root) -> Iterator[Finding]:
    """What works but is likely not meant."""
    if not _is_loopback(root.stack.gateway.host):
        yield ("stack", "gateway", "host"), "opens the gateway to the network; keep 127.0.0.1 unless that is meant"
    if not _is_loopback(root.guard.metrics_host):
        yield ("guard", "metrics_host"), "opens the guard's metrics to the network; keep 127.0.0.1 unless that is meant"
    if root.webhook.enabled and root.webhook.tls_certificate is None and not _is_loopback(root.webhook.host):
        yield (
            ("webhook", "host"),
            "sends its token over the network in the clear; set tls_certificate and tls_key, or keep 127.0.0.1",
        )
    if not root.notify.channels:
        yield ("notify", "channels"), "none: nobody will be told; add an e-mail and an sms channel"
    for index, engine in enumerate(root.stack.engines):
        where: Location = ("stack", "engines", index)
        count = root.stack.sim_gpu.count
        if engine.kind == "sim" and any(gpu >= count for gpu in engine.gpus):
            yield (*where, "gpus"), f"only GPUs below {count} are simulated; raise stack.sim_gpu.count"
        if engine.kind != "vllm" and (engine.args or engine.python):
            yield where, f"args and python are for kind vllm; kind {engine.kind} ignores them"
        if engine.kind == "external" and engine.port is not None:
            yield (*where, "port"), "kind external ignores port; url says where it listens"
    for place, sentence in monitoring_checks.warnings(root.monitoring):
        yield ("monitoring", *place), sentence
    if not any(rule.enabled for rule in root.guard.rules):
        yield ("guard", "rules"), "no rule is enabled; only hangs and dead engines trip the breaker"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
