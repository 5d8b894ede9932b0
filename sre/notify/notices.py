"""Messages that have no end to come, and say so: a paging service would keep them open without a word."""

from __future__ import annotations

from dataclasses import replace

from sre.actions import facts
from sre.actions.types import Message

NO_END = "a notice: no end of it is told; where it opened something, close it by hand"
"""Of what nobody can see the end of, and of what is over when it is told."""


def without_end(message: Message) -> Message:
    """Return ``message`` as one that has no end to come, and says so."""
    return replace(message, event="blind", facts=(*message.facts, (facts.MEANING, NO_END)))
