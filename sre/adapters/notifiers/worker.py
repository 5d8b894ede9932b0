"""
One delivery, then the end: ``python -m sre.adapters.notifiers.worker``.

Wire: one line of JSON on stdin, ``{"mode": "send"|"check", "url": …, "title": …, "body": …, "tone": …,
"timeout_seconds": …}``; one line of JSON on stdout, ``{"verdict": …, "detail": …}`` (check: also ``"targets"`` and
``"shown"``, the URL without secrets). Then it waits to be killed, so that its process group still exists when its
parent kills it. When stdin ends first, the parent is gone: the worker and its group end at once.

Why a process: Apprise gives a call that takes too long up but not its thread, and hung threads fill a pool that other
deliveries need. The URL comes by stdin because arguments and environment can be read by others.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from typing import Any

LAST_RESORT_SECONDS = 30
"""So long after the deadline the kernel ends a worker whose parent is stopped and cannot."""

INNER_SHARE = 0.9
"""Apprise's own time limit, as a share of the time left: so that it speaks before it is killed."""

LONGEST_DETAIL = 4_000


class _Said(logging.Handler):
    """Keeps what Apprise says: warnings, and from its debug lines only errors, as the others hold the message."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.WARNING or (
            record.levelno >= logging.DEBUG and ("Exception" in text or text.startswith("Response Details"))
        ):
            self.lines.append(text)

    def detail(self) -> str:
        return "; ".join(dict.fromkeys(line.strip() for line in self.lines if line.strip()))[:LONGEST_DETAIL]


def end_with_parent() -> None:
    """Return when stdin ends, that is, when the parent is gone; then end this process group."""
    while sys.stdin.buffer.read(4096):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


def deliver(task: dict[str, Any], began: float) -> dict[str, Any]:
    """Carry out one task; return the answer to send back."""
    # Loopback is never reached through a proxy.
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1,localhost,::1")))
    import apprise

    said = _Said()
    log = logging.getLogger("apprise")
    log.setLevel(logging.DEBUG)
    log.addHandler(said)
    log.propagate = False
    services = apprise.Apprise(
        asset=apprise.AppriseAsset(app_id="sre", app_desc="sre", storage_mode=apprise.PersistentStoreMode.MEMORY)
    )
    if not services.add(task["url"]) or len(services) == 0:
        return {"verdict": "impossible", "detail": said.detail() or "Apprise knows no service for this URL"}
    if task["mode"] == "check":
        service = services[0]
        return {
            "verdict": "delivered",
            "detail": said.detail(),
            "targets": len(service),
            "shown": service.url(privacy=True),
        }
    left = task["timeout_seconds"] - (time.monotonic() - began)
    result = services.notify(
        body=task["body"],
        title=task["title"],
        notify_type=task["tone"],
        body_format="text",
        interpret_escapes=False,
        timeout=max(0.5, left * INNER_SHARE),
    )
    status = apprise.AppriseResultStatus
    verdict = {
        status.SUCCESS: "delivered",
        status.NOMATCH: "impossible",
        status.TIMEOUT: "unknown",
    }.get(result.status, "failed")
    detail = "" if verdict == "delivered" else said.detail() or f"Apprise says {result.status.name}"
    return {"verdict": verdict, "detail": detail}


def main() -> None:
    began = time.monotonic()
    task = json.loads(sys.stdin.buffer.readline())
    signal.alarm(int(task["timeout_seconds"]) + LAST_RESORT_SECONDS)
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        answer = deliver(task, began)
    except Exception as error:  # noqa: BLE001 - the boundary of this process: whatever a plugin raises is its answer
        answer = {"verdict": "failed", "detail": f"{type(error).__name__}: {error}"[:LONGEST_DETAIL]}
    os.write(1, json.dumps(answer).encode() + b"\n")
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
