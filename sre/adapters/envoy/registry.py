"""Which requests are open and how the others ended, from the gateway's access log. Pure: lines and times come in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sre.actions.types import FinishedRequest, InFlightRequest, Outcome
from sre.adapters.envoy.judgement import Judgement, is_completion, judge, shows_progress
from sre.adapters.envoy.line import LogLine, parse
from sre.signals.types import OutcomeCounts, Reading

SILENT_SECONDS = 2.5
"""After a restart of Envoy or of the guard: an open request without a line for this long belongs to the past. Envoy
writes a line per open request every 0.5 s."""
LOST_SECONDS = 60.0
"""An open request without a line for this long is dropped in any case: its last line was lost (disk full)."""
MAX_OPEN = 20_000
"""More open requests than this are not kept apart: the oldest are dropped and counted."""
NO_COUNTS = OutcomeCounts()
RETRIED = Judgement(Outcome.FAILURE, "retried")
CUT_BY_GATEWAY = Judgement(Outcome.NEUTRAL, "cut_by_gateway")
"""The gateway ended, not the engine."""


@dataclass(slots=True)
class _Open:
    """One open request; ``seen`` is the monotonic time of its latest line, ``suspect`` whether it may be dead."""

    line: LogLine
    seen: float
    engine: str | None = None
    suspect: bool = False


class RequestRegistry:
    """
    Follows requests by id.

    Attributes:
        engines: Engine name by upstream address (``host:port``); may grow when addresses change.
        pools: Pool by cluster name.
        odd_lines: Lines that were no request, e.g. torn by a crash.
        dropped: Open requests given up without having seen their end.
        filter_works: False: the outcome filter reported errors; completions are not judged.
    """

    def __init__(self, engines: Mapping[str, str], pools: Mapping[str, str]) -> None:
        self.engines = dict(engines)
        self.pools = dict(pools)
        self.odd_lines = 0
        self.dropped = 0
        self.filter_works = True
        self._open: dict[str, _Open] = {}
        self._counts: dict[str, OutcomeCounts] = {}
        self._sent: Counter[str] = Counter()
        self._tries: dict[str, list[str]] = {}

    def feed(self, raw: bytes, now: float, *, history: bool = False) -> FinishedRequest | None:
        """
        Take one line of the log, read at monotonic ``now``; return the request if the line ended one.

        Args:
            history: The line was written before we began to look: it opens and closes requests, but counts nothing.
        """
        try:
            line = parse(raw)
        except (ValueError, OverflowError):
            self.odd_lines += 1
            return None
        if line.kind == "DownstreamEnd":
            return self._end(line, history=history)
        if line.kind.startswith("Upstream"):
            self._try_failed(line)
        else:
            self._progress(line, now, history=history)
        return None

    def _engine(self, line: LogLine) -> str | None:
        return None if line.upstream is None else self.engines.get(line.upstream)

    def _model(self, line: LogLine) -> str | None:
        cluster = line.cluster or (line.route or "").partition("@")[2]
        return self.pools.get(cluster)

    def _try_failed(self, line: LogLine) -> None:
        """A try on one engine failed; whether it was the last one shows at the end of the request."""
        engine = self._engine(line)
        if engine is not None and len(self._tries) < MAX_OPEN:
            self._tries.setdefault(line.request_id, []).append(engine)

    def _progress(self, line: LogLine, now: float, *, history: bool) -> None:
        known = self._open.pop(line.request_id, None)
        entry = _Open(line, now, self._engine(line), suspect=history)
        self._open[line.request_id] = entry  # moved to the end: the dict is ordered by the latest line
        if not history:
            self._count_bytes(entry.engine, line, known)
        if len(self._open) > MAX_OPEN:
            self._open.pop(next(iter(self._open)))
            self.dropped += 1

    def _count_bytes(self, engine: str | None, line: LogLine, known: _Open | None) -> None:
        if engine is not None and shows_progress(line):
            before = known.line.bytes_sent if known is not None and known.engine == engine else 0
            self._sent[engine] += max(0, line.bytes_sent - before)

    def _end(self, line: LogLine, *, history: bool) -> FinishedRequest | None:
        known = self._open.pop(line.request_id, None)
        tries = self._tries.pop(line.request_id, [])
        if history:
            return None
        verdict = judge(line, filter_works=self.filter_works)
        if self.filter_works or not is_completion(line):
            for failed in tries[: max(0, line.attempts - 1)]:
                self._count(failed, RETRIED)
        engine = None if verdict.refused else self._engine(line)
        if engine is not None:
            self._count(engine, verdict)
            self._count_bytes(engine, line, known)
        return self._finished(line, engine, verdict)

    def _finished(self, line: LogLine, engine: str | None, verdict: Judgement) -> FinishedRequest:
        return FinishedRequest(
            request_id=line.request_id,
            path=line.path,
            model=self._model(line),
            engine=engine,
            client=line.client,
            started_wall=line.started,
            duration_seconds=line.duration_seconds,
            status=line.status,
            outcome=verdict.outcome,
            detail=verdict.detail,
            attempts=line.attempts,
            bytes_sent=line.bytes_sent,
        )

    def _count(self, engine: str, verdict: Judgement) -> None:
        old = self._counts.get(engine, NO_COUNTS)
        failed, succeeded = verdict.outcome is Outcome.FAILURE, verdict.outcome is Outcome.SUCCESS
        self._counts[engine] = OutcomeCounts(
            success=old.success + succeeded,
            failure=old.failure + failed,
            neutral=old.neutral + (not failed and not succeeded),
            consecutive_failures=0 if succeeded else old.consecutive_failures + failed,
            client_aborts=old.client_aborts + verdict.client_abort,
        )

    def suspect_all(self) -> None:
        """Envoy was restarted: requests that show no further sign of life are of the old process."""
        for entry in self._open.values():
            entry.suspect = True
        self._tries.clear()

    def expire(self, now: float) -> list[FinishedRequest]:
        """Close what is silent for too long at monotonic ``now``; return requests that the gateway's own end cut."""
        cut = []
        for request_id, entry in list(self._open.items()):
            silent = now - entry.seen
            if silent <= SILENT_SECONDS:
                break  # ordered by the latest line
            if entry.suspect:
                del self._open[request_id]
                cut.append(self._finished(entry.line, entry.engine, CUT_BY_GATEWAY))
            elif silent > LOST_SECONDS:
                del self._open[request_id]
                self.dropped += 1
        return cut

    def in_flight(self, now: float) -> list[InFlightRequest]:
        """Return the open requests at monotonic ``now``, oldest first."""
        out = [
            InFlightRequest(
                request_id=request_id,
                path=entry.line.path,
                model=self._model(entry.line),
                engine=entry.engine,
                client=entry.line.client,
                started_wall=entry.line.started,
                age_seconds=entry.line.duration_seconds + max(0.0, now - entry.seen),
                max_tokens=entry.line.max_tokens,
                # The first bytes of an answer that goes on make it a stream; before them it is not known.
                stream=True if entry.line.bytes_sent > 0 else None,
                bytes_sent=entry.line.bytes_sent,
            )
            for request_id, entry in self._open.items()
        ]
        return sorted(out, key=lambda r: (r.started_wall, r.request_id))

    def outcomes(self) -> dict[str, OutcomeCounts]:
        """Return the verdicts so far, by engine name; engines without any are present with zeros."""
        return {name: self._counts.get(name, NO_COUNTS) for name in self.engines.values()} | self._counts

    def sent_bytes(self, now: float) -> dict[str, Reading]:
        """Return the bytes of completions so far, by engine name; other answers need no engine step."""
        return {name: Reading.of(float(self._sent[name]), now) for name in {*self.engines.values(), *self._sent}}
