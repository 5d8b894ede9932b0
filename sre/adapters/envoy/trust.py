"""Whether what the gateway reports about requests can be relied on. Pure: numbers and times come in."""

from __future__ import annotations

LOG_SILENT_SECONDS = 5.0
"""With a request open the gateway writes a line every 0.5 s; ten that do not come are no chance."""


class FilterTrust:
    """Follows the count of the outcome filter's errors, which only a restart of Envoy sets back."""

    def __init__(self) -> None:
        self._epoch: str | None = None
        self._errors: int | None = None

    def works(self, epoch: str, errors: int) -> bool:
        """
        Return whether no error was added since the last call.

        The first call of all only takes the count down: what was before it is history, and history is not judged.
        """
        before = errors if self._errors is None else self._errors
        if self._epoch is not None and epoch != self._epoch:
            before = 0
        self._epoch, self._errors = epoch, errors
        return errors <= before


class LogWatch:
    """Finds an access log that is missing: engines have requests, and no line of any comes."""

    def __init__(self) -> None:
        self._busy_since: float | None = None
        self._line_at = float("-inf")
        self._read_at = float("-inf")

    def counted(self, in_flight: float, now: float) -> None:
        """The engines together had ``in_flight`` requests at monotonic ``now``."""
        if in_flight <= 0:
            self._busy_since = None
        elif self._busy_since is None:
            self._busy_since = now

    def read(self, lines: int, now: float) -> None:
        """The log was read at monotonic ``now`` and had gained ``lines`` lines that are requests."""
        self._read_at = now
        if lines > 0:
            self._line_at = now

    def restarted(self) -> None:
        """Another Envoy runs: the requests that were counted are gone."""
        self._busy_since = None

    @property
    def seen(self) -> bool:
        """False: lines that must have come did not. Measured when the log was read, not by a reader that paused."""
        if self._busy_since is None:
            return True
        return self._read_at - max(self._busy_since, self._line_at) < LOG_SILENT_SECONDS
