"""A file of an older version is brought to this one in place: in one transaction, so it is of either, never between."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Mapping

from sre.adapters.store.schema import SCHEMA_VERSION, TABLES
from sre.clock import Clock
from sre.notify.policy import rank_of

REMEMBERED_SECONDS = 86400.0
"""An incident without an end that began longer ago was never going to have one: nobody is called for it now."""


def migrate(connection: sqlite3.Connection, *, clock: Clock, boot_id: str) -> None:
    """Bring the file to ``SCHEMA_VERSION``. Killed at any statement, it is whole, and of the old or the new version."""
    connection.create_function("sre_severity", 1, _severity, deterministic=True)
    connection.create_function("sre_rank", 1, rank_of, deterministic=True)
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        for number in range(version, SCHEMA_VERSION):
            STEPS[number](connection, clock, boot_id)
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _make(connection: sqlite3.Connection, table: str) -> None:
    for statement in TABLES[table].split(";"):
        if statement.strip():
            connection.execute(statement)


def _from_1(connection: sqlite3.Connection, clock: Clock, boot_id: str) -> None:
    """More states and columns for messages; incidents with who acknowledged them."""
    counted = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'outbox'").fetchone()
    connection.execute("ALTER TABLE outbox RENAME TO outbox_1")
    connection.execute("DROP INDEX outbox_open")
    _make(connection, "outbox")
    kept = (
        "id, incident_id, event, channel, level, payload, opened, state, attempts, boot_id, due_at, lease_owner,"
        " last_error, created_wall, created_at, created_boot, sent_wall"
    )
    connection.execute(
        f"INSERT INTO outbox ({kept}, severity, rank, begun_at, begun_boot)"
        f" SELECT {kept}, sre_severity(payload), sre_rank(sre_severity(payload)),"
        # What was tried before is no new message.
        " CASE WHEN attempts > 0 THEN created_at END, CASE WHEN attempts > 0 THEN created_boot END FROM outbox_1"
    )
    connection.execute("DROP TABLE outbox_1")
    if counted is not None:
        # No number is given twice, though the last ones may have been pruned.
        connection.execute("DELETE FROM sqlite_sequence WHERE name = 'outbox'")
        connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('outbox', ?)", counted)
    _make(connection, "incident")
    connection.execute(
        "INSERT INTO incident"
        " (id, severity, rank, payload, opened_wall, resolved_wall, step_at, step_boot, step_wall)"
        " SELECT incident_id, CASE min(rank) WHEN 0 THEN 'page' WHEN 1 THEN 'ticket' ELSE 'info' END, min(rank),"
        "  payload, min(created_wall),"
        "  (SELECT min(created_wall) FROM outbox e WHERE e.incident_id = o.incident_id AND e.event = 'resolve')"
        "  AS ended,"
        "  ?, ?, ? FROM outbox o WHERE event = 'open' GROUP BY incident_id"
        " HAVING ended IS NOT NULL OR min(created_wall) > ?",
        (clock.monotonic(), boot_id, clock.wall(), clock.wall() - REMEMBERED_SECONDS),
    )
    connection.execute(
        "UPDATE outbox SET (severity, rank) = (SELECT severity, rank FROM incident WHERE id = incident_id)"
        " WHERE event = 'resolve' AND state IN ('held', 'pending', 'sending')"
        " AND incident_id IN (SELECT id FROM incident)"
    )


def _from_2(connection: sqlite3.Connection, clock: Clock, boot_id: str) -> None:
    """Whether any channel wanted an incident. Of those that are there it is not known: all are told of their ends."""
    if "wanted" not in _columns(connection, "incident"):
        connection.execute("ALTER TABLE incident ADD COLUMN wanted INTEGER NOT NULL DEFAULT 0")
    connection.execute("UPDATE incident SET wanted = 1")


def _from_3(connection: sqlite3.Connection, clock: Clock, boot_id: str) -> None:
    """
    How often a message may have arrived (of those that wait it is not known: they begin anew), and where incidents of
    alerts were told that a limit kept back.
    """
    if "unknown_outcomes" not in _columns(connection, "outbox"):
        connection.execute("ALTER TABLE outbox ADD COLUMN unknown_outcomes INTEGER NOT NULL DEFAULT 0")
    alerts = _columns(connection, "alert_incident")
    if alerts and "told_in" not in alerts:  # no such table before the webhook is used
        connection.execute("ALTER TABLE alert_incident ADD COLUMN told_in TEXT")


def _columns(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    return frozenset(row[1] for row in connection.execute(f"PRAGMA table_info({table})"))


def _severity(payload: str) -> str:
    try:
        return str(json.loads(payload)["severity"])
    except (ValueError, KeyError, TypeError):
        return "page"  # damaged: not to be slept over


STEPS: Mapping[int, Callable[[sqlite3.Connection, Clock, str], None]] = {1: _from_1, 2: _from_2, 3: _from_3}
"""
Version → the step to the next one. A table that is new in version 2 is made in ``_from_1``, as it is now: a later step
may find its own work done.
"""
