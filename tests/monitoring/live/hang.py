"""One hang of a real process, from ``sre chaos inject gpu-hang`` until the notification that it is over."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sre.adapters.processes.proc import is_alive
from tests.monitoring.live.delay import HUNG, Delay, injected_at, measure, timestamp
from tests.monitoring.live.world import World
from tests.support.prometheus import Told


@dataclass(frozen=True)
class Hang:
    """
    What became of it. Times are seconds since 1970.

    Attributes:
        report: Of ``sre chaos inject``.
        restarted: The guard replaced the engine's process.
        pages: Everything that the receiver was told until the end.
    """

    fault_at: float
    told: Told
    resolved: Told | None
    delay: Delay
    report: dict[str, Any]
    restarted: bool
    pages: tuple[Told, ...]


@contextlib.contextmanager
def _injecting(world: World, engine: str, hold: str) -> Iterator[subprocess.Popen[str]]:
    """``sre chaos inject``; interrupted, which reverts, if it still runs at the end."""
    argv = world.live.command("chaos", "inject", "gpu-hang", "--engine", engine, "--yes", "--for", hold, "-o", "json")
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=world.folder, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def hang(
    world: World,
    engine: str,
    *,
    hold: str,
    group_wait: float,
    timeout: float,
    meanwhile: Callable[[], None] = lambda: None,
    until_resolved: bool = True,
) -> Hang:
    """
    Stop the engine's core, wait for the page, and for the recovery and the page's end.

    Args:
        hold: How long the fault is held, unless the guard ends it by a restart.
        meanwhile: Done while the alert is pending.
        timeout: For each of the waits.
        until_resolved: Also wait for the notification that it is over.
    """
    prometheus, receiver, live = world.prometheus, world.receiver, world.live
    before = live.identity(engine)
    known = set(live.paths.chaos.glob("*/journal.jsonl"))
    with _injecting(world, engine, hold) as process:

        def started() -> tuple[Path, float] | None:
            assert process.poll() is None, "".join(process.communicate())
            for journal in set(live.paths.chaos.glob("*/journal.jsonl")) - known:
                if (at := injected_at(journal)) is not None:
                    return journal, at
            return None

        _, fault_at = prometheus.until("the fault is injected", started)

        def mine() -> list[dict[str, Any]]:
            return [one for one in prometheus.alerts(HUNG) if one["labels"]["engine"] == engine]

        meanwhile()
        active = prometheus.until(f"{HUNG} is pending", mine, timeout, logs=(live.paths.logs,))[0]
        prometheus.until(f"{HUNG} fires", lambda: [one for one in mine() if one["state"] == "firing"], timeout)
        told = prometheus.until(f"told of {HUNG}", lambda: receiver.first(HUNG, since=fault_at), timeout)
        resolved = None
        if until_resolved:
            resolved = prometheus.until(
                "told that it is over", lambda: receiver.first(HUNG, "resolved", since=fault_at), timeout
            )
        stdout, stderr = process.communicate(timeout=timeout)
        if until_resolved:
            live.wait_closed(timeout)
    assert process.returncode == 0, stdout + stderr
    return Hang(
        fault_at,
        told,
        resolved,
        measure(world, engine, fault_at, told, timestamp(active["activeAt"]), group_wait),
        json.loads(stdout),
        not is_alive(before),
        tuple(receiver.told),
    )
