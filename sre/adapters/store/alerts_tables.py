"""The tables of alerts. They are made when the webhook is first used, and only ever added to."""

from __future__ import annotations

import sqlite3

from sre.adapters.store import alerts_left_out as left_out

OPEN = "resolved_wall IS NULL AND firing_wall IS NOT NULL"
OF_GUARD = f"{OPEN} AND substr(incident_id, -4, 1) < 'a'"
"""Open firings that joined an incident of the guard: the suffix of alerts' own begins with a letter."""

TABLES = f"""
CREATE TABLE IF NOT EXISTS alert_episode (
  fingerprint TEXT NOT NULL, starts_ns INTEGER NOT NULL, name TEXT NOT NULL, severity TEXT NOT NULL,
  labels TEXT NOT NULL, summary TEXT NOT NULL, seen_wall REAL NOT NULL, firing_wall REAL, resolved_wall REAL,
  incident_id TEXT, PRIMARY KEY (fingerprint, starts_ns)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS alert_episode_open ON alert_episode (incident_id)
  WHERE resolved_wall IS NULL AND firing_wall IS NOT NULL;
CREATE INDEX IF NOT EXISTS alert_episode_guard ON alert_episode (incident_id) WHERE {OF_GUARD};
CREATE INDEX IF NOT EXISTS alert_episode_seen ON alert_episode (resolved_wall IS NULL, seen_wall);
CREATE TABLE IF NOT EXISTS alert_incident (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, join_key TEXT NOT NULL, name TEXT NOT NULL,
  severity TEXT NOT NULL, scope TEXT NOT NULL, route TEXT NOT NULL, summary TEXT NOT NULL, opened_wall REAL NOT NULL,
  listed INTEGER NOT NULL, told INTEGER NOT NULL, members INTEGER NOT NULL, firing INTEGER NOT NULL,
  resolved_wall REAL, told_in TEXT, filed TEXT NOT NULL DEFAULT 'no' CHECK (filed IN ('no', 'open', 'resolved')));
CREATE UNIQUE INDEX IF NOT EXISTS alert_incident_open ON alert_incident (join_key) WHERE resolved_wall IS NULL;
CREATE INDEX IF NOT EXISTS alert_incident_unfiled ON alert_incident (number)
  WHERE listed AND (filed = 'no' OR (filed = 'open' AND resolved_wall IS NOT NULL));
CREATE TABLE IF NOT EXISTS alert_trip (
  number INTEGER PRIMARY KEY AUTOINCREMENT, trip TEXT NOT NULL, fingerprint TEXT NOT NULL, starts_ns INTEGER NOT NULL,
  labels TEXT NOT NULL, annotations TEXT NOT NULL, at_wall REAL NOT NULL, at_monotonic REAL NOT NULL,
  boot_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS alert_heartbeat (
  id INTEGER PRIMARY KEY CHECK (id = 1), wall REAL NOT NULL, monotonic REAL NOT NULL, boot_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS alert_probe (id INTEGER PRIMARY KEY CHECK (id = 1), room BLOB NOT NULL);
{left_out.TABLE}
"""
# alert_incident.filed: how far its folder says what the row says.


def make(connection: sqlite3.Connection) -> None:
    """Make what is missing; inside a transaction."""
    for statement in TABLES.split(";"):
        if statement.strip():
            connection.execute(statement)
