"""The webhook with real adapters: inside the guard, and by itself."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sre.actions.records import OutboxMessage
from sre.adapters.clock import SystemClock
from sre.adapters.incident_files import IncidentFiles
from sre.adapters.notifiers.process import AppriseSender
from sre.adapters.notifiers.templates import load_templates
from sre.adapters.processes import proc
from sre.adapters.processes.lock import StackLock
from sre.adapters.store import GuardStore
from sre.adapters.store.alerts import AlertBook
from sre.breaker.policy import policy_of
from sre.clock import Clock
from sre.control.ack_links import AckLinks
from sre.control.acknowledgements import Acknowledgements
from sre.control.alert_intake import AlertIntake
from sre.control.alert_outage import OutageWatch
from sre.control.alert_ports import Hands, NoGuard
from sre.control.blocking import BlockingCalls
from sre.control.delivery import Delivery
from sre.control.notify_proof import Canaries
from sre.control.tasks import kept_up
from sre.errors import ConfigError, Refused, SecretMissing
from sre.notify.ack_token import SHORTEST_SECRET
from sre.notify.alert_decide import Intake
from sre.notify.alert_routes import Routes
from sre.notify.escalation import told_of_acknowledgement
from sre.notify.links import AckAddress, Links
from sre.notify.renderer import Renderer
from sre.redaction import Redact
from sre.servers.alert_webhook import PATH, AlertWebhook, Limits
from sre.servers.alert_webhook_credentials import Credentials, Keyring
from sre.servers.alert_webhook_tls import Certificate
from sre.servers.exporter import Metrics
from sre.servers.exporter_webhook import WebhookMetrics
from sre.servers.listening import OWN_FILES, most_open_files, raise_open_files, room_for
from sre.settings.models import Root
from sre.settings.paths import StatePaths
from sre.settings.secrets import resolve_secret
from sre.settings.webhook import WebhookSettings
from sre.wiring.channel_checks import checked_channels
from sre.wiring.known_secrets import Redaction

log = logging.getLogger("sre.webhook")

AGAIN_SECONDS = 5.0
"""A port that is taken, a secret that is not there yet: looked for again after this."""
LEAST_CONNECTIONS = 4
LATE_CHANNELS = (
    "without these nobody would be told: put them right; where secrets are mounted after the start, sre webhook serve"
    " --late-secrets goes on without them, and they are looked for again at each try"
)
LOOK_SECONDS = 30.0
"""So often it is looked whether certificate and credentials were renewed."""


def credentials_of(settings: WebhookSettings, environ: Mapping[str, str]) -> Credentials:
    """Return what opens the webhook. Raises ConfigError when a secret cannot be had, or there is none."""
    token = None
    if settings.token is not None:
        # White space around it comes from files and manifests, and no Alertmanager sends it.
        token = resolve_secret(settings.token, "webhook.token", environ).strip()
        if not token:
            raise ConfigError(["webhook.token: is nothing but white space; write a token of letters and digits"])
    basic = None
    if settings.basic_user is not None and settings.basic_password is not None:
        basic = settings.basic_user, resolve_secret(settings.basic_password, "webhook.basic_password", environ)
    if token is None and basic is None:
        raise ConfigError(["webhook: anybody could page and trip: set token, or basic_user and basic_password"])
    return Credentials(token, basic)


def keyring_of(settings: WebhookSettings, environ: Mapping[str, str], clock: Clock) -> Keyring:
    """Return what knows who may post, also when the files of ``settings`` change. Raises ConfigError."""
    calls = BlockingCalls("webhook: credentials")
    return Keyring(credentials_of(settings, environ), lambda: calls(lambda: credentials_of(settings, environ)), clock)


def ack_secret_of(settings: WebhookSettings, environ: Mapping[str, str]) -> bytes | None:
    """Return what signs links; None where none are wanted. Raises ConfigError when it cannot be had or is too short."""
    if settings.ack_secret is None:
        return None
    secret = resolve_secret(settings.ack_secret, "webhook.ack_secret", environ).encode()
    if len(secret) < SHORTEST_SECRET:
        raise ConfigError([f"webhook.ack_secret: has {len(secret)} bytes; use at least {SHORTEST_SECRET}"])
    return secret


def connections_of(settings: WebhookSettings, open_files: int) -> int:
    """Return how many connections can be held at once. Raises ConfigError where the limit of open files leaves none."""
    found = room_for(settings.max_connections, open_files)
    if found < LEAST_CONNECTIONS:
        needed = OWN_FILES + settings.max_connections
        raise ConfigError(
            [
                f"webhook.max_connections: the limit of open files is {open_files}, and {OWN_FILES} are needed besides"
                f" connections; raise it to {needed} (ulimit -n {needed}, LimitNOFILE={needed})"
            ]
        )
    return found


@dataclass(frozen=True, slots=True)
class WebhookProblems:
    """What would keep the webhook from listening, its port aside; sentences."""

    missing: tuple[str, ...] = ()
    """Secrets and files of TLS that are not there; they may come."""
    unusable: tuple[str, ...] = ()
    """What is there, and is wrong."""


def webhook_problems(settings: WebhookSettings, environ: Mapping[str, str]) -> WebhookProblems:
    """Look for them, opening no port."""
    missing: list[str] = []
    unusable: list[str] = []
    for look in (
        lambda: credentials_of(settings, environ),
        lambda: ack_secret_of(settings, environ),
        lambda: certificate_of(settings),
        lambda: connections_of(settings, most_open_files()),
    ):
        try:
            look()
        except (SecretMissing, FileNotFoundError) as error:
            missing.append(_sentence(settings, error))
        except (ConfigError, OSError) as error:  # ssl.SSLError is an OSError
            unusable.append(_sentence(settings, error))
    return WebhookProblems(tuple(missing), tuple(unusable))


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook that is wired and does not listen yet."""

    settings: WebhookSettings
    intake: AlertIntake
    metrics: WebhookMetrics
    acknowledgements: Acknowledgements | None
    clock: Clock
    outage: OutageWatch

    async def take_in(self) -> None:
        """
        Store what is posted, and tell of it where that cannot be done, until cancelled. A mistake of ours ends neither:
        each begins again by itself, for were both begun again for one, the other would run twice.
        """
        failed = self.metrics.failed
        await asyncio.gather(
            kept_up(self.intake.run, "webhook: taking in", self.clock, failed=failed),
            kept_up(self.outage.run, "webhook: the watch for outages", self.clock, failed=failed),
        )

    async def run(self, environ: Mapping[str, str]) -> None:
        """Take in and serve until cancelled; what stands in the way of listening costs the webhook, not the guard."""
        taking = asyncio.create_task(self.take_in())
        told = ""
        try:
            while True:
                try:
                    async with self.listening(environ):
                        told = self.metrics.deaf = ""
                        await asyncio.Event().wait()
                except Exception as error:  # the webhook's own cycle boundary: it must come back by itself
                    sentence = _sentence(self.settings, error)
                    if not isinstance(error, ConfigError | OSError):
                        log.exception("webhook: listening failed")
                    if sentence != told:
                        told = self.metrics.deaf = sentence
                        log.error("%s; alerts are not taken in, it is tried again", sentence)
                await asyncio.sleep(AGAIN_SECONDS)
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def listening(self, environ: Mapping[str, str]) -> AsyncIterator[int]:
        """Listen; yields the port. Raises ConfigError, OSError, ssl.SSLError."""
        settings = self.settings
        secret = ack_secret_of(settings, environ)
        links = (
            AckLinks(secret, self.acknowledgements, self.clock)
            if secret is not None and self.acknowledgements is not None
            else None
        )
        certificate = certificate_of(settings)
        keyring = keyring_of(settings, environ, self.clock)
        open_files = raise_open_files()
        connections = connections_of(settings, open_files)
        webhook = AlertWebhook(
            self.intake,
            keyring,
            Limits(settings.max_body_bytes, settings.request_timeout_seconds, connections),
            counted=self.metrics.requested,
            acknowledger=links,
        )
        tls = None if certificate is None else certificate.context
        async with webhook.serve(settings.host, settings.port, tls) as port:
            self.metrics.listening = True
            log.info("webhook: listening on %s port %d, path %s", settings.host, port, PATH)
            if connections < settings.max_connections:
                log.warning(
                    "webhook.max_connections: %d at once, not %d: the limit of open files is %d",
                    connections,
                    settings.max_connections,
                    open_files,
                )
            look = functools.partial(self._watch, keyring, certificate)
            failed = self.metrics.failed
            watching = asyncio.create_task(kept_up(look, "webhook: renewal", self.clock, failed=failed))
            try:
                yield port
            finally:
                self.metrics.listening = False
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self, keyring: Keyring, certificate: Certificate | None) -> None:
        watch = None if certificate is None else CertificateWatch(certificate, self.intake.duties.uncertified)
        while True:
            await self.clock.sleep(LOOK_SECONDS)
            await keyring.look()
            if watch is not None:
                await watch.look()


