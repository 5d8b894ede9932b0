"""What must be equal for two gate runs to be compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """
    Sorted (name, value) pairs: model, server flags, GPUs, stages, mix, seed, arrivals, method of the tool, client host.

    What is under test (the server's version) is kept apart in ``subject``: it may differ, that is what a gate is for.
    """

    fields: tuple[tuple[str, str], ...]
    subject: tuple[tuple[str, str], ...] = ()
