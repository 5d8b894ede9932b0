"""The file as version 1 of the schema made it, frozen: what users have on disk."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path

from sre.adapters.store import journal
from sre.notify.envelope import message_to_json
from tests.store.samples import intent, message

GENESIS = "0" * 64
SCHEMA = f"""
CREATE TABLE state (
  id INTEGER PRIMARY KEY CHECK (id = 1), document TEXT NOT NULL, sha256 TEXT NOT NULL, saved_wall REAL NOT NULL,
  boot_id TEXT NOT NULL);
CREATE TABLE journal (
  seq INTEGER PRIMARY KEY, at_wall REAL NOT NULL, at_monotonic REAL NOT NULL, boot_id TEXT NOT NULL, kind TEXT NOT NULL,
  incident_id TEXT, target TEXT NOT NULL, action TEXT, reason TEXT NOT NULL, data TEXT NOT NULL,
  prev_hash TEXT NOT NULL, hash TEXT NOT NULL);
CREATE INDEX journal_incident ON journal (incident_id, seq);
CREATE INDEX journal_action ON journal (action, target, seq) WHERE kind = 'intent';
CREATE TABLE chain (
  id INTEGER PRIMARY KEY CHECK (id = 1), anchor_seq INTEGER NOT NULL, anchor_hash TEXT NOT NULL,
  head_seq INTEGER NOT NULL, head_hash TEXT NOT NULL);
INSERT INTO chain VALUES (1, 0, '{GENESIS}', 0, '{GENESIS}');
CREATE TABLE outbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT, incident_id TEXT NOT NULL, event TEXT NOT NULL, channel TEXT NOT NULL,
  level INTEGER NOT NULL, payload TEXT NOT NULL, opened TEXT,
  state TEXT NOT NULL CHECK (state IN ('held', 'pending', 'sending', 'sent', 'dead', 'superseded')),
  attempts INTEGER NOT NULL DEFAULT 0, boot_id TEXT NOT NULL, due_at REAL NOT NULL, lease_owner TEXT, last_error TEXT,
  created_wall REAL NOT NULL, created_at REAL NOT NULL, created_boot TEXT NOT NULL, sent_wall REAL,
  UNIQUE (incident_id, event, channel, level));
CREATE INDEX outbox_open ON outbox (state, channel, id) WHERE state IN ('held', 'pending', 'sending');
PRAGMA application_id={0x53524547};
PRAGMA user_version=1;
"""
WALL = 1_800_000_000.0
STATE = '{"openings": 3}'

ROWS = (
    # incident, event, channel, state, attempts, seconds ago
    ("inc-old", "open", "mail", "sent", 1, 3 * 86400.0),
    ("inc-over", "open", "mail", "sent", 2, 600.0),
    ("inc-over", "resolve", "mail", "pending", 0, 300.0),
    ("inc-now", "open", "mail", "sent", 1, 120.0),
    ("inc-now", "open", "sms", "pending", 3, 120.0),
    ("inc-dead", "open", "sms", "dead", 20, 60.0),
    ("inc-held", "open", "mail", "held", 0, 1.0),
)
PRUNED = 40
"""Numbers given before and forgotten: none of them may be given again."""


def make(path: Path) -> None:
    """Make a file of version 1 at ``path``, with a state, three journal rows and ``ROWS``."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.executescript(SCHEMA)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("BEGIN")
        connection.execute(
            "INSERT INTO state VALUES (1, ?, ?, ?, 'boot-1')", (STATE, hashlib.sha256(STATE.encode()).hexdigest(), WALL)
        )
        journal.append(connection, [intent(f"sim-{n}") for n in range(3)], "boot-1")
        for incident, event, channel, state, attempts, ago in ROWS:
            connection.execute(
                "INSERT INTO outbox (incident_id, event, channel, level, payload, state, attempts, boot_id, due_at,"
                " created_wall, created_at, created_boot, sent_wall) VALUES (?,?,?,0,?,?,?,'boot-1',?,?,?,'boot-1',?)",
                (
                    incident, event, channel, json.dumps(message_to_json(message(incident, event))), state, attempts,
                    1000.0, WALL - ago, 1000.0 - ago, WALL - ago if state == "sent" else None,
                ),
            )  # fmt: skip
        connection.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'outbox'", (PRUNED,))
        connection.execute("COMMIT")
    finally:
        connection.close()


def version(path: Path) -> int:
    """The schema version of the file."""
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()
