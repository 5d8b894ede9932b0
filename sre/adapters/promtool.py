"""promtool: Prometheus' own judge of rule files and of the cases that prove alerts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sre.errors import BinaryNotFound, ProcessError

TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Judged:
    """``passed``, and what promtool said."""

    passed: bool
    output: str


def promtool_binary() -> str:
    """Path of promtool. Raises BinaryNotFound."""
    found = shutil.which("promtool")
    if found is None:
        raise BinaryNotFound(
            "promtool: not found in PATH; install Prometheus (Debian: apt-get install prometheus), it is part of it"
        )
    return found


def run_cases(promtool: str, files: Iterable[Path]) -> Iterator[Judged]:
    """Run each file of unit tests in a promtool of its own, as many at once as there are processors; in order."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        yield from pool.map(lambda file: _run([promtool, "test", "rules", file.name], file.parent), files)


def _run(argv: Sequence[str], folder: Path) -> Judged:
    try:
        done = subprocess.run(
            argv, cwd=folder, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_SECONDS, check=False
        )
    except OSError as error:
        raise ProcessError(f"{argv[0]}: {error.strerror}; is it the program of Prometheus?", argv=argv) from error
    except subprocess.TimeoutExpired as error:
        raise ProcessError(f"{argv[0]}: no answer in {TIMEOUT_SECONDS:g} s; is the machine busy?", argv=argv) from error
    return Judged(done.returncode == 0, done.stdout + done.stderr)
