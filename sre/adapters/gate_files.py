"""
Result folders of gate runs: STATE_DIR/gate/<id>/ with gate.json, requests-*.jsonl.gz and the reports.

``gate.json`` is replaced whole after every stage, so a run that is killed leaves what it measured, marked as killed.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import re
import secrets
import select
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sre.adapters.processes.files import disk_remedy
from sre.errors import ConfigError, StateError
from sre.gate.report import document, jsonl
from sre.gate.result import GateResult
from sre.gate.stages import StageKind, StageLoad, StagePlan

RESULT = "gate.json"
LAST = "last"
RUN_ID = re.compile(r"^\d{8}T\d{6}Z-[a-z0-9]{4}$")
RUNS_KEPT = 50
"""Folders made before them are removed when a new one is made."""
NUMBER = ".number"
"""File in a run's folder: its place in the order of making. Names tell the time, and a clock may be set back."""
LARGEST_RESULT_BYTES = 1 << 30
"""A run of an hour with every cell is some 10 MB."""
_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
"""Without what looks alike."""
COMPRESSION = 1
"""The next stage waits while the records of one are written: speed counts."""
CHUNK_LINES = 500
READER_SECONDS = 5.0
"""So long a pipe may be full: whoever reads it does not go on."""
ANOTHER_FOLDER = "choose another folder with --output-dir"
ANOTHER_FILE = "name another file"


class GateFolder:
    """One run's folder. Writing blocks, and raises StateError when the disk refuses; files are whole or not there."""

    def __init__(self, path: Path, number: int) -> None:
        self._path = path
        self._number = number

    @property
    def id(self) -> str:
        return self._path.name

    @property
    def path(self) -> Path:
        return self._path

    def save(self, result: GateResult) -> None:
        """Replace ``gate.json``. Where the first one is refused no folder is left: there is nothing to read in it."""
        file = self._path / RESULT
        try:
            with _explained(self._path):
                self._path.mkdir(mode=0o700, exist_ok=True)  # a save that was refused took it away
                _keep_number(self._path, self._number)
            _replace(file, [document.dumps(result).encode()])
        except StateError:
            with contextlib.suppress(OSError):
                if not file.exists() and [one.name for one in self._path.iterdir()] in ([], [NUMBER]):
                    (self._path / NUMBER).unlink(missing_ok=True)
                    self._path.rmdir()
            raise

    def save_records(self, load: StageLoad) -> None:
        """Write one stage's requests to ``requests-….jsonl.gz``."""
        _replace(self._path / records_name(load.plan), _compressed(jsonl.lines(load)))

    def save_report(self, name: str, text: str) -> None:
        """Write one report beside ``gate.json``."""
        _replace(self._path / name, [text.encode()])


