"""The one task of a delivery worker, where our plugins find what Apprise's interface has no place for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """What the worker was told on stdin; see ``worker``."""

    mode: str
    url: str
    deadline_monotonic: float
    """CLOCK_MONOTONIC at which the parent kills this process; the clock is the same for both."""
    title: str = ""
    body: str = ""
    html: str = ""
    tone: str = "info"
    key: str = ""
    act: str = "trigger"
    parameters: Mapping[str, str] = field(default_factory=dict)


def task_from_json(document: Mapping[str, Any]) -> Task:
    """Return the task. Raises KeyError or TypeError for what is none."""
    return Task(
        mode=document["mode"],
        url=document["url"],
        deadline_monotonic=float(document["deadline_monotonic"]),
        title=document.get("title", ""),
        body=document.get("body", ""),
        html=document.get("html", ""),
        tone=document.get("tone", "info"),
        key=document.get("key", ""),
        act=document.get("act", "trigger"),
        parameters=document.get("parameters", {}),
    )


class Desk:
    """Holds the task of this process, and when its plugin must have ended to be heard."""

    task: Task = Task("check", "", 0.0)
    ends_monotonic: float = 0.0


DESK = Desk()
