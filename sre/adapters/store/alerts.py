"""
What is kept of alerts: firings, the incidents they opened, trips under way, the last heartbeat.

Everything a notification leads to (these rows, journal, outbox) is written in one transaction; what is decided is
decided inside it, on what is stored then. The tables are made when the webhook is first used.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from sre.adapters.store import incidents as incident_table
from sre.adapters.store import journal as journal_table
from sre.adapters.store.writer import GuardStore
from sre.notify.alert_records import AlertIncident, Changes, Episode, Known, PendingTrip, Wanted
from sre.notify.alert_routes import Trip
from sre.notify.alerts import EpisodeKey

COUNTED_SECONDS = 3600.0
"""Limits per hour look back so far."""

EPISODES_KEPT = 50_000
"""About 40 MB. Only firings that ended go, the oldest first; those that go on are as many as there are alerts."""
INCIDENTS_KEPT = 20_000
PRUNE_EVERY = 500
"""Firings written between two looks at how many there are."""

TABLES = """
CREATE TABLE IF NOT EXISTS alert_episode (
  fingerprint TEXT NOT NULL, starts_ns INTEGER NOT NULL, name TEXT NOT NULL, severity TEXT NOT NULL,
  labels TEXT NOT NULL, summary TEXT NOT NULL, seen_wall REAL NOT NULL, firing_wall REAL, resolved_wall REAL,
  incident_id TEXT, PRIMARY KEY (fingerprint, starts_ns)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS alert_episode_open ON alert_episode (incident_id)
  WHERE resolved_wall IS NULL AND firing_wall IS NOT NULL;
CREATE INDEX IF NOT EXISTS alert_episode_seen ON alert_episode (resolved_wall IS NULL, seen_wall);
CREATE TABLE IF NOT EXISTS alert_incident (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, join_key TEXT NOT NULL, name TEXT NOT NULL,
  severity TEXT NOT NULL, scope TEXT NOT NULL, route TEXT NOT NULL, summary TEXT NOT NULL, opened_wall REAL NOT NULL,
  listed INTEGER NOT NULL, told INTEGER NOT NULL, members INTEGER NOT NULL, firing INTEGER NOT NULL,
  resolved_wall REAL, filed TEXT NOT NULL DEFAULT 'no' CHECK (filed IN ('no', 'open', 'resolved')));
CREATE UNIQUE INDEX IF NOT EXISTS alert_incident_open ON alert_incident (join_key) WHERE resolved_wall IS NULL;
CREATE INDEX IF NOT EXISTS alert_incident_unfiled ON alert_incident (number)
  WHERE listed AND (filed = 'no' OR (filed = 'open' AND resolved_wall IS NOT NULL));
CREATE TABLE IF NOT EXISTS alert_trip (
  number INTEGER PRIMARY KEY AUTOINCREMENT, trip TEXT NOT NULL, fingerprint TEXT NOT NULL, starts_ns INTEGER NOT NULL,
  labels TEXT NOT NULL, annotations TEXT NOT NULL, at_wall REAL NOT NULL, at_monotonic REAL NOT NULL,
  boot_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS alert_heartbeat (
  id INTEGER PRIMARY KEY CHECK (id = 1), wall REAL NOT NULL, monotonic REAL NOT NULL, boot_id TEXT NOT NULL);
"""
# alert_incident.filed: how far its folder says what the row says.

_EPISODE = "fingerprint, starts_ns, name, severity, labels, summary, seen_wall, firing_wall, resolved_wall, incident_id"
_INCIDENT = (
    "id, number, join_key, name, severity, scope, route, summary, opened_wall, listed, told, members, firing,"
    " resolved_wall"
)
_OPEN = "resolved_wall IS NULL AND firing_wall IS NOT NULL"

Decide = Callable[[Known], Changes]


class AlertBook:
    """
    The alert tables of the guard's store. Every method blocks and raises StateError, after which nothing of the call is
    written.
    """

    def __init__(self, store: GuardStore) -> None:
        self._store = store
        self._made = False
        self._since_pruned = PRUNE_EVERY

    def change(self, wanted: Wanted, decide: Decide) -> Changes:
        """
        Decide on what is stored and write what was decided: one transaction, on disk when this returns.

        ``decide`` is called with the store locked; it must not block.
        """
        store = self._store
        with store._transaction() as connection:
            self._make(connection)
            changes = decide(self._known(connection, wanted))
            if changes.nothing:
                return changes
            _write_episodes(connection, changes.episodes)
            _write_incidents(connection, changes.incidents)
            self._write_trips(connection, changes.trips)
            connection.executemany("DELETE FROM alert_trip WHERE number = ?", [(n,) for n in changes.settled])
            if changes.heartbeat:
                self._beat(connection)
            store._write(connection, journal=changes.journal, outbox=changes.outbox, told=changes.told)
            store._prune_grown(connection, len(changes.outbox))
            self._prune(connection, len(changes.episodes))
        return changes

    def heartbeat_age(self) -> float:
        """
        Seconds since the last heartbeat: monotonic within a boot, by the wall clock across. The first call ever begins
        to count.
        """
        now = self._store._now()
        with self._store._transaction() as connection:
            self._make(connection)
            row = connection.execute("SELECT wall, monotonic, boot_id FROM alert_heartbeat").fetchone()
            if row is None:
                self._beat(connection)
                return 0.0
        wall, monotonic, boot_id = float(row[0]), float(row[1]), row[2]
        return max(0.0, now.monotonic - monotonic if boot_id == now.boot_id else now.wall - wall)

    def pending_trips(self) -> Sequence[PendingTrip]:
        """Trips that are written down and not carried out, oldest first."""
        now = self._store._now()
        with self._store._transaction() as connection:
            self._make(connection)
            rows = connection.execute(
                "SELECT number, trip, fingerprint, starts_ns, labels, annotations, at_wall, at_monotonic, boot_id"
                " FROM alert_trip ORDER BY number LIMIT 1000"
            ).fetchall()
        found = []
        for number, trip, fingerprint, starts_ns, labels, notes, at_wall, at_monotonic, boot_id in rows:
            age = now.monotonic - at_monotonic if boot_id == now.boot_id else now.wall - at_wall
            found.append(
                PendingTrip(
                    trip=Trip(**json.loads(trip)),
                    fingerprint=fingerprint,
                    starts_ns=starts_ns,
                    labels=json.loads(labels),
                    annotations=json.loads(notes),
                    at_wall=at_wall,
                    at_monotonic=at_monotonic,
                    number=number,
                    age_seconds=max(0.0, age),
                )
            )
        return found

    def unheard(self, before_wall: float, limit: int) -> Sequence[Episode]:
        """Open firings nobody spoke of since ``before_wall``, oldest first."""
        return self._episodes(
            "(resolved_wall IS NULL) = 1 AND seen_wall < ? AND firing_wall IS NOT NULL", before_wall, limit
        )

    def outliving(self, guard_incidents: Collection[str], limit: int) -> Sequence[Episode]:
        """Open firings that belong to an incident that is none of alerts and not among ``guard_incidents``."""
        marks = ",".join("?" * len(guard_incidents))
        return self._episodes(
            f"{_OPEN} AND incident_id IS NOT NULL AND incident_id NOT IN ({marks})"
            " AND incident_id NOT IN (SELECT id FROM alert_incident)",
            *guard_incidents,
            limit,
        )

    def unfiled(self, limit: int) -> Sequence[AlertIncident]:
        """Incidents whose folder does not say yet what is known, oldest first."""
        with self._store._transaction() as connection:
            self._make(connection)
            rows = connection.execute(
                f"SELECT {_INCIDENT} FROM alert_incident WHERE listed AND"
                " (filed = 'no' OR (filed = 'open' AND resolved_wall IS NOT NULL)) ORDER BY number LIMIT ?",
                (limit,),
            ).fetchall()
        return [_incident(row) for row in rows]

    def mark_filed(self, incidents: Iterable[AlertIncident]) -> None:
        """Their folders say what they say."""
        with self._store._transaction() as connection:
            connection.executemany(
                "UPDATE alert_incident SET filed = ? WHERE id = ?",
                [("open" if one.resolved_wall is None else "resolved", one.id) for one in incidents],
            )

    def counts(self) -> tuple[int, int]:
        """(open firings, open incidents of alerts)."""
        with self._store._transaction() as connection:
            self._make(connection)
            firing = connection.execute(f"SELECT count(*) FROM alert_episode WHERE {_OPEN}").fetchone()[0]
            opened = connection.execute("SELECT count(*) FROM alert_incident WHERE resolved_wall IS NULL").fetchone()[0]
        return int(firing), int(opened)

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _make(self, connection: sqlite3.Connection) -> None:
        if not self._made:
            for statement in TABLES.split(";"):
                if statement.strip():
                    connection.execute(statement)
            self._made = True

    def _known(self, connection: sqlite3.Connection, wanted: Wanted) -> Known:
        now = self._store._now()
        episodes: dict[EpisodeKey, Episode] = {}
        for fingerprint, starts_ns in wanted.keys:
            rows = connection.execute(
                f"SELECT {_EPISODE} FROM alert_episode WHERE fingerprint = ? AND (starts_ns = ? OR ({_OPEN}))",
                (fingerprint, starts_ns),
            )
            episodes |= {one.key: one for one in map(_episode, rows)}
        incidents: dict[str, AlertIncident] = {}
        for column, values in (
            ("join_key", wanted.join_keys),
            ("id", {one.incident_id for one in episodes.values() if one.open and one.incident_id is not None}),
        ):
            for value in values:
                row = connection.execute(
                    f"SELECT {_INCIDENT} FROM alert_incident WHERE {column} = ? AND resolved_wall IS NULL", (value,)
                ).fetchone()
                if row is not None:
                    found = _incident(row)
                    incidents[found.join_key] = found
        guards = wanted.guard_incidents
        return Known(
            episodes=episodes,
            incidents=incidents,
            spent={
                (action, target): journal_table.count_intents(
                    connection,
                    action=action,
                    target=target,
                    since_wall=now.wall - COUNTED_SECONDS,
                    boot_id=now.boot_id,
                    since_monotonic=now.monotonic - COUNTED_SECONDS,
                )
                for action, target in wanted.intents
            },
            tripping=frozenset(
                str(json.loads(trip)["target"]) for (trip,) in connection.execute("SELECT trip FROM alert_trip")
            ),
            guard_members={
                one: int(
                    connection.execute(
                        f"SELECT count(*) FROM alert_episode WHERE incident_id = ? AND {_OPEN}", (one,)
                    ).fetchone()[0]
                )
                for one in guards
            },
            guard_severities={
                one: severity for one in guards if (severity := incident_table.severity_of(connection, one))
            },
            last_number=int(connection.execute("SELECT coalesce(max(number), 0) FROM alert_incident").fetchone()[0]),
        )

    def _write_trips(self, connection: sqlite3.Connection, trips: Iterable[PendingTrip]) -> None:
        boot_id = self._store._now().boot_id
        connection.executemany(
            "INSERT INTO alert_trip (trip, fingerprint, starts_ns, labels, annotations, at_wall, at_monotonic, boot_id)"
            " VALUES (?,?,?,?,?,?,?,?)",
            [
                (
                    json.dumps({name: getattr(one.trip, name) for name in Trip.__slots__}),
                    one.fingerprint,
                    one.starts_ns,
                    json.dumps(dict(one.labels)),
                    json.dumps(dict(one.annotations)),
                    one.at_wall,
                    one.at_monotonic,
                    boot_id,
                )
                for one in trips
            ],
        )

    def _beat(self, connection: sqlite3.Connection) -> None:
        now = self._store._now()
        connection.execute(
            "INSERT OR REPLACE INTO alert_heartbeat (id, wall, monotonic, boot_id) VALUES (1, ?, ?, ?)",
            (now.wall, now.monotonic, now.boot_id),
        )

    def _episodes(self, where: str, *args: object) -> Sequence[Episode]:
        with self._store._transaction() as connection:
            self._make(connection)
            rows = connection.execute(
                f"SELECT {_EPISODE} FROM alert_episode WHERE {where} ORDER BY seen_wall LIMIT ?", args
            ).fetchall()
        return [_episode(row) for row in rows]

    def _prune(self, connection: sqlite3.Connection, written: int) -> None:
        self._since_pruned += written
        if self._since_pruned < PRUNE_EVERY:
            return
        self._since_pruned = 0
        too_many = connection.execute("SELECT count(*) FROM alert_episode").fetchone()[0] - EPISODES_KEPT
        if too_many > 0:
            connection.execute(
                "DELETE FROM alert_episode WHERE (fingerprint, starts_ns) IN (SELECT fingerprint, starts_ns"
                " FROM alert_episode WHERE (resolved_wall IS NULL) = 0 ORDER BY seen_wall LIMIT ?)",
                (too_many,),
            )
        connection.execute(
            "DELETE FROM alert_incident WHERE resolved_wall IS NOT NULL AND (filed = 'resolved' OR NOT listed)"
            " AND number <= (SELECT max(number) FROM alert_incident) - ?",
            (INCIDENTS_KEPT,),
        )


def _write_episodes(connection: sqlite3.Connection, episodes: Iterable[Episode]) -> None:
    connection.executemany(
        f"INSERT OR REPLACE INTO alert_episode ({_EPISODE}) VALUES (?,?,?,?,?,?,?,?,?,?)",
        [
            (
                one.fingerprint,
                one.starts_ns,
                one.name,
                one.severity,
                json.dumps(dict(one.labels), ensure_ascii=False),
                one.summary,
                one.seen_wall,
                one.firing_wall,
                one.resolved_wall,
                one.incident_id,
            )
            for one in episodes
        ],
    )


def _write_incidents(connection: sqlite3.Connection, incidents: Iterable[AlertIncident]) -> None:
    # Closed ones first: another of the same key may have been opened since.
    for one in sorted(incidents, key=lambda incident: incident.resolved_wall is None):
        connection.execute(
            f"INSERT INTO alert_incident ({_INCIDENT}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
            " ON CONFLICT (number) DO UPDATE SET severity = excluded.severity, told = excluded.told,"
            " members = excluded.members, firing = excluded.firing, resolved_wall = excluded.resolved_wall",
            (
                one.id,
                one.number,
                one.join_key,
                one.name,
                one.severity,
                one.scope,
                one.route,
                one.summary,
                one.opened_wall,
                one.listed,
                one.told,
                one.members,
                one.firing,
                one.resolved_wall,
            ),
        )


def _episode(row: Sequence[Any]) -> Episode:
    fingerprint, starts_ns, name, severity, labels, summary, seen, firing, resolved, incident = row
    return Episode(
        fingerprint=fingerprint,
        starts_ns=starts_ns,
        name=name,
        severity=severity,
        labels=json.loads(labels),
        summary=summary,
        seen_wall=seen,
        firing_wall=firing,
        resolved_wall=resolved,
        incident_id=incident,
    )


def _incident(row: Sequence[Any]) -> AlertIncident:
    (
        identifier,
        number,
        join_key,
        name,
        severity,
        scope,
        route,
        summary,
        opened,
        listed,
        told,
        members,
        firing,
        ended,
    ) = row
    return AlertIncident(
        id=identifier,
        number=number,
        join_key=join_key,
        name=name,
        severity=severity,
        scope=scope,
        route=route,
        summary=summary,
        opened_wall=opened,
        listed=bool(listed),
        told=bool(told),
        members=members,
        firing=firing,
        resolved_wall=ended,
    )
