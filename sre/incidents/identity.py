"""The name of an incident: sorts by time, fits in an SMS, is a safe folder name."""

from __future__ import annotations

import re
from datetime import UTC, datetime

INCIDENT_ID = re.compile(r"inc-\d{8}-\d{6}-[0-9a-f]{4}", re.ASCII)
"""``inc-YYYYMMDD-HHMMSS-xxxx``: UTC, and a suffix that keeps apart what began in one second."""


def is_incident_id(text: str) -> bool:
    """Whether ``text`` has the form of an incident's name; nothing else is ever used in a path."""
    return _moment(text) is not None


def opened_wall(text: str) -> float:
    """
    Return the time an incident's name holds, in whole seconds since the Unix epoch.

    Raises:
        ValueError: ``text`` is no such name.
    """
    moment = _moment(text)
    if moment is None:
        raise ValueError(f"{text!r} is no incident id")
    return moment.timestamp()


def _moment(text: str) -> datetime | None:
    if INCIDENT_ID.fullmatch(text) is None:
        return None
    try:
        return datetime.strptime(text[4:19], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:  # a thirteenth month
        return None
