"""Which requests are open and how the others ended, from the gateway's access log. Pure: lines and times come in."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sre.actions.types import FinishedRequest, InFlightRequest, Outcome
from sre.adapters.envoy.judgement import Judgement, judge
from sre.signals.types import OutcomeCounts, Reading

SILENT_SECONDS = 2.0
"""After a restart of Envoy or of the guard: an open request without a line for this long belongs to the past. Envoy
writes a line per open request every 0.25 s."""
LOST_SECONDS = 60.0
"""An open request without a line for this long is dropped in any case: its last line was lost (disk full)."""
MAX_OPEN = 20_000
"""More open requests than this are not kept apart: the oldest are dropped and counted."""
NO_COUNTS = OutcomeCounts()


@dataclass(slots=True)
class _Open:
    """One open request; ``seen`` is the monotonic time of its latest line, ``suspect`` whether it may be dead."""

    line: Mapping[str, Any]
    seen: float
    engine: str | None = None
    bytes_sent: int = 0
    suspect: bool = False


class RequestRegistry:
    """
    Follows requests by id.

    Args:
        engines: Engine name by upstream address; may be replaced when addresses change.
    """

    def __init__(self, engines: Mapping[str, str]) -> None:
        self.engines = dict(engines)
        self.odd_lines = 0
        """Lines that were no request, e.g. torn by a crash."""
        self.dropped = 0
        """Open requests given up without having seen their end."""
        self.rejections: Counter[str] = Counter()
        """Refusals by the gateway itself, by reason."""
        self.client_aborts = 0
        self._open: dict[str, _Open] = {}
        self._counts: dict[str, OutcomeCounts] = {}
        self._sent: Counter[str] = Counter()
        self._retried: dict[str, list[str]] = {}

    def feed(self, raw: bytes, now: float, *, history: bool = False) -> FinishedRequest | None:
        """
        Take one line of the log, read at monotonic ``now``; return the request if the line ended one.

        Args:
            history: The line was written before we began to look: it opens and closes requests, but counts nothing.
        """
        try:
            line = json.loads(raw)
            kind, request_id = line["type"], line["id"]
        except (ValueError, TypeError, KeyError):
            self.odd_lines += 1
            return None
        if not isinstance(request_id, str) or not isinstance(kind, str):
            self.odd_lines += 1
            return None
        try:
            if kind.startswith("Upstream"):
                self._attempt(request_id, line)
            elif kind == "DownstreamEnd":
                return self._end(request_id, line, history=history)
            else:
                self._progress(request_id, line, now, history=history)
        except (ValueError, TypeError, AttributeError):
            self.odd_lines += 1
        return None

    def _engine(self, line: Mapping[str, Any]) -> str | None:
        return self.engines.get(str(line.get("upstream")))

    def _attempt(self, request_id: str, line: Mapping[str, Any]) -> None:
        """A try on one engine failed; whether it was the last one shows at the end of the request."""
        engine = self._engine(line)
        if engine is not None and len(self._retried) < MAX_OPEN:
            self._retried.setdefault(request_id, []).append(engine)

    def _progress(self, request_id: str, line: Mapping[str, Any], now: float, *, history: bool) -> None:
        known = self._open.pop(request_id, None)
        entry = _Open(line, now, self._engine(line), int(line.get("tx") or 0), suspect=history)
        if known is not None and entry.engine is None:
            entry.engine = known.engine
        self._open[request_id] = entry  # moved to the end: the dict is ordered by the latest line
        if entry.engine is not None and not history:
            before = known.bytes_sent if known is not None and known.engine == entry.engine else 0
            self._sent[entry.engine] += max(0, entry.bytes_sent - before)
        if len(self._open) > MAX_OPEN:
            self._open.pop(next(iter(self._open)))
            self.dropped += 1

    def _end(self, request_id: str, line: Mapping[str, Any], *, history: bool) -> FinishedRequest | None:
        known = self._open.pop(request_id, None)
        tries = self._retried.pop(request_id, [])
        if history:
            return None
        engine = self._engine(line)
        verdict = judge(line)
        attempts = int(line.get("attempts") or 0)
        for failed in tries[: max(0, attempts - 1)]:
            self._count(failed, Judgement(Outcome.FAILURE, "retried"))
        sent = int(line.get("tx") or 0)
        if engine is not None:
            self._count(engine, verdict)
            before = known.bytes_sent if known is not None and known.engine == engine else 0
            self._sent[engine] += max(0, sent - before)
        if verdict.client_abort:
            self.client_aborts += 1
        reason = line.get("reason")
        if verdict.detail == "rejected_by_us":
            self.rejections[str(reason or "unknown")] += 1
        return FinishedRequest(
            request_id=request_id,
            path=str(line.get("path") or ""),
            model=_text(line.get("model")),
            engine=engine,
            client=str(line.get("client") or ""),
            started_wall=float(line.get("t") or 0.0),
            duration_seconds=float(line.get("dur") or 0) / 1000,
            status=int(line.get("status") or 0),
            outcome=verdict.outcome,
            detail=verdict.detail,
            attempts=attempts,
            bytes_sent=sent,
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
        self._retried.clear()

    def expire(self, now: float) -> list[FinishedRequest]:
        """Close what is silent for too long at monotonic ``now``; return requests that the gateway's own end cut."""
        cut = []
        for request_id, entry in list(self._open.items()):
            silent = now - entry.seen
            if silent <= SILENT_SECONDS:
                break  # ordered by the latest line
            if not entry.suspect and silent <= LOST_SECONDS:
                continue
            del self._open[request_id]
            if not entry.suspect:
                self.dropped += 1
                continue
            line = entry.line
            cut.append(
                FinishedRequest(
                    request_id=request_id,
                    path=str(line.get("path") or ""),
                    model=_text(line.get("model")),
                    engine=entry.engine,
                    client=str(line.get("client") or ""),
                    started_wall=float(line.get("t") or 0.0),
                    duration_seconds=float(line.get("dur") or 0) / 1000,
                    status=int(line.get("status") or 0),
                    outcome=Outcome.NEUTRAL,  # the gateway ended, not the engine
                    detail="cut_by_gateway",
                    attempts=int(line.get("attempts") or 0),
                    bytes_sent=entry.bytes_sent,
                )
            )
        return cut

    def in_flight(self, now: float) -> list[InFlightRequest]:
        """Return the open requests at monotonic ``now``, oldest first."""
        out = [
            InFlightRequest(
                request_id=request_id,
                path=str(entry.line.get("path") or ""),
                model=_text(entry.line.get("model")),
                engine=entry.engine,
                client=str(entry.line.get("client") or ""),
                started_wall=float(entry.line.get("t") or 0.0),
                age_seconds=float(entry.line.get("dur") or 0) / 1000 + max(0.0, now - entry.seen),
                max_tokens=_whole(entry.line.get("max_tokens")),
                stream=_flag(entry.line.get("stream")),
                bytes_sent=entry.bytes_sent,
            )
            for request_id, entry in self._open.items()
        ]
        return sorted(out, key=lambda r: (r.started_wall, r.request_id))

    def outcomes(self) -> dict[str, OutcomeCounts]:
        """Return the verdicts so far, by engine name; engines without any are present with zeros."""
        return {name: self._counts.get(name, NO_COUNTS) for name in self.engines.values()} | self._counts

    def sent_bytes(self, now: float) -> dict[str, Reading]:
        """Return the answer bytes so far, by engine name."""
        return {name: Reading.of(float(self._sent[name]), now) for name in {*self.engines.values(), *self._sent}}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: object) -> int | None:
    try:
        return int(float(str(value)))
    except (ValueError, OverflowError):
        return None


def _flag(value: object) -> bool | None:
    if value is None:
        return None
    return str(value).lower() in {"1", "true", "1.0"}
