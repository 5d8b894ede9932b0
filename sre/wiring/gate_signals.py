"""What the gate reads beside the load: engines, the guard of our own stack, this host, its GPUs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

from sre.adapters.gate_signals import GateSignals
from sre.adapters.gpu.choose import gpu_reader
from sre.adapters.host_counters import HostCountersReader
from sre.clock import Clock
from sre.settings.gate import GateSettings
from sre.settings.models import Root
from sre.settings.paths import StatePaths
from sre.stack.commands import reachable_host


@contextlib.asynccontextmanager
async def opened_signals(
    url: str,
    metrics_urls: Sequence[str],
    *,
    ours: bool,
    root: Root,
    settings: GateSettings,
    paths: StatePaths,
    api_key: str | None,
    clock: Clock,
    environ: Mapping[str, str],
) -> AsyncIterator[GateSignals]:
    """
    The reader for one server; its GPU process ends with the block.

    Args:
        metrics_urls: Empty: ``url``/metrics is tried.
        ours: The server is the gateway of the stack in sre.yaml: its guard and the engines' settings are known.
    """
    guard = None
    slots: int | None = None
    if ours:
        host = reachable_host(root.guard.metrics_host)
        guard = (
            f"http://[{host}]:{root.guard.metrics_port}" if ":" in host else f"http://{host}:{root.guard.metrics_port}"
        )
        slots = batch_slots(root)
    # Simulated GPUs are those of our own stack; of another server on this machine only NVML can tell.
    watched = root.guard
    if not ours and watched.gpu_reader != "none":
        watched = watched.model_copy(update={"gpu_reader": "nvml"})
    gpus = gpu_reader(
        watched, root.stack, overlay=paths.gpu_overlay, sim_folder=paths.sim_gpu, clock=clock, environ=environ
    )
    try:
        yield GateSignals(
            metrics_urls or (f"{url}/metrics",),
            clock=clock,
            url=url,
            api_key=api_key,
            capacity=settings.capacity,
            host=HostCountersReader(clock.monotonic),
            gpus=gpus,
            guard_metrics_url=None if guard is None else f"{guard}/metrics",
            batch_slots=slots,
        )
    finally:
        await gpus.close()


def batch_slots(root: Root) -> int | None:
    """max_num_seqs of all engines of the stack together; None where one of them does not say."""
    total = 0
    for engine in root.stack.engines:
        if engine.kind == "sim":
            total += engine.sim.max_num_seqs
        elif (said := _option(engine.args, "--max-num-seqs")) is not None:
            total += said
        else:
            return None
    return total or None


def _option(args: Sequence[str], name: str) -> int | None:
    for position, word in enumerate(args):
        value = word.partition("=")[2] if word.startswith(f"{name}=") else None
        if word == name and position + 1 < len(args):
            value = args[position + 1]
        if value is not None and value.isdecimal():
            return int(value)
    return None
