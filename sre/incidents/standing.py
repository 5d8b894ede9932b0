"""How an incident stands: what its folder says and what the guard's store says of it, together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sre.actions.records import IncidentRow
from sre.incidents.records import Incident


@dataclass(frozen=True, slots=True)
class Standing:
    """One incident. ``contexts``: requests in flight when it opened; None: not recorded."""

    id: str
    opened_wall: float
    resolved_wall: float | None
    facts: Mapping[str, Any]
    contexts: int | None
    severity: str | None
    acknowledged_wall: float | None = None
    acknowledged_by: str | None = None
    note: str | None = None
    level: int = 0
    """Escalations told since nobody acknowledged it."""

    @property
    def state(self) -> str:
        """open | escalated | acknowledged | resolved"""
        if self.resolved_wall is not None:
            return "resolved"
        if self.acknowledged_wall is not None:
            return "acknowledged"
        return "escalated" if self.level else "open"


def standing(folder: Incident | None, stored: IncidentRow | None) -> Standing:
    """
    Return how one incident stands.

    Raises:
        ValueError: Neither is given.
    """
    if folder is None and stored is None:
        raise ValueError("nothing is known of it")
    if stored is None:
        assert folder is not None
        return Standing(
            folder.id, folder.opened_wall, folder.resolved_wall, folder.facts,
            None if folder.contexts is None else len(folder.contexts), _severity(folder),
        )  # fmt: skip
    told = stored.opening
    walls = (stored.resolved_wall, None if folder is None else folder.resolved_wall)
    ends = [wall for wall in walls if wall is not None]
    facts = {"scope": told.scope, "reason": told.reason, "summary": told.summary, "severity": stored.severity}
    return Standing(
        id=stored.id,
        opened_wall=folder.opened_wall if folder is not None else stored.opened_wall,
        resolved_wall=min(ends, default=None),
        facts=folder.facts if folder is not None else facts,
        contexts=None if folder is None or folder.contexts is None else len(folder.contexts),
        severity=stored.severity,
        acknowledged_wall=stored.acknowledged_wall,
        acknowledged_by=stored.acknowledged_by,
        note=stored.note,
        level=stored.level,
    )


def _severity(folder: Incident) -> str | None:
    found = folder.facts.get("severity")
    return None if found is None else str(found)


def standings(folders: Iterable[Incident], stored: Iterable[IncidentRow]) -> list[Standing]:
    """Return how all of them stand, newest first."""
    by_id = {folder.id: folder for folder in folders}
    rows = {row.id: row for row in stored}
    found = [standing(by_id.get(name), rows.get(name)) for name in dict.fromkeys((*by_id, *rows))]
    return sorted(found, key=lambda one: (one.opened_wall, one.id), reverse=True)


def without_folder(row: IncidentRow) -> Incident:
    """Return an incident of which there is only what people were told."""
    told = row.opening
    facts = {
        "scope": told.scope, "reason": told.reason, "severity": row.severity, "summary": told.summary,
        **dict(told.facts),
    }  # fmt: skip
    return Incident(row.id, row.opened_wall, row.resolved_wall, facts, None, (), ())
