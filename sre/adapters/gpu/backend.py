"""What the child process reads GPUs from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sre.signals.types import GpuSeen


class BackendFailed(Exception):
    """This source cannot be read at all now. The text is a sentence for the operator."""


class NotHere(BackendFailed):
    """This machine does not have the source: no library, no driver, no GPU. Another source may stand in."""


class Backend(Protocol):
    """A source of GPU facts. May block for ever: only the child process calls it."""

    source: str

    def read(self) -> Sequence[GpuSeen]:
        """All GPUs, by index. A field that cannot be read is a missing Reading. Raises BackendFailed."""
        ...
