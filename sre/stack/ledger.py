"""The document that says which processes the supervisor started: what the next one re-adopts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sre.signals.types import ProcessIdentity
from sre.stack.processes import Role

VERSION = 1


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """
    One launch. ``identity`` is None between the intent to start and the start: a supervisor that dies in between left
    either nothing, or a process that carries ``launch_id`` in its environment.
    """

    name: str
    role: Role
    launch_id: str
    fingerprint: str
    identity: ProcessIdentity | None = None
    members: tuple[ProcessIdentity, ...] = ()
    """Its family as last seen, to be found again after the leader died."""
    started_at: float = 0.0
    """Monotonic seconds of this boot."""
    ready_at: float | None = None
    restarts: int = 0
    crashes_in_a_row: int = 0
    last_exit: str | None = None
    last_exit_asked: bool | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """All launches of one stack in one boot."""

    boot_id: str
    entries: tuple[LedgerEntry, ...] = field(default_factory=tuple)

    def entry(self, name: str) -> LedgerEntry | None:
        """The launch of process ``name``, if any."""
        return next((entry for entry in self.entries if entry.name == name), None)


def encode(ledger: Ledger) -> str:
    """Return the document as text, with a checksum over its body."""
    body = {
        "version": VERSION,
        "boot_id": ledger.boot_id,
        "entries": [_entry_to_json(entry) for entry in ledger.entries],
    }
    return json.dumps({"checksum": _checksum(body), "body": body}, indent=1, sort_keys=True) + "\n"


def decode(text: str) -> Ledger:
    """
    Read what ``encode`` wrote.

    Raises:
        ValueError: It is anything else: torn, edited, of another version. Nothing of it may then be trusted.
    """
    try:
        document = json.loads(text)
        body = document["body"]
        if document["checksum"] != _checksum(body):
            raise ValueError("its checksum does not match: it was cut or edited")
        if body["version"] != VERSION:
            raise ValueError(f"it has version {body['version']!r}, this sre reads version {VERSION}")
        return Ledger(str(body["boot_id"]), tuple(_entry_from_json(entry) for entry in body["entries"]))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is not a ledger of processes ({type(error).__name__}: {error})") from error


def _checksum(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _entry_to_json(entry: LedgerEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "role": entry.role.value,
        "launch_id": entry.launch_id,
        "fingerprint": entry.fingerprint,
        "identity": identity_to_json(entry.identity),
        "members": [identity_to_json(member) for member in entry.members],
        "started_at": entry.started_at,
        "ready_at": entry.ready_at,
        "restarts": entry.restarts,
        "crashes_in_a_row": entry.crashes_in_a_row,
        "last_exit": entry.last_exit,
        "last_exit_asked": entry.last_exit_asked,
    }


def _entry_from_json(data: Mapping[str, Any]) -> LedgerEntry:
    members = tuple(identity_from_json(member) for member in data["members"])
    return LedgerEntry(
        name=str(data["name"]),
        role=Role(data["role"]),
        launch_id=str(data["launch_id"]),
        fingerprint=str(data["fingerprint"]),
        identity=identity_from_json(data["identity"]),
        members=tuple(member for member in members if member is not None),
        started_at=float(data["started_at"]),
        ready_at=None if data["ready_at"] is None else float(data["ready_at"]),
        restarts=int(data["restarts"]),
        crashes_in_a_row=int(data["crashes_in_a_row"]),
        last_exit=None if data["last_exit"] is None else str(data["last_exit"]),
        last_exit_asked=None if data["last_exit_asked"] is None else bool(data["last_exit_asked"]),
    )


def identity_to_json(identity: ProcessIdentity | None) -> dict[str, int] | None:
    """``{"pid": …, "start_ticks": …}``."""
    return None if identity is None else {"pid": identity.pid, "start_ticks": identity.start_ticks}


def identity_from_json(data: Any) -> ProcessIdentity | None:
    """
    Read ``{"pid": …, "start_ticks": …}``; None stays None.

    Raises:
        KeyError, TypeError, ValueError: It is something else.
    """
    if data is None:
        return None
    pid, ticks = data["pid"], data["start_ticks"]
    if type(pid) is not int or type(ticks) is not int or pid <= 0 or ticks < 0:
        raise ValueError(f"not a process identity: pid {pid!r}, start_ticks {ticks!r}")
    return ProcessIdentity(pid, ticks)
