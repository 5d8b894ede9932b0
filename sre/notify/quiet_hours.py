"""When messages that can wait do wait: a daily stretch of local time."""

from __future__ import annotations

import zoneinfo
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from sre.settings.notify import QuietHoursSettings


@dataclass(frozen=True, slots=True)
class QuietHours:
    """
    From ``start`` to ``end`` each day, over midnight where the end is earlier than the start.

    Both are local times of ``zone``: where clocks are set forward or back in between, the night is shorter or longer.
    A time that comes twice is its first; one that a clock leaves out is as long after midnight as on other days.
    """

    start: time
    end: time
    zone: tzinfo
    severities: frozenset[str]

    def until(self, wall: float) -> float | None:
        """Return when the quiet hours end that ``wall`` (Unix time) lies in; None outside of any."""
        try:
            today = datetime.fromtimestamp(wall, self.zone).date()
            # Yesterday's may not be over; today's may have begun.
            for day in (today - timedelta(days=1), today):
                begins, ends = self._of(day)
                if begins <= wall < ends:
                    return ends
        except (OverflowError, ValueError, OSError):
            return None  # a clock so far off that no calendar has the day: nothing is held back
        return None

    def _of(self, day: date) -> tuple[float, float]:
        last = day if self.end > self.start else day + timedelta(days=1)
        return self._moment(day, self.start), self._moment(last, self.end)

    def _moment(self, day: date, at: time) -> float:
        return datetime.combine(day, at, tzinfo=self.zone).timestamp()


def quiet_hours_of(settings: QuietHoursSettings) -> QuietHours:
    """
    Return the quiet hours that ``settings`` name.

    Raises:
        zoneinfo.ZoneInfoNotFoundError: This machine knows no such zone; a checked configuration has none such.
    """
    # UTC needs no data of zones, which a small container may lack.
    zone: tzinfo = UTC if settings.timezone == "UTC" else zoneinfo.ZoneInfo(settings.timezone)
    return QuietHours(
        time.fromisoformat(settings.start), time.fromisoformat(settings.end), zone, frozenset(settings.severities)
    )
