"""XID counts of one GPU over the lives of several reader processes, each of which counts from zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sre.signals.types import GpuDetails


@dataclass(frozen=True, slots=True)
class XidTotals:
    """
    Attributes:
        ended: (XID → events) of the processes that are gone.
        living: The same of the present one.
        last: The last XID; None: no process could listen so far.
    """

    ended: Mapping[int, int] = field(default_factory=dict)
    living: Mapping[int, int] = field(default_factory=dict)
    last: int | None = None

    def seen(self, details: GpuDetails | None) -> XidTotals:
        """After an answer of the present process."""
        if details is None or details.xid_last is None:
            return self
        return replace(self, living=dict(details.xid_events), last=details.xid_last or self.last or 0)

    def process_ended(self) -> XidTotals:
        """After the present process was given up."""
        return replace(self, ended=dict(self.events), living={})

    @property
    def events(self) -> tuple[tuple[int, int], ...]:
        """(XID, events) of all processes."""
        xids = sorted({*self.ended, *self.living})
        return tuple((xid, self.ended.get(xid, 0) + self.living.get(xid, 0)) for xid in xids)

    def put(self, details: GpuDetails | None, at: float) -> GpuDetails | None:
        """``details`` with the totals; where there are none, totals alone, or None while nothing is known."""
        if self.last is None:
            return details
        return replace(details or GpuDetails(at), xid_last=self.last, xid_events=self.events)
