"""
What the load generator and its processes say to each other: pickled tuples, each behind its length.

Both ends are this program, started by itself, over pipes that nobody else has.
"""

from __future__ import annotations

import asyncio
import dataclasses
import operator
import pickle
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sre.gate.arrivals import TraceEntry
from sre.gate.records import Cause, Outcome, RequestRecord
from sre.gate.stages import StagePlan

_LENGTH = struct.Struct("!I")
_FIELDS = tuple(item.name for item in dataclasses.fields(RequestRecord))
_VALUES = operator.attrgetter(*_FIELDS)
_OUTCOME, _CAUSE = _FIELDS.index("outcome"), _FIELDS.index("cause")
_OUTCOMES = {one.value: one for one in Outcome}
_CAUSES = {one.value: one for one in Cause}

Row = tuple[Any, ...]
"""A record's fields in order, enumerations by value: a third of the cost of pickling the record."""


@dataclass(frozen=True, slots=True)
class Target:
    """
    Where requests go.

    Attributes:
        url: Base, without /v1.
        api: "completions" or "chat".
        model: As served.
        usage: Ask for usage in streams; off for a server that refuses the field.
    """

    url: str
    api: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    usage: bool = True

    @property
    def path_url(self) -> str:
        return f"{self.url}/v1/{'chat/completions' if self.api == 'chat' else 'completions'}"

    def headers(self) -> dict[str, str]:
        """Of every request. Compression would hold tokens back, and cost the client time."""
        out = {"Content-Type": "application/json", "Accept": "text/event-stream", "Accept-Encoding": "identity"}
        if self.api_key is not None:
            out["Authorization"] = f"Bearer {self.api_key}"
        return out


@dataclass(frozen=True, slots=True)
class StageOrder:
    """
    A stage for one process: make ready, say so, wait for ``Go``.

    Attributes:
        part, parts: Which share of the schedule.
        words: Prompt tokens wanted → words of filler.
        salt: Makes this pass's prompts new to every cache, and its request ids unique.
        max_in_flight: This process's share of the limit.
        ttft_limit_seconds: What ``News.over_limit`` counts against; None: nothing.
    """

    target: Target
    plan: StagePlan
    trace: tuple[TraceEntry, ...]
    part: int
    parts: int
    words: Mapping[int, int]
    salt: str
    max_in_flight: int
    request_timeout_seconds: float
    drain_seconds: float
    ttft_limit_seconds: float | None


@dataclass(frozen=True, slots=True)
class Ready:
    """The process has its share of the schedule: ``planned`` requests."""

    planned: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Go:
    """Moment 0 of the schedule, monotonic."""

    started_at: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Send nothing new, end what is in flight, report."""


@dataclass(frozen=True, slots=True)
class News:
    """
    What changed since the last.

    Attributes:
        rows: Requests that ended.
        samples: (number of the tenth of a second since moment 0, in flight).
        last: The stage is over for this process; the fields after it are its sums.
    """

    rows: Sequence[Row]
    samples: Sequence[tuple[int, int]]
    due: int
    sent: int
    in_flight: int
    over_limit: int
    last: bool = False
    stopped_at: float = 0.0
    cpu_seconds: float = 0.0
    loop_lags: Sequence[float] = ()


def row_of(record: RequestRecord) -> Row:
    values = list(_VALUES(record))
    values[_OUTCOME], values[_CAUSE] = record.outcome.value, record.cause.value
    return tuple(values)


def record_of(row: Row) -> RequestRecord:
    values = list(row)
    values[_OUTCOME], values[_CAUSE] = _OUTCOMES[row[_OUTCOME]], _CAUSES[row[_CAUSE]]
    return RequestRecord(*values)


def frame(message: object) -> bytes:
    """Bytes of ``message``."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


async def read_message(reader: asyncio.StreamReader) -> Any:
    """
    Return the next message.

    Raises:
        EOFError: The other end is gone.
    """
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EOFError from error
