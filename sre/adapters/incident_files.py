"""Incident folders on disk: ``incidents/inc-…/`` with incident.json, contexts.jsonl, evidence/."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sre.actions.types import InFlightRequest
from sre.errors import StateError
from sre.incidents.identity import is_incident_id, opened_wall
from sre.incidents.records import Incident, context_line, parse_lines
from sre.redaction import Redact, redact

INCIDENTS_KEPT = 200
BYTES_KEPT = 256 * 1024 * 1024
EVIDENCE_BYTES = 1024 * 1024
"""Of one piece of evidence the last so many bytes are kept: what came before a failure stands at the end of a log."""
EVIDENCE_FILES = 64
CUT_OFF = "(beginning cut off)\n"

EVIDENCE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")


class IncidentFiles:
    """
    Writes and reads incident folders. Files are 0600, folders 0700, whole or not there.

    Writing blocks (fsync) and raises StateError when the disk refuses; every call may be repeated after a crash.
    """

    def __init__(
        self,
        root: Path,
        *,
        redact: Redact = redact,
        incidents_kept: int = INCIDENTS_KEPT,
        bytes_kept: int = BYTES_KEPT,
    ) -> None:
        self._root = root
        self._redact = redact
        self._incidents_kept = incidents_kept
        self._bytes_kept = bytes_kept

    # Writing

    def open(self, incident_id: str, facts: Mapping[str, object]) -> Path:
        """
        Make the folder of a new incident; one that is there already stays as it is. Old ones go beyond the limits.

        Args:
            facts: What tripped and what was seen; anything JSON can hold. Secrets in texts are taken out.
                ``opened_wall``, ``scope``, ``reason`` and ``severity`` are shown in lists.
        """
        folder = self._folder(incident_id)
        document = {
            "opened_wall": opened_wall(incident_id),
            "resolved_wall": None,
            **self._clean(facts),
            "id": incident_id,
        }
        with self._explained(folder):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            (folder / "evidence").mkdir(mode=0o700, exist_ok=True)
            if not (folder / "incident.json").exists():
                _write(folder / "incident.json", _pretty(document))
            self._prune(keep=incident_id)
        return folder

    def write_contexts(self, incident_id: str, requests: Sequence[InFlightRequest]) -> int:
        """
        Write the requests in flight; return how many are on disk.

        The first call wins: after a crash of the guard a repeated call does not replace what was open at the trip
        by what is open later.
        """
        file = self._folder(incident_id) / "contexts.jsonl"
        with self._explained(file):
            if not file.exists():
                _write(file, "".join(f"{context_line(request, self._redact)}\n" for request in requests))
                return len(requests)
            return len(parse_lines(file.read_text("utf-8"))[0])

    def write_evidence(self, incident_id: str, name: str, text: str) -> Path:
        """
        Keep ``text`` as ``evidence/NAME``, without secrets; of a long one the end. The first call per name wins: what
        was taken before a recovery must not be replaced by what is seen after it.

        Raises:
            ValueError: ``name`` is no plain file name.
        """
        if not EVIDENCE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name for a piece of evidence; use letters, digits, dot, dash")
        file = self._folder(incident_id) / "evidence" / name
        with self._explained(file):
            if not file.exists() and sum(1 for _ in file.parent.iterdir()) < EVIDENCE_FILES:
                _write(file, self._redact(_end_of(text, 2 * EVIDENCE_BYTES)), limit_bytes=EVIDENCE_BYTES)
        return file

    def resolve(self, incident_id: str, *, at_wall: float, facts: Mapping[str, object] | None = None) -> None:
        """Record the end of an incident; the first end stays."""
        file = self._folder(incident_id) / "incident.json"
        with self._explained(file):
            try:
                document = _read_object(file)
            except ValueError:
                document = {}  # damaged: the end is recorded all the same
            if document.get("resolved_wall") is None:
                said = self._clean(facts or {})
                _write(file, _pretty({"id": incident_id, **document, **said, "resolved_wall": at_wall}))

    def _clean(self, facts: Mapping[str, object]) -> dict[str, object]:
        """Return ``facts`` without secrets: a provider's answer or an alert's annotation may quote one."""

        def clean(value: object) -> object:
            if isinstance(value, str):
                return self._redact(value)
            if isinstance(value, Mapping):
                return {key: clean(one) for key, one in value.items()}
            return [clean(one) for one in value] if isinstance(value, list | tuple) else value

        return {key: clean(value) for key, value in facts.items()}

    # Reading

    def list(self) -> Sequence[str]:
        """The incidents on disk, oldest first."""
        try:
            return sorted(entry.name for entry in self._root.iterdir() if is_incident_id(entry.name))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StateError(f"incidents {self._root}: {error.strerror}; check owner and mode") from error

    def read(self, incident_id: str) -> Incident | None:
        """One incident; None if there is none of that name. Damaged files are reported, never raised."""
        if not is_incident_id(incident_id) or not (folder := self._root / incident_id).is_dir():
            return None
        damage: list[str] = []
        facts: Mapping[str, Any] = {}
        try:
            facts = _read_object(folder / "incident.json")
            if not facts:
                damage.append("incident.json is missing")
        except (OSError, ValueError) as error:
            damage.append(f"incident.json cannot be read: {error}")
        contexts = _lines(folder / "contexts.jsonl", damage)
        try:
            evidence = sorted(entry.name for entry in (folder / "evidence").iterdir() if _visible(entry))
        except OSError:
            evidence = []
        return Incident(
            id=incident_id,
            opened_wall=_number(facts.get("opened_wall")) or opened_wall(incident_id),
            resolved_wall=_number(facts.get("resolved_wall")),
            facts=facts,
            contexts=contexts,
            evidence=evidence,
            damage=damage,
        )

    def read_evidence(self, incident_id: str, name: str) -> str | None:
        """The text of one piece of evidence; None if it is not there or not readable."""
        if not is_incident_id(incident_id) or not EVIDENCE_NAME.fullmatch(name):
            return None
        try:
            return (self._root / incident_id / "evidence" / name).read_text("utf-8", "replace")
        except OSError:
            return None

    def _folder(self, incident_id: str) -> Path:
        if not is_incident_id(incident_id):
            raise ValueError(f"{incident_id!r} is no incident id")
        return self._root / incident_id

    def _prune(self, *, keep: str) -> None:
        """Remove the oldest incidents beyond the limits: resolved ones first, never ``keep``."""
        names = [name for name in self.list() if name != keep]
        sizes = {name: _size(self._root / name) for name in names}
        total = sum(sizes.values()) + _size(self._root / keep)
        count = len(names) + 1
        if count <= self._incidents_kept and total <= self._bytes_kept:
            return
        for name in sorted(names, key=lambda n: (not self._is_resolved(n), n)):
            if count <= self._incidents_kept and total <= self._bytes_kept:
                break
            shutil.rmtree(self._root / name, ignore_errors=True)
            count -= 1
            total -= sizes[name]

    def _is_resolved(self, name: str) -> bool:
        try:
            return _read_object(self._root / name / "incident.json").get("resolved_wall") is not None
        except (OSError, ValueError):
            return True

    @contextlib.contextmanager
    def _explained(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StateError(
                f"incident file {path}: {error.strerror or error}; free space or correct its permissions"
            ) from error
        except UnicodeError as error:
            raise StateError(f"incident file {path}: {error}") from error


def _pretty(document: Mapping[str, object]) -> str:
    return json.dumps(document, indent=2, sort_keys=True, default=str) + "\n"


def _read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in ``file``; empty when there is none. Raises OSError, ValueError."""
    try:
        document = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def _lines(file: Path, damage: list[str]) -> list[dict[str, Any]] | None:
    try:
        found, odd = parse_lines(file.read_text("utf-8", "replace"))
    except FileNotFoundError:
        return None
    except OSError as error:
        damage.append(f"{file.name} cannot be read: {error.strerror}")
        return None
    if odd:
        damage.append(f"{file.name}: {odd} damaged lines left out")
    return found


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _visible(entry: Path) -> bool:
    return not entry.name.startswith(".")


def _size(folder: Path) -> int:
    total = 0
    for entry in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += entry.stat().st_size
    return total


def _end_of(text: str, length: int) -> str:
    """Return the last ``length`` characters from the start of a line on: half a secret would not be known as one."""
    if len(text) <= length:
        return text
    end = text[-length:]
    return CUT_OFF + end[end.find("\n") + 1 :]


def _write(file: Path, text: str, limit_bytes: int | None = None) -> None:
    """
    Put ``text`` (its end, if it is longer than the limit) in place of ``file``, on disk when this returns; a crash
    leaves the old or the new.
    """
    raw = text.encode("utf-8", "replace")
    if limit_bytes is not None and len(raw) > limit_bytes:
        raw = CUT_OFF.encode() + raw[-limit_bytes:]
    unfinished = file.with_name(f".{file.name}.new")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(descriptor, raw)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(unfinished, file)
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def _write_all(descriptor: int, raw: bytes) -> None:
    """Write all of ``raw``: near a full disk a write may take only a part."""
    while raw:
        raw = raw[os.write(descriptor, raw) :]
