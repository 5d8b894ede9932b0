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
    timeout_seconds: float
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
        timeout_seconds=float(document["timeout_seconds"]),
        title=document.get("title", ""),
        body=document.get("body", ""),
        html=document.get("html", ""),
        tone=document.get("tone", "info"),
        key=document.get("key", ""),
        act=document.get("act", "trigger"),
        parameters=document.get("parameters", {}),
    )


class Desk:
    """Holds the task of this process."""

    task: Task = Task("check", "", 0.0)


DESK = Desk()
