"""Fault injection on the stack of ``sre.yaml``."""

from __future__ import annotations

from collections.abc import Mapping

from sre.adapters.chaos_targets import StackWorld
from sre.adapters.clock import SystemClock
from sre.adapters.supervisor_client import SupervisorClient
from sre.control.chaos_start import Places, Policy
from sre.settings.models import Root
from sre.settings.paths import StatePaths
from sre.settings.secrets import resolve_secret


def chaos_world(settings: Root, paths: StatePaths, environ: Mapping[str, str]) -> StackWorld:
    """The stack that runs. Raises ConfigError when an engine's key cannot be resolved."""
    keys = {
        engine.name: resolve_secret(engine.api_key, f"stack.engines[{index}].api_key", environ)
        for index, engine in enumerate(settings.stack.engines)
        if engine.api_key is not None
    }
    host = settings.guard.metrics_host
    if host in ("0.0.0.0", "::"):  # listens everywhere, is reached here
        host = "127.0.0.1"
    return StackWorld(
        SupervisorClient(paths.supervisor_socket),
        {engine.name: engine for engine in settings.stack.engines},
        guard_metrics_url=f"http://{host}:{settings.guard.metrics_port}/metrics",
        clock=SystemClock(),
        api_keys=keys,
    )


def chaos_places(paths: StatePaths) -> Places:
    """Where journals and fault files are."""
    return Places(paths.chaos, paths.gpu_overlay, paths.engine_faults)


def chaos_policy(settings: Root) -> Policy:
    """Durations by section ``chaos``."""
    return Policy(lease_seconds=settings.chaos.lease_seconds, max_hold_seconds=settings.chaos.max_hold_seconds)
