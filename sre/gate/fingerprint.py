"""What must be equal for two gate runs to be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sre.errors import ConfigError
from sre.printable import one_line

ABSENT = "(not recorded)"
REMEDY = (
    "; run under the same conditions, accept a baseline of these, or declare in gate.baseline.may_differ what makes no "
    "difference"
)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """
    Sorted (name, value) pairs: model, server flags, GPUs, stages, mix, seed, arrivals, method of the tool, client host.

    What is under test (the server's version) is kept apart in ``subject``: it may differ, that is what a gate is for.
    """

    fields: tuple[tuple[str, str], ...]
    subject: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs; ABSENT where one side does not have it."""

    name: str
    reference: str
    candidate: str


def build(fields: Iterable[tuple[str, str]], subject: Iterable[tuple[str, str]] = ()) -> Fingerprint:
    """
    Return the fingerprint of these fields, in any order, each value on one line.

    Raises:
        ValueError: a name comes twice with two values: one of them would be lost.
    """
    return Fingerprint(_sorted(fields), _sorted(subject))


def _sorted(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for name, value in pairs:
        clean = one_line(value)
        if found.setdefault(name, clean) != clean:
            raise ValueError(f"fingerprint: {name} comes twice: {found[name]!r} and {clean!r}")
    return tuple(sorted(found.items()))


def differences(reference: Fingerprint, candidate: Fingerprint) -> tuple[Difference, ...]:
    """Return what differs in what must be equal, by name; empty: the two may be compared."""
    theirs, ours = dict(reference.fields), dict(candidate.fields)
    return tuple(
        Difference(name, theirs.get(name, ABSENT), ours.get(name, ABSENT))
        for name in sorted(theirs.keys() | ours.keys())
        if theirs.get(name) != ours.get(name)
    )


def differences_allowed(
    reference: Fingerprint, candidate: Fingerprint, may_differ: Sequence[str]
) -> tuple[Difference, ...]:
    """Return what differs and is declared to make no difference (``gate.baseline.may_differ``): to be said."""
    return tuple(one for one in differences(reference, candidate) if one.name in may_differ)


def require_equal(reference: Fingerprint, candidate: Fingerprint, where: str, may_differ: Sequence[str] = ()) -> None:
    """
    Refuse to compare apples with pears.

    Args:
        where: What the reference is, ``baseline default``.
        may_differ: Names of conditions that somebody has declared to make no difference.

    Raises:
        ConfigError: one sentence per field that differs, with both values.
    """
    found = [one for one in differences(reference, candidate) if one.name not in may_differ]
    if found:
        last = len(found) - 1
        raise ConfigError(
            [
                f"{where}: {one.name} was {one.reference}, this run has {one.candidate}"
                + (REMEDY if place == last else "")
                for place, one in enumerate(found)
            ]
        )
