"""
An HTTP/1.1 response, read from bytes however they were cut: its head, and what of the rest is body.

llhttp (``httptools``) reads; what it lets through and we did not ask for is refused here.
"""

from __future__ import annotations

import httptools

MOST_HEAD_BYTES = 64 << 10
"""Of status line and headers, and of whatever else comes between two pieces of body: sizes of chunks, trailers."""


class ResponseReader:
    """
    Reads one response to a POST.

    Attributes:
        status: Of the head; None: it is not complete. Interim heads (1xx) are passed over.
        headers: By name in lower case; of one that came several times, the values with commas between.
        began: Some of the body came, and was taken.
        complete: The response's end is known and was reached.
        reusable: The connection may carry another request.
        unasked: Bytes came after the end.
        problem: Why what came is no response, or none that we asked for; None: it is one so far. Nothing is read from
            there on, and the connection is to be closed.
        ends_with_connection: No length was told: the body is what comes until the server closes.
    """

    __slots__ = (
        "_headers", "_parser", "_parts", "_silent_bytes", "began", "complete", "ends_with_connection", "headers",
        "problem", "reusable", "status", "unasked",
    )  # fmt: skip

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._silent_bytes = 0
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.began = False
        self.complete = False
        self.reusable = False
        self.unasked = False
        self.problem: str | None = None
        self.ends_with_connection = False

    def renew(self) -> None:
        """Be ready for the next response of this connection: one that is ``reusable``, and sent nothing unasked."""
        self.headers, self.status, self._silent_bytes = {}, None, 0
        self.began = self.complete = self.reusable = self.ends_with_connection = False

    def feed(self, data: bytes) -> bytes:
        """Return what of ``data`` is body: the same whole, however the bytes were cut."""
        if self.complete or self.problem is not None:
            self.unasked = True
            return b""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse("it switches protocols, unasked")
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except httptools.HttpParserError as error:
            # What comes after a whole response is nobody's business but the connection's.
            if self.complete:
                self.unasked = True
            else:
                self._refuse(str(error) or "what came is no HTTP/1.1 response")
        if not self._parts:
            self._silent_bytes += len(data)
            if self._silent_bytes > MOST_HEAD_BYTES and not self.complete:
                self._refuse(f"more than {MOST_HEAD_BYTES} bytes, and none of them body")
            return b""
        parts, self._parts, self._silent_bytes = self._parts, [], 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _refuse(self, why: str) -> None:
        if self.problem is None and not self.complete:
            self.problem, self.reusable = why, False

    # ---- called by the parser --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:
            self.unasked = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status is None:  # else: a trailer
            key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip(" \t")
            self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        status = self._parser.get_status_code()
        headers, self._headers = self._headers, {}
        if status < 200:
            return
        if not self._parser.get_http_version().startswith("1."):
            self._refuse("it is not HTTP/1.1")
        encoding = headers.get("content-encoding", "identity").lower()
        transfer = headers.get("transfer-encoding")
        if encoding != "identity":
            self._refuse(f"its body is compressed ({encoding[:20]}), which nobody asked for")
        if transfer is not None and transfer.lower() != "chunked":
            self._refuse(f"its transfer encoding is {transfer[:20]}")
        self.status, self.headers = status, headers
        sized = transfer is not None or "content-length" in headers or status in (204, 304)
        self.ends_with_connection = not sized
        self.reusable = sized and self.problem is None and self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        if not self.complete and self.problem is None:
            self.began = True
            self._parts.append(body)

    def on_message_complete(self) -> None:
        if self.status is not None and self.problem is None:
            self.complete = True
