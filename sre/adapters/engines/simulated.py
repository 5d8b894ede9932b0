"""Engines of kind sim: the process that is started."""

from __future__ import annotations

import sys

from sre.settings.paths import StatePaths
from sre.settings.stack import EngineSettings
from sre.stack.commands import reachable_host, sim_command
from sre.stack.processes import ProcessSpec, Readiness, Role


def process(engine: EngineSettings, paths: StatePaths) -> ProcessSpec:
    """Return the process of ``engine``, which has its port."""
    command = sim_command(
        engine,
        python=sys.executable,
        gpu_file=str(paths.sim_gpu / f"{engine.name}.json"),
        fault_file=str(paths.engine_faults / f"{engine.name}.json"),
    )
    return ProcessSpec(
        name=engine.name,
        role=Role.ENGINE,
        kind=engine.kind,
        command=command,
        readiness=Readiness("/health", reachable_host(engine.host), engine.port or 0),
        fingerprint=command.fingerprint(),
        ready_timeout_seconds=engine.ready_timeout_seconds,
        stop_timeout_seconds=engine.stop_timeout_seconds,
        drain_timeout_seconds=engine.drain_timeout_seconds,
        log_path=str(paths.logs / f"{engine.name}.log"),
        host=reachable_host(engine.host),
        port=engine.port or 0,
        pool=engine.served_name,
        gpus=engine.gpus,
    )
