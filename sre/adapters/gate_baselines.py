"""The folder of accepted baselines: one JSON file each, meant to be committed beside sre.yaml."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sre.adapters.processes.files import write_atomically
from sre.errors import ConfigError, StateError
from sre.gate import baseline as baselines
from sre.gate.baseline import Baseline

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
"""As in the settings: nothing that leaves the folder."""

ANOTHER_FOLDER = "choose another folder (gate.baseline.folder)"

LARGEST_BYTES = 64 * 2**20
"""A hundred runs of many stages are some 10 MB; what is larger is no baseline."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A file of the folder: its baseline, or why it cannot be read."""

    name: str
    baseline: Baseline | None
    problem: str = ""


class BaselineFolder:
    """Reads and writes baselines. Writes are whole or not at all; two writers at once wait for each other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        """
        File of baseline ``name``.

        Raises:
            ConfigError: no such name can be.
        """
        if not NAME.fullmatch(name):
            raise ConfigError(
                [f"baseline {name!r}: not a name; write small letters, digits, - and _, 40 at most, e.g. default"]
            )
        return self._folder / f"{name}.json"

    def load(self, name: str) -> Baseline | None:
        """
        Return the baseline, named as its file is, which may be a copy; None: there is none.

        Raises:
            ConfigError: no such name can be.
            StateError: there is a file, and it cannot be read; the sentence says what to do.
        """
        path = self.path(name)
        try:
            # Asked first: to open a pipe waits for its writer.
            if not stat.S_ISREG(path.stat().st_mode):
                raise StateError(f"{path}: is no file but {_kind(path)}; move it away, and accept a baseline")
            with path.open("rb") as file:
                content = file.read(LARGEST_BYTES + 1)
            text = content.decode("utf-8")
        except FileNotFoundError:
            if path.is_symlink():
                raise StateError(f"{path}: is a link to nothing; correct it, or remove it") from None
            return None
        except UnicodeDecodeError:
            raise StateError(f"{path}: is not text; restore the file, or accept a new baseline") from None
        except OSError as error:
            raise StateError(f"{path}: cannot be read: {error.strerror}; correct its permissions") from error
        if len(content) > LARGEST_BYTES:
            raise StateError(f"{path}: is larger than {LARGEST_BYTES >> 20} MiB: no baseline of the gate")
        return replace(baselines.loads(text, str(path)), name=name)

    def update(self, name: str, change: Callable[[Baseline | None], Baseline]) -> Baseline:
        """
        Replace what is there by what ``change`` makes of it, and return that. Nothing else writes in between.

        Raises:
            StateError: the old one cannot be read, or the disk refuses; the old one stands.
            Whatever ``change`` raises: the old one stands.
        """
        path = self.path(name)
        with self._alone():
            fresh = change(self.load(name))
            write_atomically(path, baselines.dumps(fresh), instead=ANOTHER_FOLDER)
        return fresh

    def replace(self, name: str, baseline: Baseline) -> None:
        """
        Put ``baseline`` in the place of whatever is there, readable or not.

        Raises:
            StateError: the disk refuses; the old one stands.
        """
        path = self.path(name)
        with self._alone():
            write_atomically(path, baselines.dumps(baseline), instead=ANOTHER_FOLDER)

    def names(self) -> tuple[str, ...]:
        """
        Names that are taken, sorted: by baselines, or by what stands in the place of one. Empty without a folder.

        Raises:
            StateError: it cannot be read.
        """
        try:
            found = sorted(path.stem for path in self._folder.iterdir() if path.suffix == ".json")
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StateError(
                f"{self._folder}: cannot be read: {error.strerror}; correct gate.baseline.folder"
            ) from error
        return tuple(name for name in found if NAME.fullmatch(name))

    def list(self) -> tuple[Listed, ...]:
        """Every baseline; one that is damaged hides no other."""
        found = []
        for name in self.names():
            try:
                found.append(Listed(name, self.load(name)))
            except StateError as problem:
                found.append(Listed(name, None, str(problem)))
        return tuple(one for one in found if one.baseline is not None or one.problem)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the folder's lock: a lock on the folder itself, so that no file of ours is left beside the baselines."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            problem = f"cannot be made or opened: {error.strerror}; correct gate.baseline.folder"
            raise StateError(f"{self._folder}: {problem}") from error
        try:
            # Some network file systems know no locks; then the last writer wins, whole.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _kind(path: Path) -> str:
    return "a folder" if path.is_dir() else "a pipe or device"
