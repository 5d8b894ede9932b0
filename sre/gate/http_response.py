"""
An HTTP/1.1 response, read from bytes however they were cut (RFC 9112): its head, and what of the rest is body.

A client that measures others reads thousands of pieces a second; what a general one spends on each would be measured
as the server's slowness.
"""

from __future__ import annotations

import re
from functools import lru_cache

MOST_HEAD_BYTES = 64 << 10
"""Of status line and headers, and of trailers."""
MOST_SIZE_LINE_BYTES = 1 << 10
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")
_LENGTH = re.compile(r"[0-9]{1,18}")
_START = b"HTTP/1."

_HEAD, _CHUNKS, _TRAILERS, _SIZED, _UNTIL_CLOSE, _OVER = range(6)


class _NotHttp(ValueError):
    """Never leaves this module."""


class ResponseReader:
    """
    Reads one response to a POST.

    Attributes:
        status: Of the head; None: it is not complete. Interim heads (1xx) are passed over.
        headers: By name in lower case; of one that came several times, the values with commas between.
        complete: The response's end is known and was reached.
        reusable: The connection may carry another request.
        rest: Bytes that came after the end. Nobody asked for them.
        problem: Why what came is no response, or none that we asked for; None: it is one so far. Nothing is read from
            there on, and the connection is to be closed.
    """

    __slots__ = (
        "_after_chunk", "_buffer", "_left", "_state", "complete", "headers", "problem", "rest", "reusable", "status",
    )  # fmt: skip

    def __init__(self) -> None:
        self._state = _HEAD
        self._buffer = b""
        self._left = 0
        self._after_chunk = False
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.complete = False
        self.reusable = False
        self.rest = b""
        self.problem: str | None = None

    @property
    def ends_with_connection(self) -> bool:
        """No length was told: the body is what comes until the server closes."""
        return self._state == _UNTIL_CLOSE

    def feed(self, data: bytes) -> bytes:
        """Return what of ``data`` is body: the same whole, however the bytes were cut."""
        parts: list[bytes] = []
        try:
            if self._state == _CHUNKS and not (self._left or self._after_chunk or self._buffer):
                # Most of what comes is one whole chunk.
                begin = data.find(b"\r\n", 0, 20) + 2
                if data[-2:] == b"\r\n" and begin > 2 and 0 < _chunk_size(data[: begin - 2]) == len(data) - begin - 2:
                    return data[begin:-2]
            self._feed(data, parts)
        except _NotHttp as error:
            self.problem, self._state, self.reusable = str(error), _OVER, False
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _feed(self, data: bytes, parts: list[bytes]) -> None:
        state = self._state
        if state == _CHUNKS:
            self._chunks(data, parts)
        elif state == _UNTIL_CLOSE:
            parts.append(data)
        elif state == _SIZED:
            self._sized(data, parts)
        elif state == _HEAD:
            self._head(data, parts)
        elif state == _TRAILERS:
            self._trailers(data)
        else:
            self.rest += data

    # ---- head ------------------------------------------------------------------------------------------------------

    def _head(self, data: bytes, parts: list[bytes]) -> None:
        data = self._buffer + data if self._buffer else data
        while True:
            if not data.startswith(_START) and not _START.startswith(data):
                raise _NotHttp("what came does not begin as an HTTP/1.1 response does")
            end = data.find(b"\r\n\r\n")
            if end < 0 and len(data) <= MOST_HEAD_BYTES:
                self._buffer = data
                return
            if not 0 <= end <= MOST_HEAD_BYTES:
                raise _NotHttp(f"a head of more than {MOST_HEAD_BYTES} bytes")
            status, minor = self._parse(data[:end])
            data = data[end + 4 :]
            if status == 101:
                raise _NotHttp("it switches protocols, unasked")
            if status >= 200:
                break
        self._buffer = b""
        self._frame(status, minor)
        self.status = status
        if data:
            self._feed(data, parts)

    def _parse(self, head: bytes) -> tuple[int, int]:
        first, *lines = head.split(b"\r\n")
        found = _STATUS_LINE.fullmatch(first)
        if found is None:
            raise _NotHttp("its status line is none")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or _NAME.fullmatch(name) is None or b"\n" in value or b"\r" in value:
                raise _NotHttp("a line of its head is no header")
            key, text = name.decode("ascii").lower(), value.strip(b" \t").decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        self.headers = headers
        return int(found[2]), int(found[1])

    def _frame(self, status: int, minor: int) -> None:
        """Find how the body ends."""
        headers = self.headers
        encoding = headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            raise _NotHttp(f"its body is compressed ({encoding[:20]}), which nobody asked for")
        said = headers.get("connection", "").lower()
        self.reusable = "close" not in said if minor else "keep-alive" in said
        transfer, length = headers.get("transfer-encoding"), headers.get("content-length")
        if status in (204, 304):
            self._end(b"")
        elif transfer is not None:
            if transfer.lower() != "chunked":
                raise _NotHttp(f"its transfer encoding is {transfer[:20]}")
            self._state = _CHUNKS
            self.reusable = self.reusable and length is None  # both: somebody may be smuggling
        elif length is not None:
            lengths = {part.strip() for part in length.split(",")}
            if len(lengths) != 1 or _LENGTH.fullmatch(text := lengths.pop()) is None:
                raise _NotHttp("its content length is no number")
            self._state, self._left = _SIZED, int(text)
            if not self._left:
                self._end(b"")
        else:
            self._state, self.reusable = _UNTIL_CLOSE, False

    # ---- body ------------------------------------------------------------------------------------------------------

    def _chunks(self, data: bytes, parts: list[bytes]) -> None:
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        at, size, left = 0, len(data), self._left
        while True:
            if left:
                end = at + left
                parts.append(data[at:end])
                if end > size:
                    self._left = end - size
                    break
                at, left = end, 0
                self._left, self._after_chunk = 0, True
            if self._after_chunk:
                if size - at < 2:
                    self._buffer = data[at:]
                    break
                if data[at : at + 2] != b"\r\n":
                    raise _NotHttp("a chunk is longer than it said")
                at += 2
                self._after_chunk = False
            if at == size:
                break
            end = data.find(b"\r\n", at)
            if end < 0:
                if size - at > MOST_SIZE_LINE_BYTES:
                    raise _NotHttp("the size of a chunk has no end")
                self._buffer = data[at:]
                break
            left = _chunk_size(data[at:end])
            at = end + 2
            if not left:
                self._state = _TRAILERS
                self._trailers(data[at:])
                break
            self._left = left

    def _trailers(self, data: bytes) -> None:
        data = self._buffer + data
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            if end == at:
                self._end(data[at + 2 :])
                return
            at = end + 2
        self._buffer = data[at:]
        self._left += at
        if self._left + len(self._buffer) > MOST_HEAD_BYTES:
            raise _NotHttp(f"trailers of more than {MOST_HEAD_BYTES} bytes")

    def _sized(self, data: bytes, parts: list[bytes]) -> None:
        left = self._left
        parts.append(data[:left])
        self._left = max(0, left - len(data))
        if not self._left:
            self._end(data[left:])

    def _end(self, rest: bytes) -> None:
        self._buffer, self.rest = b"", rest
        self._state, self.complete = _OVER, True


@lru_cache(maxsize=4096)
def _chunk_size(line: bytes) -> int:
    found = _SIZE_LINE.fullmatch(line)
    if found is None:
        raise _NotHttp("the size of a chunk is no number")
    return int(found[1], 16)
