"""The folder of baselines: whole files, one writer at a time, damage said."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sre.adapters.gate_baselines import BaselineFolder
from sre.adapters.processes.files import disk_remedy
from sre.errors import ConfigError, Refused, StateError
from sre.gate.baseline import Baseline, add
from tests.gate.verdict.test_baseline import accepted, result


def test_there_is_nothing_before_something_is_accepted(tmp_path: Path) -> None:
    folder = BaselineFolder(tmp_path / "not-yet")
    assert folder.load("default") is None
    assert folder.names() == ()
    assert folder.list() == ()
    assert not (tmp_path / "not-yet").exists(), "reading makes no folder"


def test_what_is_written_is_read_back_and_nothing_else_is_left(tmp_path: Path) -> None:
    folder, made = BaselineFolder(tmp_path / "a" / "b"), accepted(result())
    folder.replace("default", made)
    assert folder.load("default") == made
    assert os.listdir(tmp_path / "a" / "b") == ["default.json"]
    assert [one.name for one in folder.list()] == ["default"]


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A", ".hidden", "x" * 41, "a\n"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="not a name"):
        BaselineFolder(tmp_path).load(name)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"schema":"other"}'])
def test_a_damaged_file_is_said_hides_no_other_and_can_be_replaced(tmp_path: Path, content: bytes) -> None:
    folder, made = BaselineFolder(tmp_path), accepted(result())
    folder.replace("good", made)
    (tmp_path / "bad.json").write_bytes(content)
    (tmp_path / "Not A Baseline.json").write_text("{}")
    (tmp_path / "README.md").write_text("ours")
    with pytest.raises(StateError, match=r"bad\.json"):
        folder.load("bad")
    bad, good = folder.list()
    assert (bad.name, bad.baseline, good.baseline) == ("bad", None, replace(made, name="good"))
    assert "bad.json" in bad.problem
    with pytest.raises(StateError):
        folder.update("bad", lambda existing: made)
    assert (tmp_path / "bad.json").read_bytes() == content
    folder.replace("bad", made)
    assert folder.load("bad") == replace(made, name="bad")


def test_a_copied_file_is_called_by_its_own_name(tmp_path: Path) -> None:
    """Else what is said about it sends people to the file that it was copied from."""
    folder = BaselineFolder(tmp_path)
    folder.replace("default", accepted(result()))
    (tmp_path / "other.json").write_bytes((tmp_path / "default.json").read_bytes())
    copied = folder.load("other")
    assert copied is not None
    assert copied.name == "other"


def test_what_cannot_be_read_or_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = BaselineFolder(tmp_path / "file")
    with pytest.raises(StateError, match=r"gate\.baseline\.folder"):
        folder.replace("default", accepted(result()))
    with pytest.raises(StateError, match=r"gate\.baseline\.folder"):
        folder.names()
    (tmp_path / "default.json").mkdir()
    with pytest.raises(StateError, match=r"default\.json: is no file but a folder; move it away"):
        BaselineFolder(tmp_path).load("default")
    with pytest.raises(StateError, match=r"cannot be written: Is a directory; remove the folder that is in its"):
        BaselineFolder(tmp_path).replace("default", accepted(result()))
    assert os.listdir(tmp_path / "default.json") == []


def test_what_stands_in_the_place_of_a_baseline_is_listed_with_its_problem(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe.json")
    folder = BaselineFolder(tmp_path)
    assert folder.names() == ("folder", "link", "pipe")
    assert [(one.baseline, one.problem.removeprefix(f"{tmp_path}/")) for one in folder.list()] == [
        (None, "folder.json: is no file but a folder; move it away, and accept a baseline"),
        (None, "link.json: is a link to nothing; correct it, or remove it"),
        (None, "pipe.json: is no file but a pipe or device; move it away, and accept a baseline"),
    ]


def test_a_read_only_disk_has_a_remedy_of_its_own() -> None:
    assert disk_remedy(OSError(errno.EROFS, "Read-only file system")) == "mount its disk writable"
    assert disk_remedy(OSError(errno.ENOSPC, "No space left on device")) == "free space on its disk"
    assert disk_remedy(OSError(errno.EACCES, "Permission denied")) == "correct its permissions"


def test_a_change_that_is_refused_leaves_the_old_one(tmp_path: Path) -> None:
    folder, made = BaselineFolder(tmp_path), accepted(result())
    folder.replace("default", made)
    with pytest.raises(Refused):
        folder.update("default", lambda existing: add(existing or made, made))
    assert folder.load("default") == made


def test_two_at_once_lose_no_run(tmp_path: Path) -> None:
    """Read, add, write, from eight threads: without the lock the last writer would drop the others' runs."""
    first = accepted(result())
    BaselineFolder(tmp_path).replace("default", first)
    together = threading.Barrier(8)

    def one(number: int) -> None:
        name = f"r{number}"
        fresh = replace(
            first,
            runs=tuple(replace(run, run_id=name) for run in first.runs),
            acceptances=(replace(first.acceptances[0], run_id=name),),
        )

        def change(existing: Baseline | None) -> Baseline:
            assert existing is not None
            return add(existing, fresh)

        together.wait(60)
        BaselineFolder(tmp_path).update("default", change)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    found = BaselineFolder(tmp_path).load("default")
    assert found is not None
    assert {one.run_id for one in found.acceptances} == {"run-1-0", *(f"r{number}" for number in range(8))}
    assert len(found.runs) == 45
