"""The table of what limits kept back: it waits there until it is told."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from sre.adapters.store.moment import Now
from sre.notify.alert_records import LeftOut

TABLE = """
CREATE TABLE IF NOT EXISTS alert_left_out (
  number INTEGER PRIMARY KEY AUTOINCREMENT, route TEXT NOT NULL, name TEXT NOT NULL, severity TEXT NOT NULL,
  fingerprint TEXT NOT NULL, starts_ns INTEGER NOT NULL, incident_id TEXT, listed INTEGER NOT NULL,
  told INTEGER NOT NULL, at_monotonic REAL NOT NULL, boot_id TEXT NOT NULL, UNIQUE (fingerprint, starts_ns));
CREATE INDEX IF NOT EXISTS alert_left_out_route ON alert_left_out (route, number);
"""


def write(connection: sqlite3.Connection, left: Iterable[LeftOut], now: Now) -> None:
    connection.executemany(
        "INSERT OR IGNORE INTO alert_left_out (route, name, severity, fingerprint, starts_ns, incident_id, listed,"
        " told, at_monotonic, boot_id) VALUES (?,?,?,?,?,?,?,?,?,?)",
        [
            (o.route, o.name, o.severity, *o.key, o.incident_id, o.listed, o.told, now.monotonic, now.boot_id)
            for o in left
        ],
    )


def forget(connection: sqlite3.Connection, numbers: Iterable[int]) -> None:
    connection.executemany("DELETE FROM alert_left_out WHERE number = ?", [(number,) for number in numbers])


def waiting(connection: sqlite3.Connection) -> dict[str, int]:
    """Return how much waits, by route."""
    rows = connection.execute("SELECT route, count(*) FROM alert_left_out GROUP BY route ORDER BY route")
    return {str(route): int(count) for route, count in rows}


def select(connection: sqlite3.Connection, route: str, limit: int, now: Now) -> Sequence[LeftOut]:
    """Oldest first. What waits since another boot has waited long enough."""
    rows = connection.execute(
        "SELECT l.route, l.name, l.severity, l.fingerprint, l.starts_ns, l.incident_id, l.listed, l.told, l.number,"
        " CASE WHEN l.boot_id = ? THEN max(0.0, ? - l.at_monotonic) ELSE 1e9 END, coalesce(i.told, 0)"
        " FROM alert_left_out l LEFT JOIN alert_incident i ON i.id = l.incident_id"
        " WHERE l.route = ? ORDER BY l.number LIMIT ?",
        (now.boot_id, now.monotonic, route, limit),
    ).fetchall()
    return [
        LeftOut(
            name_of, name, severity, (fingerprint, starts), incident, bool(listed), bool(told), number, age, bool(m)
        )
        for name_of, name, severity, fingerprint, starts, incident, listed, told, number, age, m in rows
    ]
