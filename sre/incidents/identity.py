"""The name of an incident: sorts by time, fits in an SMS, is a safe folder name."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime

INCIDENT_ID = re.compile(r"^inc-\d{8}-\d{6}-[0-9a-f]{4}$")


def incident_id(wall: float, rng: random.Random) -> str:
    """Return ``inc-YYYYMMDD-HHMMSS-xxxx``: UTC of ``wall`` and a suffix that keeps apart what began in one second."""
    return f"inc-{datetime.fromtimestamp(wall, UTC):%Y%m%d-%H%M%S}-{rng.getrandbits(16):04x}"


def is_incident_id(text: str) -> bool:
    """Whether ``text`` has the form of an incident's name; nothing else is ever used in a path."""
    return INCIDENT_ID.fullmatch(text) is not None


def opened_wall(text: str) -> float:
    """
    Return the time an incident's name holds, in whole seconds since the Unix epoch.

    Raises:
        ValueError: ``text`` is no such name.
    """
    if not is_incident_id(text):
        raise ValueError(f"{text!r} is no incident id")
    return datetime.strptime(text[4:19], "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
