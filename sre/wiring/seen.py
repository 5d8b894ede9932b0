"""What runs for a state folder, also where its files are not there any more."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from sre.adapters.processes import proc
from sre.adapters.processes.host import ProcessHost
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


def supervisor_seen(host: ProcessHost) -> int | None:
    """Return the pid of another living supervisor of this stack: of a parent of what carries its mark."""
    for found in host.marked():
        stat = proc.read_stat(found.identity.pid)
        if stat is None or stat.parent == os.getpid():
            continue
        argv = proc.command_line(stat.parent)
        if "up" in argv and any(Path(word).name == "sre" for word in argv[1:3]):  # python -m sre …, python …/bin/sre …
            return stat.parent
    return None


def moved_under(pid: int, root: Path) -> str:
    """Say that the supervisor ``pid`` runs a stack whose lock is not in ``root`` any more, and what to do."""
    return (
        f"state folder {root}: moved or deleted while sre up (pid {pid}) uses it; put it back, or end that one with"
        f" kill {pid}"
    )
