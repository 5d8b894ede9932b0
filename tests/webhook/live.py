"""A webhook that listens, on a real store; and raw connections that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import io
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

from sre.adapters.clock import SystemClock
from sre.adapters.incident_files import IncidentFiles
from sre.adapters.store import GuardStore
from sre.adapters.store.alerts import AlertBook
from sre.control.alert_intake import AlertIntake
from sre.control.alert_ports import Hands, NoGuard
from sre.control.notify_proof import Canaries
from sre.notify.alert_decide import Intake
from sre.notify.alert_records import Verdict
from sre.notify.alert_routes import Routes
from sre.servers.alert_webhook import PATH, Acknowledger, AlertWebhook, Door, Limits
from sre.servers.alert_webhook_credentials import Credentials, Keyring
from sre.settings.webhook import WebhookSettings
from tests.webhook.scenes import everybody

TOKEN = "correct-horse-battery-staple"
CREDENTIALS = Credentials(TOKEN, ("prometheus", "s3cret-password"))
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LIMITS = Limits(body_bytes=1_000_000, seconds=1.0, connections=16)


def unchanging() -> Keyring:
    """Who may post, for ever."""

    async def read() -> Credentials:
        return CREDENTIALS

    return Keyring(CREDENTIALS, read, SystemClock())


class Counts:
    """The intake's listener."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.verdicts: Counter[Verdict] = Counter()
        self.commits: list[float] = []
        self.heartbeats = 0
        self.lost = 0
        self.failures = 0

    def alert(self, firing: bool, verdict: Verdict) -> None:
        self.verdicts[verdict] += 1

    def unreadable(self, alerts: int) -> None:
        self.lost += alerts

    def truncated(self, alerts: int) -> None:
        pass

    def committed(self, seconds: float) -> None:
        self.commits.append(seconds)

    def heartbeat(self, wall: float) -> None:
        self.heartbeats += 1

    def failed(self) -> None:
        self.failures += 1

    def requested(self, outcome: str) -> None:
        self.requests[outcome] += 1


class Receiver:
    """A webhook that listens."""

    def __init__(
        self,
        folder: Path,
        store: GuardStore,
        intake: AlertIntake,
        counts: Counts,
        port: int,
        connections: Callable[[], int],
    ) -> None:
        self.folder, self.store, self.intake, self.counts, self.port = folder, store, intake, counts, port
        self.connections = connections
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{PATH}"

    async def post(
        self, body: bytes | AsyncIterator[bytes], headers: dict[str, str] | None = None, *, url: str = "", **more: Any
    ) -> tuple[int, str]:
        """Status and text."""
        data = io.BytesIO(body) if isinstance(body, bytes) else body
        timeout = aiohttp.ClientTimeout(total=20)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url or self.url, data=data, headers=BEARER if headers is None else headers, **more) as answer,
        ):
            return answer.status, await answer.text()

    async def raw(self, *parts: bytes, pause: float = 0.0, read_seconds: float = 15.0) -> bytes:
        """Send ``parts``; return all that comes back until the connection is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for part in parts:
                try:
                    writer.write(part)
                    await writer.drain()
                except ConnectionError:
                    break
                if pause:
                    await asyncio.sleep(pause)
            found = b""
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(read_seconds):
                    while part := await reader.read(65536):
                        found += part
            return found
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def receiver(
    folder: Path,
    settings: WebhookSettings | None = None,
    *,
    limits: Limits = LIMITS,
    hands: Hands | None = None,
    door: Door | None = None,
    tls: ssl.SSLContext | None = None,
    acknowledger: Acknowledger | None = None,
) -> AsyncIterator[Receiver]:
    clock, counts = SystemClock(), Counts()
    chosen = settings or WebhookSettings()
    store = GuardStore.open(folder / "guard.db", clock=clock, boot_id="boot")
    try:
        intake = AlertIntake(
            Intake(chosen, Routes(chosen), everybody),
            AlertBook(store),
            hands or NoGuard(),
            clock,
            counts,
            IncidentFiles(folder / "incidents"),
            canaries=Canaries(clock),
        )
        webhook = AlertWebhook(
            intake, door or unchanging(), limits, counted=counts.requested, acknowledger=acknowledger
        )
        taking = asyncio.create_task(intake.run())
        try:
            async with webhook.serve("127.0.0.1", 0, tls) as port:
                made = Receiver(folder, store, intake, counts, port, lambda: webhook.connections)
                made.scheme = "http" if tls is None else "https"
                yield made
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
    finally:
        store.close()
