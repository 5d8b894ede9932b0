"""
Run all tests in two pytest processes at once: those that start real processes mostly wait, the others mostly compute.

    python .ci/tests.py             all tests
    python .ci/tests.py ARGUMENT…   one pytest with these arguments

What computes runs at a lower priority, so that the deadlines of the others are not tried by us. Its output comes at
the end, in one piece. Exit code: 0 if both passed, else that of the first that did not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = (sys.executable, "-m", "pytest")
REAL = "integration or vllm"


def lower_priority() -> None:
    os.nice(5)


def main(arguments: list[str]) -> int:
    if arguments:
        return subprocess.run([*PYTEST, *arguments], cwd=ROOT).returncode
    with tempfile.TemporaryFile("w+", prefix="sre-tests-") as output:
        computing = subprocess.Popen(
            [*PYTEST, "-m", f"not ({REAL})", "-o", "cache_dir=.pytest_cache/computing"],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, preexec_fn=lower_priority,
        )  # fmt: skip
        try:
            real = subprocess.run([*PYTEST, "-m", REAL, "-o", "cache_dir=.pytest_cache/real"], cwd=ROOT).returncode
        finally:
            # Ctrl-C reaches both from the terminal; each tidies up by itself.
            code = computing.wait()
            output.seek(0)
            print("\n==== tests that start no real process ====", flush=True)
            sys.stdout.write(output.read())
    return real or code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
