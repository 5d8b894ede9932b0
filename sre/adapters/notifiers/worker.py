"""
One delivery, then the end: ``python -m sre.adapters.notifiers.worker``.

Wire: one line of JSON on stdin, ``{"mode": "send"|"check", "url": …, "title": …, "body": …, "html": …, "tone": …,
"key": …, "act": …, "parameters": {…}, "deadline_monotonic": …}``; one line of JSON on stdout, ``{"cause": …,
"detail": …, "retry_after_seconds": …}`` with the cause null when delivered (check: also ``"targets"``,
``"clear_password"`` and ``"shown"``, the URL without secrets). Then it waits to be killed, so that its process group
still exists when its parent kills it. When stdin ends first, the parent is gone: the worker and its group end at once.

Why a process: Apprise gives a call that takes too long up but not its thread, and hung threads fill a pool that other
deliveries need. The URL comes by stdin because arguments and environment can be read by others.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from typing import Any

from sre.adapters.notifiers.handover import DESK, Task, task_from_json
from sre.notify.channels import scheme_of
from sre.notify.outcomes import Cause

LAST_RESORT_SECONDS = 30
"""So long after the deadline the kernel ends a worker whose parent is stopped and cannot."""

INNER_SHARE = 0.9
"""Apprise's own time limit, as a share of the time left: so that it speaks before it is killed."""

PLUGIN_SHARE = 0.8
"""
A plugin's own limit, as a share of the time left: what it says of a silence (nothing was sent yet) is more than that
Apprise gave up.
"""

LONGEST_CONNECT_SECONDS = 10.0
"""A server that does not take a connection in this time is taken for one that is down."""

LONGEST_DETAIL = 4_000

MAIL_OF_OURS = frozenset({"mailto", "mailtos"})
"""Schemes whose plugin is ours and makes both parts of a mail."""


class _Said(logging.Handler):
    """Keeps what Apprise warns of. Its debug lines hold the message, and the URL."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def detail(self) -> str:
        return "; ".join(dict.fromkeys(line.strip() for line in self.lines if line.strip()))


def end_with_parent() -> None:
    """Return when stdin ends, that is, when the parent is gone; then end this process group."""
    # A parent that died before it read the answer ends the line with a reset.
    with contextlib.suppress(OSError):
        while sys.stdin.buffer.read(4096):
            pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


def deliver(task: Task) -> dict[str, Any]:
    """Carry out one task; return the answer to send back."""
    # Loopback is never reached through a proxy.
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1,localhost,::1")))
    import apprise

    from sre.adapters.notifiers import plugins
    from sre.adapters.notifiers.witness import watch_requests

    watch_requests()
    DESK.task = task
    said = _Said()
    log = logging.getLogger("apprise")
    log.addHandler(said)
    log.propagate = False
    scheme = scheme_of(task.url)
    # No redirects: a POST that is sent on becomes a GET, and a log-in page answers it with 200.
    memory = apprise.PersistentStoreMode.MEMORY
    asset = apprise.AppriseAsset(app_id="sre", app_desc="sre", storage_mode=memory, http_redirects=False)
    service = plugins.service_of(task.url, scheme, asset)
    if service is None:
        if not plugins.is_known(scheme):
            return _answer(Cause.BAD_URL, f"there is no service {scheme}://; see Apprise's list of services")
        return _answer(Cause.BAD_URL, said.detail() or "Apprise knows no service for this URL")
    if task.mode == "check":
        doubts = "; ".join(filter(None, (said.detail(), _not_meant(service))))
        return _answer(None, doubts) | {
            "targets": _recipients(service),
            "shown": service.url(privacy=True),
            "clear_password": _password_in_clear(service),
        }
    return _send(service, task, scheme, said)


def _send(service: Any, task: Task, scheme: str, said: _Said) -> dict[str, Any]:
    import apprise

    from sre.adapters.notifiers.witness import WITNESS

    now = time.monotonic()
    left = max(0.5, task.deadline_monotonic - now)
    DESK.ends_monotonic = now + left * PLUGIN_SHARE
    # Apprise's default, four seconds for an answer, is less than what some providers take on a bad day.
    service.socket_connect_timeout = min(LONGEST_CONNECT_SECONDS, left * PLUGIN_SHARE)
    service.socket_read_timeout = left * PLUGIN_SHARE
    # Our mail plugin takes the HTML part from the task; another mail service gets it as its body.
    as_html = bool(task.html) and scheme not in MAIL_OF_OURS
    services = apprise.Apprise(asset=service.asset)
    services.add(service)
    result = services.notify(
        body=task.html if as_html else task.body,
        title=task.title,
        notify_type=task.tone,
        body_format="html" if as_html else "text",
        interpret_escapes=False,
        timeout=left * INNER_SHARE,
    )
    status = apprise.AppriseResultStatus
    if result.status == status.TIMEOUT:
        return _answer(Cause.OUTCOME_UNKNOWN, "no outcome in time; it may have arrived")
    if result.status == status.NOMATCH:
        return _answer(Cause.BAD_URL, said.detail() or "Apprise knows no service for this URL")
    outcome = WITNESS.outcome(scheme)
    if result.status == status.SUCCESS and not WITNESS.refused_after_all(scheme):
        return _answer(None, "")
    if outcome is None:
        return _answer(Cause.TRY_LATER, said.detail() or f"Apprise says {result.status.name}")
    return _answer(outcome.cause, outcome.detail, outcome.retry_after_seconds)


def _recipients(service: Any) -> int:
    """Return how many recipients the URL names: some services send to the sender when it names none."""
    targets = getattr(service, "targets", None)
    sms = hasattr(service, "source") and isinstance(targets, list)
    return len(targets) if sms and targets is not None else len(service)


def _not_meant(service: Any) -> str:
    """Return what a service understood otherwise than it was meant; "" where nothing is."""
    odd = [topic for topic in getattr(service, "topics", None) or [] if str(topic).isdigit()]
    return "; ".join(f"{topic} is no phone number (AWS would make a topic of this name); write +, country code and"
                     " number" for topic in odd)  # fmt: skip


def _password_in_clear(service: Any) -> bool:
    """Whether a password would be sent to another machine without TLS."""
    mode = getattr(service, "secure_mode", None)
    clear = mode == "insecure" if mode else bool(getattr(service, "protocol", None)) and not service.secure
    host = getattr(service, "smtp_host", None) or service.host
    return bool(clear and service.password and host not in ("127.0.0.1", "localhost", "::1"))


def _answer(cause: Cause | None, detail: str, retry_after_seconds: float | None = None) -> dict[str, Any]:
    return {
        "cause": None if cause is None else cause.value,
        "detail": detail[:LONGEST_DETAIL],
        "retry_after_seconds": retry_after_seconds,
    }


def main() -> None:
    task = task_from_json(json.loads(sys.stdin.buffer.readline()))
    left = max(0.0, task.deadline_monotonic - time.monotonic())
    signal.alarm(int(left) + LAST_RESORT_SECONDS)
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        answer = deliver(task)
    except Exception as error:  # noqa: BLE001 - the boundary of this process: whatever a plugin raises is its answer
        answer = _answer(Cause.LOCAL, f"{type(error).__name__}: {error}")
    os.write(1, json.dumps(answer).encode() + b"\n")
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
