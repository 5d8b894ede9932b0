"""Server-sent events, read from bytes however they were cut (WHATWG HTML, 9.2.6)."""

from __future__ import annotations

MOST_BYTES = 16 << 20
"""Of one event. A server that sends more is no OpenAI-compatible one (our estimate: answers are a hundredth of it)."""
_BOM = b"\xef\xbb\xbf"


Event = tuple[bytes, bytes]
"""(name, data) of one event: the name is empty unless the server gave one; lines of data are joined by a line feed."""


class TooLong(ValueError):
    """An event has no end."""


class SseParser:
    """
    Feed it bytes; it gives the events they complete. Lines end with CR, LF or CRLF, also where the two bytes of a CRLF
    come apart. Comments, ids and unknown fields are passed over; an event without data is none.
    """

    __slots__ = ("_data", "_name", "_rest", "_size", "_skip_line_feed", "_started")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._name = b""
        self._size = 0
        self._skip_line_feed = False
        self._started = False

    @property
    def between_events(self) -> bool:
        """Nothing of an event that has not ended is held: what comes next begins one."""
        return self._started and not (self._rest or self._data or self._name or self._skip_line_feed)

    def pass_over(self) -> None:
        """Whole events were read elsewhere: what comes next is no beginning. Only between events, or before all."""
        self._started = True

    def feed(self, chunk: bytes) -> list[Event]:
        """
        Return the events that end in ``chunk``.

        Raises:
            TooLong: More than ``MOST_BYTES`` without an end.
        """
        if not chunk:
            return []
        if self._skip_line_feed:
            self._skip_line_feed = False
            if chunk[0] == 10:
                chunk = chunk[1:]
        text = self._rest + chunk if self._rest else chunk
        if not self._started:
            if len(text) < 3 and _BOM.startswith(text):
                self._rest = text
                return []
            self._started = True
            text = text.removeprefix(_BOM)
        events: list[Event] = []
        lines = text.splitlines(keepends=True)
        self._rest = b""
        if lines:
            last = lines[-1]
            if last.endswith(b"\r"):
                self._skip_line_feed = True
            elif not last.endswith(b"\n"):
                self._rest = lines.pop()
                if len(self._rest) + self._size > MOST_BYTES:
                    raise TooLong(f"more than {MOST_BYTES} bytes without the end of an event")
        for line in lines:
            line = line.rstrip(b"\r\n")
            if line:
                self._field(line)
            elif self._data or self._name:
                self._end(events)
        return events

    def finish(self) -> list[Event]:
        """
        The stream is over. An event without its blank line is dropped, as the standard says, but for the end mark:
        ``data: [DONE]`` is as clear without.
        """
        events: list[Event] = []
        if self._rest:
            self._field(self._rest)
            self._rest = b""
        if self._data == [b"[DONE]"]:
            self._end(events)
        return events

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._size += len(value)
            if self._size > MOST_BYTES:
                raise TooLong(f"more than {MOST_BYTES} bytes without the end of an event")
        elif name == b"event":
            self._name = value.removeprefix(b" ")

    def _end(self, events: list[Event]) -> None:
        if self._data:
            events.append((self._name, self._data[0] if len(self._data) == 1 else b"\n".join(self._data)))
        self._data, self._name, self._size = [], b"", 0
