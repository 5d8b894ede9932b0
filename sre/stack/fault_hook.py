"""How a real vLLM is started so that it can act out injected errors (``engines[].fault_hook: true``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MIDDLEWARE = "sre_fault_hook.FaultHook"
FAULT_FILE_VARIABLE = "SRE_FAULT_FILE"


@dataclass(frozen=True, slots=True)
class FaultHook:
    """Further arguments and environment of vLLM's API server."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def fault_hook_args(fault_file: Path | str, *, pythonpath: str = "") -> FaultHook:
    """
    Return what loads our fault middleware into vLLM.

    Args:
        fault_file: The engine's fault file, ``StatePaths.engine_faults / "NAME.json"``.
        pythonpath: PYTHONPATH the engine would get otherwise; kept behind our folder.
    """
    # A folder of its own: with the whole package on the path, our dependencies would shadow vLLM's.
    folder = Path(__file__).resolve().parents[1] / "servers" / "vllm_hooks"
    places = [str(folder), *filter(None, pythonpath.split(os.pathsep))]
    return FaultHook(
        ("--middleware", MIDDLEWARE), {"PYTHONPATH": os.pathsep.join(places), FAULT_FILE_VARIABLE: str(fault_file)}
    )
