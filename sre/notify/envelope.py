"""Messages to and from JSON values: how the outbox keeps them and how the command line shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sre.actions.types import Message


def message_to_json(message: Message) -> dict[str, Any]:
    """Return ``message`` as a JSON-able mapping; ``facts`` stay a list of pairs, for their order matters."""
    return {
        "incident_id": message.incident_id,
        "event": message.event,
        "severity": message.severity,
        "scope": message.scope,
        "reason": message.reason,
        "summary": message.summary,
        "at_wall": message.at_wall,
        "facts": [[name, value] for name, value in message.facts],
    }


def message_from_json(document: Mapping[str, Any]) -> Message:
    """
    Return the message that ``message_to_json`` wrote.

    Raises:
        ValueError: A field is missing or of the wrong kind.
    """
    if not isinstance(document, Mapping):
        raise ValueError(f"not a message: {type(document).__name__}")
    try:
        return Message(
            incident_id=str(document["incident_id"]),
            event=str(document["event"]),
            severity=str(document["severity"]),
            scope=str(document["scope"]),
            reason=str(document["reason"]),
            summary=str(document["summary"]),
            at_wall=float(document["at_wall"]),
            facts=tuple((str(name), str(value)) for name, value in document.get("facts", ())),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a message: {error!r}") from error


def message_from_text(text: str, *, incident_id: str, severity: str, at_wall: float, event: str = "open") -> Message:
    """
    Return the message that ``message_to_json`` wrote as ``text``; of text that is none, one that says so.

    A page that cannot be read is still a page, and must not keep back those that can. What is given beside the text
    is what is known of it without.
    """
    try:
        return message_from_json(json.loads(text))
    except (ValueError, RecursionError):
        return unreadable(incident_id, severity, at_wall, event)


def unreadable(incident_id: str, severity: str, at_wall: float, event: str = "open") -> Message:
    """Return what is told in place of a message that cannot be read; of an end, that it is one."""
    return Message(
        incident_id=incident_id,
        event=event,
        severity=severity,
        scope="outbox",
        reason="unreadable",
        summary=f"a stored message is damaged and cannot be read; look with: sre incident show {incident_id}",
        at_wall=at_wall,
    )
