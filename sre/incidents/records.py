"""What an incident folder holds, as values, and their JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sre.actions.types import InFlightRequest
from sre.redaction import Redact

LONGEST_TEXT = 2_000
"""Characters of one value in a context line: a client chooses path, model name and more."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident as its folder tells it. Parts that are damaged are empty, and ``damage`` says so."""

    id: str
    opened_wall: float
    resolved_wall: float | None
    facts: Mapping[str, Any]
    contexts: Sequence[Mapping[str, Any]] | None
    """The requests in flight when it opened; None: not recorded."""
    evidence: Sequence[str]
    """Names of the files of evidence."""
    damage: Sequence[str] = ()

    @property
    def resolved(self) -> bool:
        return self.resolved_wall is not None


def context_line(request: InFlightRequest, redact: Redact) -> str:
    """Return one request as a line of JSON. It has no prompt: an InFlightRequest knows none."""
    document = {
        name: redact(value[:LONGEST_TEXT]) if isinstance(value, str) else value
        for name, value in dataclasses.asdict(request).items()
    }
    return json.dumps(document, sort_keys=True)


def parse_lines(text: str) -> tuple[list[dict[str, Any]], int]:
    """Return the JSON objects of ``text``, one a line, and how many lines were damaged (a crash may tear the last)."""
    found, odd = [], 0
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except ValueError:
            odd += 1
            continue
        if isinstance(document, dict):
            found.append(document)
        else:
            odd += 1
    return found, odd
