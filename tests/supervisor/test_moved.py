"""A state folder that is moved away under a living supervisor: nothing is called stopped, nothing is started twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sre.adapters.processes import proc
from sre.adapters.processes.files import stack_id
from sre.errors import ExitCode, StateError
from sre.settings.models import Root
from sre.settings.paths import StatePaths
from sre.wiring.invocation import Invocation
from sre.wiring.status import stack_status
from sre.wiring.up import CannotStart, check, down, dry_run_problems

SUPERVISOR = """
import os, subprocess, sys
marks = {"SRE_STACK_ID": sys.argv[2], "SRE_PROCESS": "a"}
command = [sys.executable, "-c", "import time; time.sleep(60)"]
child = subprocess.Popen(command, env=os.environ | marks, start_new_session=True, stdin=-3, stdout=-3, stderr=-3)
print(child.pid, flush=True)
sys.stdin.read()
"""


async def test_a_supervisor_whose_folder_is_gone_is_told_and_what_it_left_is_ended(short_dir: Path) -> None:
    paths = StatePaths(short_dir / "state")
    call = Invocation(None, paths.root, True)
    (short_dir / "sre").write_text(SUPERVISOR)
    supervisor = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, str(short_dir / "sre"), "up", stack_id(paths.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert supervisor.stdout is not None
    child = proc.identity_of(int(supervisor.stdout.readline()))
    assert child is not None
    try:
        told = f"moved or deleted while sre up \\(pid {supervisor.pid}\\) uses it"
        with pytest.raises(StateError, match=told):
            await stop(paths)
        assert not paths.root.exists()
        status = await stack_status(paths)
        assert f"(pid {supervisor.pid})" in (status.stack_problem or ""), "it is not called not running"
        assert status.exit_code is ExitCode.NO_ANSWER
        (problem,) = dry_run_problems(Root(), paths, call)
        assert f"(pid {supervisor.pid})" in problem
        with pytest.raises(CannotStart, match=told):
            check(Root(), paths, call)
        with pytest.raises(StateError, match=told):
            await stop(paths)  # the folder is there again, and empty
        assert proc.is_alive(child)
        supervisor.kill()
        supervisor.communicate(timeout=60)
        assert await stop(paths), "a killed one's children are ended"
        assert not proc.is_alive(child)
        assert not await stop(paths)
    finally:
        supervisor.kill()
        supervisor.communicate(timeout=60)
        if proc.is_alive(child):
            os.kill(child.pid, signal.SIGKILL)


async def stop(paths: StatePaths) -> bool:
    return await down(None, paths, lambda *_: None, now=True, drain_timeout_seconds=None)