class GateFiles:
    """Every run's folder under ``root``."""

    def __init__(self, root: Path, *, runs_kept: int = RUNS_KEPT) -> None:
        self._root = root
        self._runs_kept = runs_kept

    def create(self, wall: float) -> GateFolder:
        """
        Make the folder of a run that begins at ``wall``; two runs of one second get two folders.

        Raises:
            StateError: It cannot be made.
        """
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall))
        with _explained(self._root):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = 1 + max((_number(self._root / name) or 0 for name in self.ids()), default=0)
            while True:
                path = self._root / f"{moment}-{''.join(secrets.choice(_LETTERS) for _ in range(4))}"
                with contextlib.suppress(FileExistsError):
                    path.mkdir(mode=0o700)
                    break
            try:
                _keep_number(path, number)
            except OSError:
                shutil.rmtree(path, ignore_errors=True)
                raise
        self._prune(keep=path.name)
        return GateFolder(path, number)

    def ids(self) -> Sequence[str]:
        """Runs on disk, in the order in which they were made; the clock may have been set back between two."""
        try:
            names = sorted(entry.name for entry in self._root.iterdir() if RUN_ID.fullmatch(entry.name))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StateError(f"gate results {self._root}: {error.strerror}; check owner and mode") from error
        numbers = {name: _number(self._root / name) for name in names}
        ordered = sorted((name for name in names if numbers[name] is not None), key=lambda name: numbers[name] or 0)
        # One without a number is of an older version, or was copied here without it: it stands by its name.
        for name in (name for name in names if numbers[name] is None):
            place = max((index + 1 for index, other in enumerate(ordered) if other < name), default=0)
            ordered.insert(place, name)
        return tuple(ordered)

    def newest_readable(self) -> str | None:
        """The run made last whose result can be read; None: there is none."""
        for name in reversed(self.ids()):
            with contextlib.suppress(StateError):
                read_result(self._root / name)
                return name
        return None

    def find(self, name: str) -> Path:
        """
        The folder or file that ``name`` means: ``last``, an id or the beginning of one, a path.

        Raises:
            ConfigError: There is none, or several.
        """
        if name == LAST:
            if not (ids := self.ids()):
                raise ConfigError([f"gate: no run yet in {self._root}; make one with sre gate run"])
            return self._root / ids[-1]
        matching = [known for known in self.ids() if known.startswith(name)] if name else []
        if len(matching) == 1 or name in matching:
            return self._root / (name if name in matching else matching[0])
        path = Path(name)
        if name and path.exists():
            return path
        if matching:
            raise ConfigError([f"gate: {name} is the beginning of {len(matching)} runs; write more of it"])
        raise ConfigError([f"gate: no run and no file {name!r}; see sre gate list"])

    def read(self, name: str) -> GateResult:
        """
        The result that ``name`` means (see ``find``).

        Raises:
            ConfigError: There is none.
            StateError: It cannot be read; of ``last`` the sentence names the newest that can.
        """
        path = self.find(name)
        try:
            return read_result(path)
        except StateError as error:
            readable = self.newest_readable() if name == LAST else None
            if readable is None:
                raise
            raise StateError(f"{error}; the newest run that can be read is {readable}") from error

    def _prune(self, keep: str) -> None:
        others = [name for name in self.ids() if name != keep]
        for name in others[: max(0, len(others) + 1 - self._runs_kept)]:
            shutil.rmtree(self._root / name, ignore_errors=True)


