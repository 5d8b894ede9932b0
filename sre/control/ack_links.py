"""Acknowledging by a signed link: the webhook's side of it."""

from __future__ import annotations

from dataclasses import dataclass

from sre.actions.records import Acknowledgement, AckOutcome
from sre.clock import Clock
from sre.control.acknowledgements import Acknowledgements
from sre.notify.ack_token import TokenVerdict, verify_ack_token

LONGEST_ID = 80


@dataclass(frozen=True, slots=True)
class Said:
    """What somebody who used a link is shown."""

    heading: str
    sentence: str
    known: bool = True
    """Whether there is such an incident here."""


class AckLinks:
    """
    ``Acknowledger`` of the webhook.

    Args:
        acknowledge: None where there is no state to write it into.
    """

    def __init__(self, secret: bytes, acknowledge: Acknowledgements, clock: Clock) -> None:
        self._secret, self._acknowledge, self._clock = secret, acknowledge, clock

    def check(self, incident_id: str, token: str) -> str | None:
        """Why the link opens nothing; None when it is good."""
        if not incident_id or len(incident_id) > LONGEST_ID:
            return "This is no link of ours."
        verdict = verify_ack_token(token, incident_id, self._clock.wall(), self._secret)
        if verdict is TokenVerdict.EXPIRED:
            return f"This link is too old. On the machine: sre incident ack {incident_id}"
        return None if verdict is TokenVerdict.GOOD else "This is no link of ours."

    async def acknowledge(self, incident_id: str, token: str, by: str) -> Said:
        """Return what became of it. Raises StateError when it cannot be written now."""
        found = await self._acknowledge(incident_id, by, "", via="link")
        return _said(incident_id, found)


def _said(incident_id: str, found: Acknowledgement) -> Said:
    match found.outcome:
        case AckOutcome.ACKNOWLEDGED:
            return Said("Acknowledged", f"{incident_id} is acknowledged by {found.by}; nobody else is called.")
        case AckOutcome.ALREADY:
            return Said("Acknowledged already", f"{incident_id} was acknowledged by {found.by or 'somebody'} already.")
        case AckOutcome.RESOLVED:
            return Said("Over already", f"{incident_id} is over already.")
        case AckOutcome.NOTICE:
            return Said("Nothing to acknowledge", f"{incident_id} tells only notices; it is not repeated.")
        case AckOutcome.UNKNOWN:
            return Said("Not acknowledged", f"{incident_id} is not known here; was the state folder replaced?", False)
