"""A folder of generated files: what would change, and writing it. Only files with the generator's mark are ours."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sre.adapters.processes.files import disk_remedy
from sre.errors import StateError


@dataclass(frozen=True, slots=True)
class Changes:
    """
    What the folder lacks.

    Attributes:
        write: Name → text, of files that are missing or differ.
        remove: Names of files that were generated earlier and are no longer.
        diff: All of it as a unified diff; "" when nothing changes.
    """

    write: Mapping[str, str]
    remove: tuple[str, ...]
    diff: str

    def __bool__(self) -> bool:
        return bool(self.write or self.remove)


def changes(folder: Path, wanted: Mapping[str, str], mark: str) -> Changes:
    """
    Compare ``folder`` with what it should hold.

    Args:
        wanted: File name → text.
        mark: Stands in every generated file. A file without it is somebody's own: left alone.

    Raises:
        StateError: The folder cannot be read, or a file of somebody's own is in the way.
    """
    present = dict(_texts(folder, wanted))
    foreign = [name for name, text in present.items() if name in wanted and mark not in text]
    if foreign:
        raise StateError(
            f"{folder / foreign[0]}: was not generated (the line {mark!r} is missing); move it, or name another folder"
        )
    write = {name: text for name, text in wanted.items() if present.get(name) != text}
    stale = tuple(sorted(name for name, text in present.items() if name not in wanted and mark in text))
    pairs = [(name, present.get(name, ""), text) for name, text in sorted(write.items())]
    pairs += [(name, present[name], "") for name in stale]
    diff = "".join(line for name, old, new in pairs for line in _diff(folder / name, old, new))
    return Changes(write, stale, diff)


def apply(folder: Path, planned: Changes) -> None:
    """
    Write and remove; each file is replaced whole, so nobody reads half of one.

    Raises:
        StateError: The disk refuses; files written before stand.
    """
    path = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in planned.write.items():
            path = folder / name
            unfinished = path.with_name(f".{name}.{os.getpid()}")
            try:
                unfinished.write_text(text, "utf-8", newline="\n")
                os.replace(unfinished, path)
            finally:
                with contextlib.suppress(OSError):
                    unfinished.unlink(missing_ok=True)
        for name in planned.remove:
            path = folder / name
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StateError(f"{path}: {error.strerror}; {disk_remedy(error, 'name another folder')}") from error


def _texts(folder: Path, wanted: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    suffixes = {Path(name).suffix for name in wanted}
    try:
        entries = sorted(entry for entry in folder.iterdir() if entry.suffix in suffixes)
        names = [entry.name for entry in entries if entry.is_file()]
        odd = [entry for entry in entries if entry.name in wanted and not entry.is_file()]
    except FileNotFoundError:
        return
    except OSError as error:
        raise StateError(f"{folder}: {error.strerror}; name another folder") from error
    if odd:
        what = "a folder" if odd[0].is_dir() else "a link that leads nowhere" if odd[0].is_symlink() else "no file"
        raise StateError(f"{odd[0]}: is {what} where a generated file belongs; move it, or name another folder")
    for name in names:
        try:
            # A damaged file of ours still bears the mark, and is written anew.
            yield name, (folder / name).read_text("utf-8", errors="replace")
        except OSError as error:
            raise StateError(f"{folder / name}: {error.strerror}; correct its permissions") from error


def _diff(path: Path, old: str, new: str) -> Iterator[str]:
    names = (str(path) if old else "/dev/null", str(path) if new else "/dev/null")
    for line in difflib.unified_diff(old.splitlines(True), new.splitlines(True), *names):
        yield line if line.endswith("\n") else line + "\n"
