"""
What is kept of alerts: firings, the incidents they opened, trips under way, the last heartbeat.

Everything a notification leads to (these rows, journal, outbox) is written in one transaction; what is decided is
decided inside it, on what is stored then. The tables are made when the webhook is first used.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sre.adapters.store import alerts_left_out as left_out_table
from sre.adapters.store import alerts_rows as rows_of
from sre.adapters.store import alerts_tables as tables
from sre.adapters.store import incidents as incident_table
from sre.adapters.store import journal as journal_table
from sre.adapters.store.alerts_rows import EPISODE, INCIDENT
from sre.adapters.store.alerts_tables import OF_GUARD, OPEN
from sre.adapters.store.writer import GuardStore
from sre.notify.alert_records import AlertIncident, Changes, DamagedTrip, Episode, Known, LeftOut, PendingTrip, Wanted
from sre.notify.alerts import EpisodeKey

COUNTED_SECONDS = 3600.0
"""Limits per hour look back so far."""

EPISODES_KEPT = 50_000
"""About 40 MB. Only firings that ended go, the oldest first; those that go on are as many as there are alerts."""
INCIDENTS_KEPT = 20_000
PRUNE_EVERY = 500
"""Firings written between two looks at how many there are."""

PROBE_BYTES = 64 * 1024

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
        with self._transaction() as connection:
            changes = decide(self._known(connection, wanted))
            if changes.nothing:
                return changes
            _write_episodes(connection, changes.episodes)
            _write_incidents(connection, changes.incidents)
            self._write_trips(connection, changes.trips)
            connection.executemany("DELETE FROM alert_trip WHERE number = ?", [(n,) for n in changes.settled])
            left_out_table.write(connection, changes.left_out, store._now())
            left_out_table.forget(connection, changes.caught_up)
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
        with self._transaction() as connection:
            row = connection.execute("SELECT wall, monotonic, boot_id FROM alert_heartbeat").fetchone()
            moment = None if row is None else row[1] if row[2] == now.boot_id else row[0]
            if not isinstance(moment, int | float):  # none yet, or damaged
                self._beat(connection)
                return 0.0
        return max(0.0, (now.monotonic if row[2] == now.boot_id else now.wall) - moment)

    def probe(self) -> None:
        """Write something of the size of a notification, and take it back: returns if there is room."""
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO alert_probe (id, room) VALUES (1, zeroblob(?))", (PROBE_BYTES,))
        with self._transaction() as connection:
            connection.execute("DELETE FROM alert_probe")

    def episode(self, key: EpisodeKey) -> Episode | None:
        """One firing as it stands now."""
        found = self._episodes("fingerprint = ? AND starts_ns = ?", *key, 1)
        return found[0] if found else None

    def pending_trips(self) -> Sequence[PendingTrip | DamagedTrip]:
        """
        Trips that are written down and not carried out, oldest first.

        The age of one that was written in another boot is infinite: it is never carried out, whatever the wall clock
        says after the boot, since the engines that its alert saw are gone; its alert is told by itself.
        """
        now = self._store._now()
        with self._transaction() as connection:
            rows = connection.execute(f"SELECT {rows_of.TRIP} FROM alert_trip ORDER BY number LIMIT 1000").fetchall()
        return [rows_of.trip_of(row, now.monotonic, now.boot_id) for row in rows]

    def unheard(self, before_wall: float, limit: int) -> Sequence[Episode]:
        """Open firings nobody spoke of since ``before_wall``, oldest first."""
        return self._episodes(
            "(resolved_wall IS NULL) = 1 AND seen_wall < ? AND firing_wall IS NOT NULL", before_wall, limit
        )

    def joined_of_guard(self) -> frozenset[str]:
        """Incidents of the guard that open firings have joined."""
        with self._transaction() as connection:
            rows = connection.execute(f"SELECT DISTINCT incident_id FROM alert_episode WHERE {OF_GUARD}").fetchall()
        return frozenset(str(name) for (name,) in rows)

    def firing_of(self, incidents: Collection[str], limit: int) -> Sequence[Episode]:
        """Open firings of these incidents."""
        return self._episodes(f"{OPEN} AND incident_id IN ({','.join('?' * len(incidents))})", *incidents, limit)

    def left_out(self, limit: int) -> Mapping[str, tuple[Sequence[LeftOut], int]]:
        """Return what limits kept back: route → (the oldest ``limit``, how many more)."""
        with self._transaction() as connection:
            now = self._store._now()
            found = {}
            for route, count in left_out_table.waiting(connection).items():
                rows = left_out_table.select(connection, route, limit, now)
                found[route] = rows, count - len(rows)
        return found

    def unfiled(self, limit: int) -> Sequence[AlertIncident]:
        """Incidents whose folder does not say yet what is known, oldest first."""
        with self._transaction() as connection:
            rows = connection.execute(
                f"SELECT {INCIDENT} FROM alert_incident WHERE listed AND"
                " (filed = 'no' OR (filed = 'open' AND resolved_wall IS NOT NULL)) ORDER BY number LIMIT ?",
                (limit,),
            ).fetchall()
        return [rows_of.incident_of(row) for row in rows]

    def mark_filed(self, incidents: Iterable[AlertIncident]) -> None:
        """Their folders say what they say."""
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE alert_incident SET filed = ? WHERE id = ?",
                [("open" if one.resolved_wall is None else "resolved", one.id) for one in incidents],
            )

    def counts(self) -> tuple[int, int]:
        """(open firings, open incidents of alerts)."""
        with self._transaction() as connection:
            firing = connection.execute(f"SELECT count(*) FROM alert_episode WHERE {OPEN}").fetchone()[0]
            opened = connection.execute("SELECT count(*) FROM alert_incident WHERE resolved_wall IS NULL").fetchone()[0]
        return int(firing), int(opened)

    # ---- parts -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One of the store, with the tables there. They count as made when it is committed."""
        with self._store._transaction() as connection:
            if not self._made:
                tables.make(connection)
            yield connection
        self._made = True

    def _known(self, connection: sqlite3.Connection, wanted: Wanted) -> Known:
        now = self._store._now()
        episodes: dict[EpisodeKey, Episode] = {}
        damaged: list[EpisodeKey] = []
        for fingerprint, starts_ns in wanted.keys:
            rows = connection.execute(
                f"SELECT {EPISODE} FROM alert_episode WHERE fingerprint = ? AND (starts_ns = ? OR ({OPEN}))",
                (fingerprint, starts_ns),
            )
            for row in rows:
                one, whole = rows_of.episode_of(row, now.wall)
                if not whole and one.key not in episodes:
                    damaged.append(one.key)
                episodes[one.key] = one
        incidents: dict[str, AlertIncident] = {}

        def find(column: str, values: Iterable[str]) -> None:
            for value in values:
                row = connection.execute(
                    f"SELECT {INCIDENT} FROM alert_incident WHERE {column} = ? AND resolved_wall IS NULL", (value,)
                ).fetchone()
                if row is not None:
                    found = rows_of.incident_of(row)
                    incidents[found.join_key] = found

        find("join_key", wanted.join_keys)
        find("id", wanted.incidents | {e.incident_id for e in episodes.values() if e.open and e.incident_id})
        find("id", {one.told_in for one in incidents.values() if one.told_in is not None})
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
            tripping=_targets(connection),
            guard_members={
                one: int(
                    connection.execute(
                        f"SELECT count(*) FROM alert_episode WHERE incident_id = ? AND {OPEN}", (one,)
                    ).fetchone()[0]
                )
                for one in guards
            },
            guard_severities={
                one: severity for one in guards if (severity := incident_table.severity_of(connection, one))
            },
            damaged=tuple(damaged),
            last_number=int(connection.execute("SELECT coalesce(max(number), 0) FROM alert_incident").fetchone()[0]),
        )

    def _write_trips(self, connection: sqlite3.Connection, trips: Iterable[PendingTrip]) -> None:
        boot_id = self._store._now().boot_id
        connection.executemany(
            "INSERT INTO alert_trip (trip, fingerprint, starts_ns, labels, annotations, at_wall, at_monotonic, boot_id)"
            " VALUES (?,?,?,?,?,?,?,?)",
            [
                (
                    rows_of.trip_text(one.trip),
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
        with self._transaction() as connection:
            rows = connection.execute(
                f"SELECT {EPISODE} FROM alert_episode WHERE {where} ORDER BY seen_wall LIMIT ?", args
            ).fetchall()
        return [rows_of.episode_of(row, self._store._now().wall)[0] for row in rows]

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


def _targets(connection: sqlite3.Connection) -> frozenset[str]:
    """Targets of the trips that are written down; of those that can be read."""
    found = set()
    for (text,) in connection.execute("SELECT trip FROM alert_trip"):
        with contextlib.suppress(ValueError):
            found.add(rows_of.trip_from_text(text).target)
    return frozenset(found)


def _write_episodes(connection: sqlite3.Connection, episodes: Iterable[Episode]) -> None:
    connection.executemany(
        f"INSERT OR REPLACE INTO alert_episode ({EPISODE}) VALUES (?,?,?,?,?,?,?,?,?,?)",
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
            f"INSERT INTO alert_incident ({INCIDENT}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
            " ON CONFLICT (number) DO UPDATE SET severity = excluded.severity, told = excluded.told,"
            " told_in = excluded.told_in,"
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
                one.told_in,
            ),
        )
