"""
Names of the facts of a message that every long form has a place for.

A fact is a pair of texts in ``Message.facts``. Those named here are shown where they belong and in the reader's
language; any other is shown as it is. A name that comes twice is two lines (the timeline).
"""

from __future__ import annotations

SEEN = "seen"
"""What was measured: ``no engine step for 3.1 s``."""
RULE = "rule"
"""Name of the rule or alert, where it is more precise than the message's reason."""
VALUE = "value"
"""The measured value with its unit, short: ``93 C``."""
SINCE = "since"
"""Since when it is so: Unix time in seconds as text, or a moment in words."""
DONE = "done automatically"
NEXT = "next"
"""What a person is to do next; a command where there is one."""
RUNBOOK = "runbook_url"
DASHBOARD = "dashboard_url"
TIMELINE = "timeline"
"""One line of what happened: a moment and a text."""
POOL = "pool"
IN_FLIGHT = "requests in flight"
CONTEXTS = "contexts"
"""Command that shows the contexts of the requests that were in flight."""
MEANING = "meaning"
OPENED_FOR = "incident opened for"
INCIDENTS = "incidents"
"""Ids of those that a digest is about."""
INSTEAD_OF = "instead of channel"
"""The channel that could not deliver the message, and why."""

ACKNOWLEDGE = "acknowledge"
"""The link that does it."""

ALERTS = "alerts"
"""How many an incident has."""
NOT_LISTED = "alerts not listed"
"""What Alertmanager left out of its notification."""
HEARD_LATE = "heard late"
CLOCK = "clock"
"""A start that is far ahead of our clock."""
MORE = "more"

SHOWN_BY_NAME = (SEEN, RULE, VALUE, SINCE, DONE, NEXT, RUNBOOK, DASHBOARD, TIMELINE)
"""Have a place of their own in a long form."""

LISTED = (
    POOL, IN_FLIGHT, CONTEXTS, MEANING, OPENED_FOR, INCIDENTS, INSTEAD_OF, ACKNOWLEDGE, ALERTS, NOT_LISTED, HEARD_LATE,
    CLOCK, MORE,
)  # fmt: skip
"""Are lines among the other facts, with a name in each language."""
