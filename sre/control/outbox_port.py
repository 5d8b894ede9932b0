"""What the sender needs of the store, and the store of a guard that has none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from sre.actions.records import OutboxRow
from sre.notify.escalation import Escalation
from sre.notify.policy import Dispatch


class Outbox(Protocol):
    """Every call blocks, perhaps for good, and raises StateError; see ``sre.adapters.store``."""

    def lease(
        self, *, owner: str, seconds: float, channels: Collection[str], exclude: Collection[int], dispatch: Dispatch
    ) -> Sequence[OutboxRow]: ...

    def peek_due(
        self, *, channels: Collection[str], exclude: Collection[int], dispatch: Dispatch
    ) -> Sequence[OutboxRow]: ...

    def mark_sent(self, row_id: int, *, owner: str) -> bool: ...

    def mark_failed(
        self,
        row_id: int,
        *,
        owner: str,
        error: str,
        retry_after_seconds: float,
        fallback: str | None,
        unknown_outcomes: int,
    ) -> bool: ...

    def mark_dead(
        self, row_id: int, *, owner: str, error: str, fallback: str | None, unknown_outcomes: int
    ) -> bool: ...

    def bring_forward(self, channel: str, *, unknown_outcomes: int, exclude: Collection[int]) -> int | None: ...

    def divert(self, channel: str, fallback: str, reason: str) -> int: ...

    def escalate(self, escalation: Escalation) -> int: ...

    def release_leases(self, *, owner: str) -> int: ...

    def strand(self, known_channels: Collection[str], heirs: Mapping[str, Sequence[str]]) -> int: ...


class NoOutbox:
    """The outbox of a guard whose store cannot be trusted: nothing waits there, messages live in memory only."""

    def lease(
        self, *, owner: str, seconds: float, channels: Collection[str], exclude: Collection[int], dispatch: Dispatch
    ) -> Sequence[OutboxRow]:
        return ()

    def peek_due(
        self, *, channels: Collection[str], exclude: Collection[int], dispatch: Dispatch
    ) -> Sequence[OutboxRow]:
        return ()

    def mark_sent(self, row_id: int, *, owner: str) -> bool:
        return False

    def mark_failed(
        self,
        row_id: int,
        *,
        owner: str,
        error: str,
        retry_after_seconds: float,
        fallback: str | None,
        unknown_outcomes: int,
    ) -> bool:
        return False

    def mark_dead(self, row_id: int, *, owner: str, error: str, fallback: str | None, unknown_outcomes: int) -> bool:
        return False

    def bring_forward(self, channel: str, *, unknown_outcomes: int, exclude: Collection[int]) -> int | None:
        return None

    def divert(self, channel: str, fallback: str, reason: str) -> int:
        return 0

    def escalate(self, escalation: Escalation) -> int:
        return 0

    def release_leases(self, *, owner: str) -> int:
        return 0

    def strand(self, known_channels: Collection[str], heirs: Mapping[str, Sequence[str]]) -> int:
        return 0
