"""The parent of delivery workers: hands a task to a process, waits for its word, and ends it at the deadline."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from sre.adapters.notifiers.births import LONGEST_STDERR_CHARACTERS, Executed, Nursery, Worker
from sre.errors import ConfigError
from sre.notify.channels import kind_problems, recipient_problems, url_problems
from sre.notify.delivery import DeliveryResult, Verdict
from sre.notify.forms import Rendered
from sre.notify.outcomes import Cause, Outcome
from sre.printable import one_line
from sre.redaction import redact, secrets_of_url
from sre.settings.notify import ChannelSettings
from sre.settings.secrets import resolve_secret

log = logging.getLogger(__name__)

LONGEST_SHOWN = 500
"""Characters of a provider's words: each try writes them into the log."""
MAY_HAVE_ARRIVED = "it may have arrived"


@dataclass(frozen=True, slots=True)
class ChannelCheck:
    """What is to be said about a channel's URL before anything is sent."""

    shown: str
    """The URL without secrets; empty when Apprise cannot use it."""
    problems: Sequence[str]
    """Empty when it can be used; sentences without secrets."""
    checked: bool = True
    """False when nothing was found out in time: then ``problems`` says so."""


class AppriseSender:
    """
    Delivers through Apprise, each delivery in a process of its own. Secrets are looked up anew for each delivery, so
    that a changed file is enough.

    ``async with AppriseSender(environ) as sender`` keeps a nursery that forks the processes, which is much quicker;
    without it each one is started anew.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._nursery: Nursery | None = None
        self._starting: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        self._nursery = Nursery(self._environ)
        self._starting = asyncio.ensure_future(self._start())
        return self

    async def __aexit__(self, *_: object) -> None:
        nursery, self._nursery = self._nursery, None
        if self._starting is not None:
            await self._starting
        if nursery is not None:
            await nursery.close()

    async def _start(self) -> None:
        """Have the nursery ready before the first page; where that fails, the first delivery says so."""
        if self._nursery is not None:
            with contextlib.suppress(OSError):
                await self._nursery.start()

    async def __call__(self, channel: ChannelSettings, rendered: Rendered) -> DeliveryResult:
        """
        Try once to deliver ``rendered``; see ``sre.notify.delivery.Send``.

        A secret that cannot be found is a failure that is repeated: it may be put right while the guard runs.
        """
        try:
            url = self._url(channel)
        except ConfigError as error:
            return result_of(Outcome(Cause.NO_SECRET, str(error)))
        task = {
            "mode": "send",
            "title": rendered.title,
            "body": rendered.body,
            "html": rendered.html,
            "tone": rendered.tone.value,
            "key": rendered.key,
            "act": rendered.act.value,
            "parameters": dict(rendered.parameters),
        }
        result, _ = await self._run(task, url, channel.timeout_seconds)
        return result

    async def check(self, channel: ChannelSettings, *, seconds: float | None = None) -> ChannelCheck:
        """
        Parse the channel's URL as a delivery would, within ``seconds`` (else the channel's own limit); send nothing.
        Never raises but CancelledError.

        What Apprise only warns of (a malformed number that it skips) is a problem here: the page would go nowhere.
        """
        try:
            url = self._url(channel)
        except ConfigError as error:
            return ChannelCheck("", error.problems)
        problems = [*url_problems(url), *kind_problems(url, channel.kind)]
        seconds = channel.timeout_seconds if seconds is None else seconds
        result, answer = await self._run({"mode": "check"}, url, seconds)
        if result.cause is Cause.OUTCOME_UNKNOWN:
            # Nothing was sent: what is said of a delivery, that it may have arrived, does not fit.
            why = result.detail.removesuffix(MAY_HAVE_ARRIVED).rstrip(",; ")
            return ChannelCheck("", [*problems, f"could not be checked: {why}"], checked=False)
        if result.detail:
            problems.append(result.detail)
        if result.verdict is not Verdict.DELIVERED:
            return ChannelCheck("", problems)
        if answer["clear_password"]:
            problems.append("the password would be sent in clear; write mailtos:// or https, or ?mode=starttls")
        return ChannelCheck(str(answer["shown"]), [*problems, *recipient_problems(int(answer["targets"]))])

    def _url(self, channel: ChannelSettings) -> str:
        return resolve_secret(channel.url, f"notify channel {channel.name}: url", self._environ)

    async def _run(
        self, task: dict[str, Any], url: str, timeout_seconds: float
    ) -> tuple[DeliveryResult, dict[str, Any]]:
        deadline = time.monotonic() + timeout_seconds
        line = json.dumps({**task, "url": url, "deadline_monotonic": deadline}).encode() + b"\n"
        secrets = secrets_of_url(url)
        try:
            worker = await self._worker()
        except OSError as error:
            return result_of(Outcome(Cause.LOCAL, f"the delivery process cannot be started: {error.strerror}")), {}
        try:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    answer = await worker.ask(line)
            except TimeoutError:
                limit = f"no outcome within {timeout_seconds:g} s; killed, {MAY_HAVE_ARRIVED}"
                return result_of(Outcome(Cause.OUTCOME_UNKNOWN, limit)), {}
        finally:
            said = await worker.end()
        if answer is None:
            last = said[-LONGEST_STDERR_CHARACTERS:].replace("\n", " ")
            why = f"the delivery process ended without an answer{': ' + last if last else ''}; {MAY_HAVE_ARRIVED}"
            return result_of(Outcome(Cause.OUTCOME_UNKNOWN, redact(why, secrets))), {}
        detail = _shown(redact(str(answer.get("detail", "")), secrets))
        if answer["cause"] is None:
            return DeliveryResult(Verdict.DELIVERED, detail), answer
        return result_of(Outcome(Cause(answer["cause"]), detail, answer.get("retry_after_seconds"))), answer

    async def _worker(self) -> Worker:
        """Return a process for one delivery. Raises OSError."""
        if self._nursery is not None:
            try:
                return await self._nursery.bear()
            except OSError as error:
                log.warning("%s; a process is started instead", error)
        return await Executed.start(self._environ)


def _shown(text: str) -> str:
    """
    A provider's words as logs and lists hold them: on one line, so that none of them looks like a line of ours. They
    are cut here, far before the worker cuts them: half a secret, at that cut, would not be known as one.
    """
    line = one_line(text.encode("utf-8", "replace").decode())
    return line if len(line) <= LONGEST_SHOWN else f"{line[: LONGEST_SHOWN - 3]}..."


def result_of(outcome: Outcome) -> DeliveryResult:
    """Return the result of a try that did not deliver."""
    return DeliveryResult(outcome.verdict, outcome.detail, outcome.retry_after_seconds, outcome.cause)
