"""Runs of the gate on disk, as commands find them."""

from __future__ import annotations

import dataclasses
from typing import Any

from sre.adapters.gate_files import GateFiles
from sre.gate.result import GateResult
from tests.gate.run.scene import Scene, gate_settings

DAY = "2027-01-15"
"""Of the runs that ``measured`` makes."""


def keep(runs: GateFiles, result: GateResult, wall: float) -> str:
    """Put ``result`` there as a run of its own; its id."""
    folder = runs.create(wall)
    folder.save(dataclasses.replace(result, id=folder.id))
    return folder.id


async def measured(runs: int = 5, **fake: Any) -> GateResult:
    """A run that passed, on a fake server."""
    settings = gate_settings(load={"stages_qps": [20], "stage_seconds": 20}, baseline={"runs": runs})
    return (await Scene(settings=settings, **fake).run()).result
