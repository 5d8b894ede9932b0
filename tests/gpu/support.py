"""What GPU tests share: the compiled NVML stand-in, the files of simulated engines, and the overlay file."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sre.adapters.processes.proc import boot_id, identity_of
from tests.conftest import require_binary

GIB = 1024**3


class NvmlStandin:
    """Our own ``libnvidia-ml.so.1`` in ``folder``, and the text file that says how it behaves."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._values: dict[str, int] = {}
        compiler = require_binary("cc", "apt-get install gcc")
        source = Path(__file__).with_name("nvml_standin.c")
        library = folder / "libnvidia-ml.so.1"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)
        self.control = folder / "standin.txt"
        self.hung = folder / "standin.txt.hung"
        """Exists once a call hung."""
        self.set()

    def set(self, values: Mapping[str, int] | None = None, /, **more: int) -> None:
        """Change values; see nvml_standin.c for the keys."""
        self._values |= {**(values or {}), **more}
        temporary = self.control.with_suffix(".new")
        temporary.write_text("".join(f"{key} {value}\n" for key, value in self._values.items()))
        temporary.rename(self.control)

    @property
    def environ(self) -> Mapping[str, str]:
        """Environment in which a process loads the stand-in."""
        return os.environ | {"LD_LIBRARY_PATH": str(self._folder), "SRE_NVML_STANDIN": str(self.control)}


def no_nvml(folder: Path) -> Mapping[str, str]:
    """Environment in which no NVML can be loaded, on a machine with a GPU too."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "libnvidia-ml.so.1").write_text("no library\n")
    return os.environ | {"LD_LIBRARY_PATH": str(folder)}


def write_engine(folder: Path, name: str = "sim-0", *, gpus: Mapping[str, Mapping[str, float]], **fields: Any) -> None:
    """Write what a simulated engine (this process, unless ``fields`` say otherwise) says of its GPUs."""
    folder.mkdir(parents=True, exist_ok=True)
    identity = identity_of(os.getpid())
    assert identity is not None
    document = {
        "pid": identity.pid,
        "start_ticks": identity.start_ticks,
        "boot_id": boot_id(),
        "updated_monotonic": time.monotonic(),
        "gpus": gpus,
        **fields,
    }
    temporary = folder / f"{name}.new"
    temporary.write_text(json.dumps(document))
    temporary.rename(folder / f"{name}.json")


def write_overlay(file: Path, gpus: Mapping[str, Mapping[str, Any]], *, seconds: float = 60.0) -> None:
    """Put ``gpus`` over what is read, for ``seconds``."""
    temporary = file.with_suffix(".new")
    temporary.write_text(
        json.dumps(
            {"boot_id": boot_id(), "expires_monotonic": time.monotonic() + seconds, "run_id": "test", "gpus": gpus}
        )
    )
    temporary.rename(file)
