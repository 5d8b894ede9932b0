"""What is known of notification channels before anything is sent: secrets there, URLs and numbers understood."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sre.adapters.notifiers.process import AppriseSender
from sre.errors import ConfigError, SecretMissing
from sre.settings.models import Root
from sre.settings.secrets import resolve_secret

log = logging.getLogger("sre.notify")

CHECK_SECONDS = 20.0
"""All channels are checked at once, in processes that read Apprise in: a second, more where no core is free."""


@dataclass(frozen=True, slots=True)
class ChannelProblems:
    """Sentences that begin with the setting and hold no secret."""

    missing: tuple[str, ...] = ()
    """Secrets that are not there; they may come."""
    unusable: tuple[str, ...] = ()
    """URLs and numbers that are there, and would take no message anywhere."""
    unchecked: tuple[str, ...] = ()
    """Settings of which nothing was found out in time."""


def missing_channel_secrets(root: Root, environ: Mapping[str, str]) -> list[str]:
    """Channels' secrets that are not there, one sentence each; at once."""
    return [sentence for found in _secrets(root, environ) for sentence in found.missing]


async def checked_channels(
    root: Root, environ: Mapping[str, str], *, seconds: float = CHECK_SECONDS, sender: AppriseSender | None = None
) -> ChannelProblems:
    """
    Say what ``sre notify check`` says of every channel. Sends nothing; takes ``seconds`` at most.

    Args:
        sender: One that has read Apprise in already; without it one is made.
    """
    secrets = _secrets(root, environ)
    missing = tuple(sentence for found in secrets for sentence in found.missing)
    unusable = [sentence for found in secrets for sentence in found.unusable]
    there = [
        (index, channel)
        for index, (channel, found) in enumerate(zip(root.notify.channels, secrets, strict=True))
        if not found.missing and not found.unusable
    ]
    if not there:
        return ChannelProblems(missing, tuple(unusable))
    async with contextlib.AsyncExitStack() as stack:
        asked = await stack.enter_async_context(AppriseSender(environ)) if sender is None else sender
        looks = [asyncio.ensure_future(asked.check(channel, seconds=seconds)) for _, channel in there]
        try:
            await asyncio.wait(looks, timeout=seconds)
        finally:
            for look in looks:
                look.cancel()
            await asyncio.gather(*looks, return_exceptions=True)
    unchecked: list[str] = []
    for (index, _), look in zip(there, looks, strict=True):
        where = f"notify.channels[{index}].url"
        if look.cancelled() or not look.result().checked:
            unchecked.append(where)
        else:
            unusable += [f"{where}: {problem}" for problem in look.result().problems]
    return ChannelProblems(missing, tuple(unusable), tuple(unchecked))


def channel_problems(root: Root, environ: Mapping[str, str], *, seconds: float = CHECK_SECONDS) -> ChannelProblems:
    """As ``checked_channels``, for callers inside and outside of an event loop; blocks."""
    with ThreadPoolExecutor(1, thread_name_prefix="channel-check") as pool:
        return pool.submit(lambda: asyncio.run(checked_channels(root, environ, seconds=seconds))).result()


async def log_channels(root: Root, environ: Mapping[str, str], sender: AppriseSender) -> None:
    """
    Say in the log which channels page nobody. The guard goes on: a URL that was spoiled while it ran must not cost the
    breaker at its next start; whoever starts the stack is refused by ``sre up``.
    """
    found = await checked_channels(root, environ, sender=sender)
    for sentence in found.missing:
        log.error("pages nobody by this yet: %s", sentence)
    for sentence in found.unusable:
        log.error("pages nobody by this: %s", sentence)
    for where in found.unchecked:
        log.warning("%s: could not be checked in time; see sre notify check", where)


def _secrets(root: Root, environ: Mapping[str, str]) -> list[ChannelProblems]:
    """What is known of each channel's secret before its content is looked at."""
    problems = []
    for index, channel in enumerate(root.notify.channels):
        try:
            resolve_secret(channel.url, f"notify.channels[{index}].url", environ)
        except SecretMissing as error:
            problems.append(ChannelProblems(missing=error.problems))
        except ConfigError as error:
            problems.append(ChannelProblems(unusable=error.problems))
        else:
            problems.append(ChannelProblems())
    return problems
