"""
Messages between the simulated engine's API server and its core: batches of tuples over a Unix stream socket.

Both ends are the same Python, started one by the other, so ``marshal`` serves: it is the fastest for plain tuples. A
frame is a length (4 bytes, little endian) and one marshalled list of messages; a message is a tuple that begins with
its name.
"""

from __future__ import annotations

import marshal
import struct
from typing import Any

Message = tuple[Any, ...]

# API server → core
ADD = "add"  # id, prompt tokens, output tokens, finish, priority, hashes, arrived at
ABORT = "abort"  # ids
CALL = "call"  # call id, name, argument
# core → API server
READY = "ready"  # pid
REPORT = "report"  # see pack_report
REPLY = "reply"  # call id, value

_LENGTH = struct.Struct("<I")
LONGEST_FRAME_BYTES = 256 << 20


def pack(messages: list[Message]) -> bytes:
    """One frame."""
    body = marshal.dumps(messages)
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Takes bytes as they come, gives the messages of whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Messages that ``data`` completed."""
        buffer = self._buffer
        buffer += data
        messages: list[Message] = []
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            end = at + _LENGTH.size + length
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:
                messages.extend(marshal.loads(view[at + _LENGTH.size : end]))
            at = end
        if at:
            del buffer[:at]
        return messages
