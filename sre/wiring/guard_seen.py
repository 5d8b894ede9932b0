"""Whether a guard runs for a state folder, also where its files are not there any more."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from sre.settings.paths import StatePaths
from sre.stack.processes import GUARD_NAME
from sre.wiring.stack import make_host

CONNECT_SECONDS = 1.0


def guard_seen(paths: StatePaths) -> str | None:
    """
    Return by what a guard of the stack in ``paths`` is known to run; None where none is seen.

    By the marks in its environment, which know where the folder was, else by its socket. One that was started by hand
    (``sre guard run``), and whose folder was moved away, is not seen.
    """
    for found in make_host(paths, os.environ, Path("/")).marked():
        if found.name == GUARD_NAME and "guard" in found.argv and "run" in found.argv:  # no child of it
            return f"pid {found.identity.pid}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(CONNECT_SECONDS)
        try:
            asking.connect(str(paths.guard_socket))
        except OSError:  # no such file, nobody listens, too long a path
            return None
    return f"it listens on {paths.guard_socket}"
