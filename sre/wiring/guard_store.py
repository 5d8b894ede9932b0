"""What the guard shows of its store: read beside loop and writer, so that no disk can freeze the guard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sre.actions.records import JournalRow, OutboxLoad
from sre.adapters.clock import SystemClock
from sre.adapters.processes import proc
from sre.adapters.store import GuardStore, StoreReader
from sre.clock import Clock
from sre.control.blocking import BlockingCalls
from sre.errors import StateError

log = logging.getLogger("sre.guard")

LOOK_SECONDS = 2.0
FRESH_SECONDS = 30.0
"""An older look at the outbox is not shown: a series that is missing says that nothing is known."""

REOPEN_SECONDS = 5.0
"""A store that could not be opened is looked for again after this: a full disk has room again, a person moved a damaged
file away."""


async def until_opens(path: Path, may: Callable[[], bool], opens: asyncio.Event) -> None:
    """
    Set ``opens`` once the store at ``path`` can be opened for writing.

    Args:
        may: Whether it is time; asked again and again.
    """
    clock, boot_id = SystemClock(), proc.boot_id()
    calls = BlockingCalls(f"guard state {path}")
    while True:
        await clock.sleep(REOPEN_SECONDS)
        if not may():
            continue
        try:
            await calls(lambda: GuardStore.open(path, clock=clock, boot_id=boot_id).close())
        except StateError:
            continue  # said when the guard began, and by its metrics
        log.warning("guard state %s can be had now; the guard begins anew with it", path)
        opens.set()
        return


class StoreView:
    """
    Reads the guard's store, each time through a connection of its own. Blocking; raises StateError.

    The writer's connection would not do: behind a commit that does not return, everybody waits.
    """

    def __init__(self, path: Path, *, clock: Clock, boot_id: str) -> None:
        self._path, self._clock, self._boot_id = path, clock, boot_id

    def outbox_load(self) -> Sequence[OutboxLoad]:
        with self._open() as store:
            return store.outbox_load()

    def unacknowledged(self) -> Mapping[str, int]:
        with self._open() as store:
            return store.unacknowledged()

    def journal(self, after: int, limit: int) -> Sequence[JournalRow]:
        """Of the newest ``limit`` rows those after ``after``, oldest first."""
        with self._open() as store:
            return [row for row in store.journal(limit=limit) if row.seq > after]

    def _open(self) -> StoreReader:
        return StoreReader.open_readonly(self._path, clock=self._clock, boot_id=self._boot_id)


def _nobody() -> Mapping[str, int]:
    return {}


class OutboxWatch:
    """
    Keeps the last look at what waits in the outbox, for whoever asks in the loop.

    Args:
        waiting: Incidents that wait for an acknowledgement, by severity.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[OutboxLoad]],
        clock: Clock,
        calls: BlockingCalls,
        waiting: Callable[[], Mapping[str, int]] = _nobody,
    ) -> None:
        self._read, self._waiting, self._clock, self._calls = read, waiting, clock, calls
        self._seen: tuple[float, Sequence[OutboxLoad], Mapping[str, int]] | None = None
        self._failing = False

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Look once. Never raises: what was seen before stays, and gets older."""
        began = self._clock.monotonic()
        try:
            self._seen = began, *await self._calls(lambda: (self._read(), self._waiting()))
        except StateError as error:
            if not self._failing:
                log.error("%s; /metrics shows no outbox meanwhile", error)
            self._failing = True
        else:
            self._failing = False

    def loads(self) -> Sequence[OutboxLoad] | None:
        """Per channel that has any; None when nothing is known that is younger than ``FRESH_SECONDS``."""
        if self._seen is None:
            return None
        at, loads, _ = self._seen
        age = self._clock.monotonic() - at
        if age > FRESH_SECONDS:
            return None
        return [
            load if load.oldest_seconds is None else replace(load, oldest_seconds=load.oldest_seconds + age)
            for load in loads
        ]

    def unacknowledged(self) -> Mapping[str, int] | None:
        """Incidents that wait for an acknowledgement, by severity; None when nothing is known, as for ``loads``."""
        if self._seen is None or self._clock.monotonic() - self._seen[0] > FRESH_SECONDS:
            return None
        return self._seen[2]
