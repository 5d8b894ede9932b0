"""What a starting supervisor does with processes that an earlier one left: keep them, or end them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sre.signals.types import ProcessIdentity
from sre.stack.ledger import LedgerEntry
from sre.stack.processes import Found, ProcessSpec


@dataclass(frozen=True, slots=True)
class Adopt:
    """Keep this process running as ``name``. ``entry`` is None when only its marks tell what it is."""

    name: str
    identity: ProcessIdentity
    launch_id: str
    entry: LedgerEntry | None


@dataclass(frozen=True, slots=True)
class EndFamily:
    """End a launch: its leader, its session, their descendants."""

    name: str
    leader: ProcessIdentity
    known: tuple[ProcessIdentity, ...]
    why: str


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    """The whole plan; names in neither list have nothing running."""

    adopt: tuple[Adopt, ...]
    end: tuple[EndFamily, ...]


CHANGED = "its configuration changed since it was started"
NOT_WANTED = "the configuration no longer asks for it"
LEFT_BEHIND = "left behind by a process that has ended"
SECOND = "it runs a second time"


def plan_adoption(
    specs: Mapping[str, ProcessSpec],
    entries: Sequence[LedgerEntry],
    found: Sequence[Found],
    alive: Collection[ProcessIdentity],
) -> AdoptionPlan:
    """
    Decide for every process that an earlier supervisor of this stack left.

    Args:
        specs: What shall run, by name.
        entries: The ledger of this boot; empty when it is lost.
        found: Living processes with this stack's marks, oldest first.
        alive: Those identities of ``entries`` that still live.

    At most one process per name is kept, and only one that was started exactly as ``specs`` asks. One that the ledger
    does not know is kept only if it leads its session and its arguments are the wanted ones: a child that moved to a
    session of its own carries the same marks.
    """
    adopt: dict[str, Adopt] = {}
    end: list[EndFamily] = []
    launches_in_ledger = set()

    for entry in entries:
        if entry.identity is None:
            continue  # an intent: what came of it, if anything, is found by its marks
        launches_in_ledger.add(entry.launch_id)
        if entry.identity not in alive:
            end.append(EndFamily(entry.name, entry.identity, entry.members, LEFT_BEHIND))
            continue
        spec = specs.get(entry.name)
        if spec is not None and spec.fingerprint == entry.fingerprint and entry.name not in adopt:
            adopt[entry.name] = Adopt(entry.name, entry.identity, entry.launch_id, entry)
        else:
            why = NOT_WANTED if spec is None else SECOND if entry.name in adopt else CHANGED
            end.append(EndFamily(entry.name, entry.identity, entry.members, why))

    kept_launches = {kept.launch_id for kept in adopt.values()}
    for process in found:
        if process.launch_id in kept_launches:
            continue  # of the family of one that is kept
        if process.launch_id in launches_in_ledger:
            end.append(EndFamily(process.name, process.identity, (), LEFT_BEHIND))
            continue
        spec = specs.get(process.name)
        if spec is None:
            end.append(EndFamily(process.name, process.identity, (), NOT_WANTED))
        elif process.name in adopt:
            end.append(EndFamily(process.name, process.identity, (), SECOND))
        elif not _is_launch_of(process, spec):
            why = CHANGED if process.leader and process.fingerprint != spec.fingerprint else LEFT_BEHIND
            end.append(EndFamily(process.name, process.identity, (), why))
        else:
            adopt[process.name] = Adopt(process.name, process.identity, process.launch_id, None)
            kept_launches.add(process.launch_id)
    return AdoptionPlan(tuple(adopt.values()), tuple(end))


def _is_launch_of(process: Found, spec: ProcessSpec) -> bool:
    return (
        process.leader
        and process.fingerprint == spec.fingerprint
        and spec.command is not None
        and process.argv == spec.command.argv
    )
