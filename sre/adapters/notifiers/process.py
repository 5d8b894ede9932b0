"""The parent of a delivery worker: starts it, waits for its word, and ends it at the deadline."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sre.errors import ConfigError
from sre.notify.channels import kind_problems, recipient_problems, url_problems
from sre.notify.delivery import DeliveryResult, Verdict
from sre.notify.forms import Rendered
from sre.notify.outcomes import Cause, Outcome
from sre.redaction import redact, secrets_of_url
from sre.settings.notify import ChannelSettings
from sre.settings.secrets import resolve_secret

WORKER = (sys.executable, "-P", "-m", "sre.adapters.notifiers.worker")
# -P: a file apprise.py in the working folder is not what we mean.

CAUSES = frozenset({None, *(cause.value for cause in Cause)})
LONGEST_ANSWER_BYTES = 64 * 1024
LONGEST_STDERR_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class ChannelCheck:
    """What is to be said about a channel's URL before anything is sent."""

    shown: str
    """The URL without secrets; empty when Apprise cannot use it."""
    problems: Sequence[str]
    """Empty when it can be used; sentences without secrets."""


class AppriseSender:
    """Delivers through Apprise. Secrets are looked up anew for each delivery, so that a changed file is enough."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

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

    async def check(self, channel: ChannelSettings) -> ChannelCheck:
        """
        Parse the channel's URL as a delivery would; send nothing. Never raises but CancelledError.

        What Apprise only warns of (a malformed number that it skips) is a problem here: the page would go nowhere.
        """
        try:
            url = self._url(channel)
        except ConfigError as error:
            return ChannelCheck("", error.problems)
        problems = [*url_problems(url), *kind_problems(url, channel.kind)]
        result, answer = await self._run({"mode": "check"}, url, channel.timeout_seconds)
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
            process = await asyncio.create_subprocess_exec(
                *WORKER,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LONGEST_ANSWER_BYTES,
                start_new_session=True,
                env=dict(self._environ),
            )
        except OSError as error:
            return result_of(Outcome(Cause.LOCAL, f"the delivery process cannot be started: {error.strerror}")), {}
        stderr = asyncio.ensure_future(_read_start(process.stderr))
        try:
            try:
                async with asyncio.timeout(timeout_seconds):
                    answer = await _ask(process, line)
            except TimeoutError:
                limit = f"no outcome within {timeout_seconds:g} s; killed, it may have arrived"
                return result_of(Outcome(Cause.OUTCOME_UNKNOWN, limit)), {}
        finally:
            await _end(process)
            said = (await stderr).strip()
        if answer is None:
            last = said[-LONGEST_STDERR_CHARACTERS:].replace("\n", " ")
            why = f"the delivery process ended without an answer{': ' + last if last else ''}; it may have arrived"
            return result_of(Outcome(Cause.OUTCOME_UNKNOWN, redact(why, secrets))), {}
        detail = redact(str(answer.get("detail", "")), secrets)
        if answer["cause"] is None:
            return DeliveryResult(Verdict.DELIVERED, detail), answer
        return result_of(Outcome(Cause(answer["cause"]), detail, answer.get("retry_after_seconds"))), answer


def result_of(outcome: Outcome) -> DeliveryResult:
    """Return the result of a try that did not deliver."""
    return DeliveryResult(outcome.verdict, outcome.detail, outcome.retry_after_seconds, outcome.cause)


async def _ask(process: asyncio.subprocess.Process, line: bytes) -> dict[str, Any] | None:
    """Hand the task over and return the answer; None when the worker ended or broke off instead."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(line)
        await process.stdin.drain()
        answer = json.loads(await process.stdout.readline())
    except (OSError, ValueError):  # ValueError: nothing, half a line, or a line over the limit
        return None
    return answer if isinstance(answer, dict) and answer.get("cause") in CAUSES else None


async def _read_start(stream: asyncio.StreamReader | None) -> str:
    """Return the start of what a worker writes to stderr: a traceback of a broken installation."""
    assert stream is not None
    kept = b""
    while chunk := await stream.read(4096):
        kept = (kept + chunk)[: 4 * LONGEST_STDERR_CHARACTERS * 4]
    return kept.decode("utf-8", "replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the worker's process group and wait for it, also when cancelled meanwhile."""
    if process.returncode is None:
        # The worker never ends by itself while we hold its stdin, so the group is still its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.stdin is not None
    process.stdin.close()
    await asyncio.shield(process.wait())
