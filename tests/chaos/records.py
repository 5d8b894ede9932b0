"""Journal records for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sre.watchdog.processes import boot_id, own_identity


def overlay_step(folder: Path, index: int = 0, tag: str = "run-1") -> dict[str, Any]:
    """A step whose deed is a tagged file."""
    path = folder / f"fault-{index}.json"
    return {
        "name": f"file {index}",
        "verb": "write_tagged_file",
        "args": {"path": str(path), "content": {"run_id": tag}},
        "revert_verb": "remove_tagged_file",
        "revert_args": {"path": str(path), "temporary": f"{path}.tmp"},
        "fallback_verb": "blank_tagged_file",
        "deadline_seconds": 1.0,
        "tag": tag,
        "state_before": "absent",
        "target": None,
    }


def signal_step(pid: int, start_ticks: int) -> dict[str, Any]:
    """A step whose deed is SIGSTOP."""
    return {
        "name": f"process {pid}",
        "verb": "signal_stop",
        "args": {},
        "revert_verb": "signal_cont",
        "revert_args": {},
        "fallback_verb": None,
        "deadline_seconds": 1.0,
        "tag": "run-1",
        "state_before": "running",
        "target": {"pid": pid, "start_ticks": start_ticks},
    }


def planned(folder: Path, steps: int | list[dict[str, Any]] = 1, **changes: Any) -> dict[str, Any]:
    """Fields of a record ``planned``; ``steps``: that many file steps, or the steps themselves."""
    me = own_identity()
    if isinstance(steps, int):
        steps = [overlay_step(folder, index) for index in range(steps)]
    return {
        "schema": 1,
        "run_id": "run-1",
        "fault": "gpu-temperature",
        "engine": "sim-0",
        "boot_id": boot_id(),
        "lease_seconds": 1.0,
        "ttl_seconds": 60.0,
        "stop_files": [],
        "injector": {"pid": me.pid, "start_ticks": me.start_ticks},
        "steps": steps,
        **changes,
    }


def text(*records: Mapping[str, Any]) -> bytes:
    """A journal of these records; one without ``record`` is ``planned``."""
    return b"".join(json.dumps({"record": "planned", **record}).encode() + b"\n" for record in records)


def place(step: Mapping[str, Any]) -> None:
    """Do the deed of a file step."""
    Path(step["args"]["path"]).write_text(json.dumps(step["args"]["content"]))
