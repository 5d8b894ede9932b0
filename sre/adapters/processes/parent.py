"""A child that must not outlive its parent, whatever state it is in."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """
    Be killed when ``parent`` (the thread that started us) ends; exit when it has ended already.

    By the kernel: the end of a pipe is not read by a process that is stopped, or hangs in a call.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)
