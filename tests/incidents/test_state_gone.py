"""A state that is not there while a guard runs is no state of a guard that never ran."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sre.adapters.incident_files import IncidentFiles
from sre.adapters.processes.files import stack_id
from sre.cli.main import run
from sre.settings.paths import StatePaths
from sre.stack.processes import PROCESS_MARK, STACK_MARK

ASKING = (["notify", "outbox", "list"], ["notify", "outbox", "retry", "--all-dead"], ["incident", "list"])
ASKING += (["incident", "show", "inc-1"], ["incident", "timeline", "inc-1"], ["analyze", "last-failure"])


def refused(root: Path, *argv: str) -> bool:
    return run(["--state-dir", str(root), *argv]) == 1


def test_a_guard_whose_whole_folder_was_moved_away_is_known_by_its_marks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "state"
    code = "import sys; print(flush=True); sys.stdin.read()"
    guard = subprocess.Popen(
        [sys.executable, "-c", code, "guard", "run"],
        env={**os.environ, STACK_MARK: stack_id(root), PROCESS_MARK: "guard"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert guard.stdout is not None
        guard.stdout.readline()  # it is what it was started as
        for argv in ASKING:
            assert refused(root, *argv), argv
            said = capsys.readouterr().err
            assert f"guard state {root}/guard.db: not there, though a guard runs for it (pid {guard.pid})" in said
            assert "has not run" not in said
    finally:
        guard.communicate(timeout=60)
    assert run(["--state-dir", str(root), "notify", "outbox", "list"]) == 0
    assert "the guard has not run" in capsys.readouterr().err
    assert not root.exists()


def test_a_guard_whose_file_alone_was_moved_away_is_known_by_its_socket(
    short_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = StatePaths(short_dir)
    paths.create()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(paths.guard_socket))
        listening.listen()
        for argv in ASKING:
            assert refused(short_dir, *argv), argv
            assert f"it listens on {paths.guard_socket}" in capsys.readouterr().err


def test_of_a_state_that_cannot_be_read_nothing_is_called_absent(
    short_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = StatePaths(short_dir)
    paths.create()
    paths.guard_db.write_bytes(b"")
    assert run(["--state-dir", str(short_dir), "incident", "list"]) == 5
    assert "the file is empty" in capsys.readouterr().err
    for argv in (["incident", "show", "inc-1"], ["analyze", "last-failure"]):
        assert refused(short_dir, *argv), argv
        said = capsys.readouterr()
        assert "the file is empty" in said.err
        assert "there is no" not in said.err
        assert said.out == ""


def test_incidents_whose_state_is_gone_are_not_those_of_a_guard_that_never_ran(
    short_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = StatePaths(short_dir)
    IncidentFiles(paths.incidents).open("inc-20270115-090000-00a1", {"scope": "engine a", "reason": "hang"})
    assert run(["--state-dir", str(short_dir), "incident", "list"]) == 5
    out, err = capsys.readouterr()
    assert out.startswith("inc-20270115-090000-00a1")
    assert "moved or deleted" in err
    assert "the guard has not run" not in err
