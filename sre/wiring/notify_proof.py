"""``sre notify test --end-to-end`` with the real guard, Prometheus and Alertmanager."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from sre.actions.records import OutboxRow
from sre.adapters.alert_path import AlertPath
from sre.adapters.clock import SystemClock
from sre.adapters.store import StoreReader
from sre.control.notify_proof import Proof, prove
from sre.settings.models import Root
from sre.settings.paths import StatePaths
from sre.watchdog.processes import boot_id
from sre.wiring.guard_client import ask


class _Pipeline:
    def __init__(self, paths: StatePaths, path: AlertPath) -> None:
        self._paths, self.fired, self.taken = paths, path.fired, path.taken

    async def send(self, identifier: str, seconds: float) -> None:
        order = {"id": identifier, "seconds": seconds}
        await asyncio.to_thread(ask, self._paths.guard_socket, "POST", "/canary", order)

    async def report(self, identifier: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await asyncio.to_thread(
            ask, self._paths.guard_socket, "GET", f"/canary/{identifier}"
        )
        return found

    async def deliveries(self, identifier: str) -> Sequence[OutboxRow]:
        return await asyncio.to_thread(self._read, f"canary-{identifier}")

    def _read(self, incident: str) -> Sequence[OutboxRow]:
        with StoreReader.open_readonly(self._paths.guard_db, clock=SystemClock(), boot_id=boot_id()) as store:
            return store.outbox(incident_id=incident)


async def run_proof(root: Root, paths: StatePaths, prometheus: str, alertmanager: str, *, wait_seconds: float) -> Proof:
    """
    Send one canary through and follow it.

    Raises:
        SreError: The guard cannot be asked, or has no webhook.
    """
    identifier = secrets.token_hex(4)
    channels = [channel.name for channel in root.notify.channels]
    async with AlertPath(prometheus, alertmanager) as path:
        return await prove(_Pipeline(paths, path), SystemClock(), identifier, channels, wait_seconds=wait_seconds)