class CertificateWatch:
    """Takes a renewed certificate; what cannot be used is told when it is still so at the second look."""

    def __init__(self, certificate: Certificate, tell: Callable[[str], None]) -> None:
        self._certificate, self._tell = certificate, tell
        self._failed = 0

    async def look(self) -> None:
        """Look once."""
        try:
            renewed = await asyncio.to_thread(self._certificate.look)
        except OSError as error:  # ssl.SSLError is one
            # Certificate and key are written one after the other: the first look may come in between.
            self._failed += 1
            if self._failed == 2:
                reason = getattr(error, "reason", None) or error.strerror or str(error)
                sentence = f"webhook.tls_certificate cannot be renewed ({reason}); the old one is used on"
                log.error("%s", sentence)
                self._tell(sentence)
            return
        self._failed = 0
        if renewed:
            log.info("webhook: the renewed certificate is used from now on")


def certificate_of(settings: WebhookSettings) -> Certificate | None:
    """Return what TLS is spoken with; None for plain HTTP. Raises OSError, ssl.SSLError."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return Certificate(settings.tls_certificate, settings.tls_key)


def make_webhook(
    root: Root,
    store: GuardStore | None,
    hands: Hands,
    clock: Clock,
    metrics: Metrics,
    *,
    incidents: Path,
    redact: Redact,
    canaries: Canaries,
    wake_delivery: Callable[[], None],
    send_unstored: Callable[[Sequence[OutboxMessage]], None],
    problem: str,
    acknowledgements: Acknowledgements | None,
) -> Webhook:
    """
    Wire a webhook around ``store`` (None: there is none that can be trusted; ``problem`` says why). ``send_unstored``
    sends messages that it cannot take.
    """
    policy = policy_of(root)
    pagers = frozenset(channel.name for channel in root.notify.channels if channel.kind == "pagerduty")
    listener = WebhookMetrics(metrics)
    intake = AlertIntake(
        Intake(root.webhook, Routes(root.webhook), policy.listeners, pagers),
        None if store is None else AlertBook(store),
        hands,
        clock,
        listener,
        IncidentFiles(incidents, redact=redact),
        canaries=canaries,
        wake_delivery=wake_delivery,
        problem=problem,
    )
    listener.problem = lambda: intake.problem
    outage = OutageWatch(lambda: intake.unstored, policy.listeners, clock, send_unstored)
    return Webhook(root.webhook, intake, listener, acknowledgements, clock, outage)


def message_links(root: Root, environ: Mapping[str, str]) -> Links:
    """Return where messages lead. A secret that cannot be had costs the link that acknowledges, and nothing else."""
    webhook = root.webhook
    address = None
    if webhook.public_url:
        try:
            secret = ack_secret_of(webhook, environ)
        except ConfigError as error:
            log.error("%s; messages carry no link that acknowledges", error)
            secret = None
        if secret is not None:
            address = AckAddress(webhook.public_url, secret, webhook.ack_seconds)
    return Links(root.monitoring.runbook_base_url, root.monitoring.grafana_url, address)


async def serve_webhook(
    root: Root,
    paths: StatePaths,
    environ: Mapping[str, str],
    ready: Callable[[int], None],
    *,
    late_secrets: bool = False,
) -> None:
    """
    Serve the webhook by itself, and deliver what it queues, until SIGTERM or SIGINT.

    Args:
        late_secrets: Channels' secrets may come after the start.

    Raises:
        Refused: A guard has this state; or a route trips, which needs one.
        ConfigError, OSError: It cannot listen, or a channel cannot be used.
        StateError: The state cannot be had.
    """
    tripping = [route.name for route in root.webhook.routes if any(a.do == "trip" for a in route.actions)]
    if tripping:
        raise Refused(f"webhook: route {tripping[0]} trips, which needs a guard; set webhook.enabled and run the guard")
    # What would keep it from listening is said before anything is made.
    doors = webhook_problems(root.webhook, environ)
    problems = [*doors.missing, *doors.unusable]
    channels = await checked_channels(root, environ)
    if channels.missing and not late_secrets:
        problems += [*channels.missing, LATE_CHANNELS]
    if problems := [*channels.unusable, *problems]:
        raise ConfigError(problems)
    for sentence in channels.missing:
        log.warning("pages nobody by this yet: %s", sentence)
    for where in channels.unchecked:
        log.warning("%s: could not be checked in time; see sre notify check", where)
    paths.create()
    lock = StackLock(paths.run / "guard.lock")
    if not lock.acquire():
        raise Refused(f"webhook: {held_by(lock.holder(), paths.root)}")
    try:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with contextlib.AsyncExitStack() as stack:
            clock = SystemClock()
            store = GuardStore.open(paths.guard_db, clock=clock, boot_id=proc.boot_id())
            stack.callback(store.close)
            sender = AppriseSender(environ)
            if root.notify.channels:
                await stack.enter_async_context(sender)
            render = Renderer(root.notify, load_templates(root.notify), message_links(root, environ))
            delivery = Delivery(store, root.notify, clock, sender, rng=random.Random(), render=render)
            webhook = make_webhook(
                root,
                store,
                NoGuard(),
                clock,
                Metrics(),
                incidents=paths.incidents,
                redact=Redaction(root, environ, clock),
                canaries=Canaries(clock),
                wake_delivery=delivery.wake,
                send_unstored=delivery.send_unstored,
                problem="",
                acknowledgements=Acknowledgements(
                    store, told_of_acknowledgement(root.notify.channels), wake=delivery.wake
                ),
            )
            sending = asyncio.create_task(delivery.run())
            taking = asyncio.create_task(webhook.take_in())
            try:
                async with webhook.listening(environ) as port:
                    ready(port)
                    await stop.wait()
            finally:
                taking.cancel()
                await asyncio.gather(taking, return_exceptions=True)
                await delivery.stop()
                await sending
    finally:
        lock.release()


def serves_webhook(pid: int | None) -> bool:
    """Whether this process is ``sre webhook serve``, and no guard."""
    words = () if pid is None else proc.command_line(pid)
    return "webhook" in words and "serve" in words[words.index("webhook") :]


def held_by(pid: int | None, root: Path) -> str:
    """Say who holds the guard's lock in ``root``, and what to do."""
    if serves_webhook(pid):
        return f"another sre webhook serve (pid {pid}) has {root}; stop that one first, or use another --state-dir"
    return f"a guard with pid {pid} holds {root}; with webhook.enabled: true it serves the webhook itself"


def _sentence(settings: WebhookSettings, error: Exception) -> str:
    if isinstance(error, ConfigError):
        return "; ".join(error.problems)
    if isinstance(error, ssl.SSLError):
        return f"webhook.tls_certificate {settings.tls_certificate}: {error.reason or error}"
    if isinstance(error, FileNotFoundError | PermissionError) and settings.tls_certificate is not None:
        return f"webhook.tls_certificate: {error.strerror}"
    strerror = error.strerror if isinstance(error, OSError) else None
    return f"webhook: {settings.host} port {settings.port}: {strerror or error}"
