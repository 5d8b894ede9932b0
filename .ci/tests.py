"""
Run all tests in several pytest processes, so that two cores are busy: tests that start real processes mostly wait.

    python .ci/tests.py             all tests
    python .ci/tests.py ARGUMENT…   one pytest with these arguments

Two parts with real processes run at a time; the last, in which whole stacks are scraped every second, alone. What only
computes runs beside all of it at the lowest priority.

Parts are told in the order in which they were started, each in one piece, the one whose turn it is as it goes. Exit
code: 0 if all passed, else that of the first that did not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
PYTEST = (sys.executable, "-m", "pytest")
REAL = "integration or vllm"
# In each queue the longest first. A folder that is not named here is in "others", which may grow: it comes first.
IN_PAIRS = (
    "tests/e2e", "tests/demo", "tests/contracts", "tests/gate", "tests/notify", "tests/vllm", "tests/webhook",
)  # fmt: skip
ALONE = ("tests/monitoring/live",)
POLL_SECONDS = 0.1


@dataclass
class Part:
    """Some of the tests, in a pytest of their own."""

    name: str
    arguments: tuple[str, ...]
    niceness: int = 0
    output: IO[bytes] = field(default_factory=lambda: tempfile.TemporaryFile(prefix="sre-tests-"))  # noqa: SIM115 - lasts
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    seconds: float | None = None
    """How long it took; None: not yet ended."""

    def start(self) -> None:
        cache = f"cache_dir=.pytest_cache/{self.name.replace('/', '-')}"
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            ["nice", "-n", str(self.niceness), *PYTEST, "-o", cache, *self.arguments],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def ended(self) -> bool:
        assert self.process is not None
        if self.seconds is None and self.process.poll() is not None:
            self.seconds = time.monotonic() - self.began
        return self.seconds is not None

    def wait(self) -> int:
        """Exit code, as a shell says it: 128 + signal of one that was killed."""
        assert self.process is not None
        code: int = self.process.wait()
        self.ended()
        return code if code >= 0 else 128 - code


def parts() -> tuple[list[Part], list[Part], Part]:
    """In pairs; alone; what computes. Together they are all tests, each once."""
    named = (*IN_PAIRS, *ALONE)
    real = {folder: Part(folder, (folder, "-m", REAL)) for folder in named}
    others = Part("others", ("-m", REAL, *(f"--ignore={folder}" for folder in named)))
    computing = Part("computing", ("-m", f"not ({REAL})"), niceness=19)
    return [others, *(real[folder] for folder in IN_PAIRS)], [real[folder] for folder in ALONE], computing


class Teller:
    """Shows what parts say, one after the other."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._at, self._titled = 0, False

    def add(self, part: Part) -> None:
        self._parts.append(part)

    def tell(self) -> None:
        """All that can be shown by now."""
        while self._parts:
            part = self._parts[0]
            ended = part.ended()  # before reading: what comes between is shown the next time
            if not self._titled:
                self._show(f"\n==== {part.name} ====\n".encode())
                self._titled = True
            while text := os.pread(part.output.fileno(), 65536, self._at):
                self._at += len(text)
                self._show(text)
            if not ended:
                return
            self._parts.pop(0)
            self._at, self._titled = 0, False

    @staticmethod
    def _show(text: bytes) -> None:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()


def run_all() -> int:
    in_pairs, alone, computing = parts()
    started: list[Part] = []
    teller = Teller()

    def start(queue: list[Part]) -> Part | None:
        part = queue.pop(0) if queue else None
        if part is not None:
            part.start()
            started.append(part)
            teller.add(part)
        return part

    try:
        one, other, beside = start(in_pairs), start(in_pairs), start([computing])
        while one or other or beside:
            time.sleep(POLL_SECONDS)
            if other and other.ended():
                other = start(in_pairs)
            if one is None or one.ended():
                one = start(in_pairs) or (None if other else start(alone))
            if beside and beside.ended():
                beside = None
            teller.tell()
    except SystemExit:
        for part in started:
            if part.process is not None and part.process.poll() is None:
                part.process.send_signal(signal.SIGINT)
        raise
    finally:
        # Ctrl-C reaches all from the terminal; each tidies up by itself.
        for part in started:
            part.wait()
        teller.tell()
    codes = {part.name: part.wait() for part in started}
    sys.stdout.write("\n==== all ====\n")
    for part in started:
        ending = f"exit code {codes[part.name]}" if codes[part.name] else "passed"
        sys.stdout.write(f"{part.name:<24}{part.seconds:6.0f} s  {ending}\n")
    return next((code for code in codes.values() if code), 0)


def main(arguments: list[str]) -> int:
    if arguments:
        return subprocess.run([*PYTEST, *arguments], cwd=ROOT).returncode
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return run_all()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