def read_result(path: Path) -> GateResult:
    """The result in a folder, or in a file. Raises StateError."""
    file = path / RESULT if path.is_dir() else path
    try:
        text = regular_bytes(file, LARGEST_RESULT_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise StateError(f"{file}: no such file; the run ended before its first result") from None
    except UnicodeDecodeError:
        raise StateError(f"{file}: is not text; give gate.json or the folder of a run") from None
    except ValueError as error:
        raise StateError(f"{file}: {error}; give gate.json or the folder of a run") from None
    except OSError as error:
        raise StateError(f"{file}: {error.strerror}; check path and permissions") from error
    return document.loads(text, str(file))


def regular_bytes(path: Path, largest: int) -> bytes:
    """
    The content of a file.

    Raises:
        ValueError: It is none, but a pipe or device, whose reading may never end; or larger than ``largest`` bytes.
        OSError: The disk refuses.
    """
    # Not waiting for the writer of a pipe; asked of what was opened, not of what had the name before.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("is no file but a pipe, a device or a folder")
        if found.st_size > largest:
            raise ValueError(f"is larger than {largest >> 20} MiB")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def _keep_number(folder: Path, number: int) -> None:
    with open(os.open(folder / NUMBER, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(str(number))


def _number(folder: Path) -> int | None:
    """Its place in the order of making, from 1; None: it has no number."""
    try:
        text = regular_bytes(folder / NUMBER, 20).decode("ascii")
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None


def records_name(plan: StagePlan) -> str:
    """``requests-0-100qps.jsonl.gz``; with side, arm or kind where the run has several."""
    parts = [str(plan.run)]
    if plan.side != "candidate":
        parts.append(plan.side.lower())
    if plan.kind is StageKind.KNEE:
        parts = ["knee", *parts]
    if plan.kind in (StageKind.SHORTS, StageKind.MIXED):
        parts = ["long-tail", plan.arm or "target", *parts]
    return f"requests-{'-'.join([*parts, plan.name])}.jsonl.gz"


def append(path: Path, text: str) -> None:
    """
    Add to a file of somebody else's, as a step summary is.

    Raises:
        StateError: The disk refuses.
    """
    with _explained(path, ANOTHER_FILE):
        if path.exists() and not path.is_file():
            _pour(path, text.encode())
            return
        with path.open("a", encoding="utf-8") as file:
            file.write(text)


def write(path: Path, text: str) -> None:
    """Write a file where a person wants it; its folder is made. Raises StateError."""
    with _explained(path, ANOTHER_FILE):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            # /dev/null, /dev/stdout, a pipe: to be written to, not to be replaced by a file.
            _pour(path, text.encode())
            return
    _replace(path, [text.encode()], mode=0o666, instead=ANOTHER_FILE)


def require_writable(path: Path, option: str, *, makes_folder: bool, instead: str = ANOTHER_FILE) -> None:
    """
    Tell whether ``path`` could be written now; leaves nothing. What the disk will hold later nobody knows.

    Args:
        option: Where the path was given, for the message.
        makes_folder: As ``write`` does, and ``append`` does not.

    Raises:
        StateError: It could not.
    """
    if path.is_dir():
        raise StateError(f"{option} {path}: a folder is in its place; remove it, or {instead}")
    if path.exists() and (not makes_folder or not path.is_file()):
        if not os.access(path, os.W_OK):
            raise StateError(f"{option} {path}: cannot be written; correct its permissions, or {instead}")
        return
    place = path.absolute().parent
    while makes_folder and not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        what = "is no folder" if place.exists() else "there is no such folder"
        raise StateError(f"{option} {path}: {place}: {what}; {instead}")
    try:
        tempfile.TemporaryFile(dir=place).close()  # permissions do not tell: a disk may be read-only
    except OSError as error:
        raise StateError(
            f"{option} {path}: no file can be made in {place}: {error.strerror}; {disk_remedy(error)}, or {instead}"
        ) from error


def _pour(path: Path, data: bytes) -> None:
    """Write to what is no file. A pipe that nobody reads must not keep the verdict from being told."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise StateError(
                f"{path}: nobody reads from this pipe; start its reader first, or {ANOTHER_FILE}"
            ) from None
        raise
    try:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BlockingIOError:
                if not select.select((), (descriptor,), (), READER_SECONDS)[1]:
                    raise StateError(
                        f"{path}: its reader took {len(data) - len(rest)} of {len(data)} bytes and no more for "
                        f"{READER_SECONDS:g} s; see to the reader, or {ANOTHER_FILE}"
                    ) from None
    finally:
        os.close(descriptor)


def _compressed(lines: Iterable[str]) -> Iterator[bytes]:
    """Members of gzip, one per some hundred lines: a file is never in memory as a whole."""
    chunk: list[str] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == CHUNK_LINES:
            yield gzip.compress("".join(chunk).encode(), COMPRESSION, mtime=0)
            chunk = []
    if chunk:
        yield gzip.compress("".join(chunk).encode(), COMPRESSION, mtime=0)


def _replace(path: Path, parts: Iterable[bytes], mode: int = 0o600, instead: str = ANOTHER_FOLDER) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with _explained(path, instead):
        try:
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
            with open(descriptor, "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _explained(path: Path, instead: str = ANOTHER_FOLDER) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = error.strerror or str(error)
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            there = next(one for one in (path, *path.parents) if one.exists())
            what = "is no folder" if there == path else f"{there} is no folder"
        raise StateError(f"{path}: {what}; {disk_remedy(error)}, or {instead}") from error
