"""
Forks delivery workers off a process that has Apprise loaded: ``python -m sre.adapters.notifiers.nursery PARENT_PID``.

A worker of its own costs a fifth of a second of a core, most of it for reading Apprise in. When a page goes to nine
channels at once on a small machine, the ninth would wait a second for that alone. A fork takes milliseconds and is a
process like any other: it can hang and be killed without harm to the rest.

Wire: stdin is a SOCK_SEQPACKET socket. First goes ``ready`` out. A packet with a descriptor asks for a worker that has
that socket as stdin and stdout; its pid is the answer. A packet with a pid says that the parent has killed that worker
and will not name it again. When the socket ends, the parent is gone, and so is this process; the kernel
ends it with its parent, should it be stopped just then.
"""

from __future__ import annotations

import importlib
import os
import random
import signal
import socket
import sys
import time

from sre.adapters.notifiers import worker
from sre.adapters.processes.parent import die_with

LOADED = (
    "apprise",
    "sre.adapters.notifiers.plugins",
    "sre.adapters.notifiers.plugins.mail",
    "sre.adapters.notifiers.plugins.pagerduty",
    "sre.adapters.notifiers.plugins.dingtalk",
    "sre.adapters.notifiers.plugins.aliyun",
    "sre.adapters.notifiers.plugins.tencent",
    "apprise.plugins.twilio",
    "apprise.plugins.slack",
    "apprise.plugins.custom_json",
)
"""What most workers need."""

LONGEST_PACKET = 64
REAP_SECONDS = 0.2
"""So long a killed worker is waited for; one that takes longer is looked for again with the next order."""


def main(parent: int) -> None:
    die_with(parent)
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), 0)
    for name in LOADED:
        importlib.import_module(name)
    control.send(b"ready")
    dead: set[int] = set()
    while True:
        order, descriptors, _, _ = socket.recv_fds(control, LONGEST_PACKET, 1)
        if descriptors:
            control.send(str(bear(descriptors[0], control)).encode())
        elif order:
            dead.add(int(order))
        else:
            return
        reap(dead)


def bear(descriptor: int, control: socket.socket) -> int:
    """Return the pid of a new worker that speaks through ``descriptor``."""
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    try:
        os.setsid()
        control.close()
        os.dup2(descriptor, 0)
        os.dup2(descriptor, 1)
        os.close(descriptor)
        random.seed()
        worker.main()
    finally:
        os.kill(os.getpid(), signal.SIGKILL)  # whatever happened in there, it never gets into the loop above
    return 0


def reap(dead: set[int]) -> None:
    """Take leave of workers that were killed; those that are not gone yet stay in ``dead``."""
    ends = time.monotonic() + REAP_SECONDS
    while dead:
        dead -= {pid for pid in dead if os.waitpid(pid, os.WNOHANG)[0]}
        if not dead or time.monotonic() > ends:
            return
        time.sleep(0.001)


if __name__ == "__main__":
    main(int(sys.argv[1]))
