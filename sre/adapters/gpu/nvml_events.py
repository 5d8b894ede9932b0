"""XID events through an NVML event set: the driver queues them, we look once per read and never wait."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import pynvml

MOST_PER_LOOK = 256
"""A GPU that breaks can raise XIDs faster than they are read; the rest waits for the next look."""


class XidEvents:
    """
    The XIDs of all GPUs since they were first listened to, by card: its UUID, since indices move when one is gone.

    The kernel's log keeps every XID in order; NVML does not: of several between two looks it gives the number, and the
    last XID for each of them. A GPU that cannot be listened to (no support, too few rights) is not in ``of``.
    """

    def __init__(self) -> None:
        self._set: Any = None
        self._cards: dict[int, str] = {}
        self._counts: dict[str, dict[int, int]] = {}
        self._last: dict[str, int] = {}

    def listen(self, handles: Mapping[str, Any]) -> None:
        """Listen to those of ``handles`` (by card) that are not listened to yet. Never raises."""
        for card, handle in handles.items():
            address = _address(handle)
            known, self._cards[address] = address in self._cards, card
            if not known:  # one try per GPU and session: what is not supported now is not in a second either
                self._register(card, handle)

    def _register(self, card: str, handle: Any) -> None:
        xid = pynvml.nvmlEventTypeXidCriticalError
        try:
            if not int(pynvml.nvmlDeviceGetSupportedEventTypes(handle)) & xid:
                return
            if self._set is None:
                self._set = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(handle, xid, self._set)
        except pynvml.NVMLError:
            return
        self._counts.setdefault(card, {})

    def look(self) -> None:
        """Take what the driver has queued. Never raises: what cannot be had now stays queued or is lost."""
        for _ in range(MOST_PER_LOOK if self._set is not None else 0):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError:
                return  # nothing queued (a timeout of 0), or a GPU that is gone; the others are asked again next time
            if not int(event.eventType) & pynvml.nvmlEventTypeXidCriticalError:
                continue
            card, xid = self._cards.get(_address(event.device)), int(event.eventData)
            if card in self._counts:
                self._counts[card][xid] = self._counts[card].get(xid, 0) + 1
                self._last[card] = xid

    def of(self, card: str) -> dict[str, Any]:
        """XID fields of ``GpuDetails``; empty for a GPU that is not listened to."""
        if card not in self._counts:
            return {}
        return {"xid_last": self._last.get(card, 0), "xid_events": tuple(sorted(self._counts[card].items()))}

    def forget_session(self) -> None:
        """NVML was shut down: set and handles are gone, the counts stay. ``listen`` begins anew."""
        self._set = None
        self._cards.clear()


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
