"""The state folder: closed to others, whoever made it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sre.errors import ConfigError
from sre.settings.base import expanded
from sre.settings.paths import StatePaths, state_paths
from sre.settings.secrets import resolve_secret
from sre.settings.stack import StackSettings


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def folders(paths: StatePaths) -> tuple[Path, ...]:
    return (paths.root, paths.run, paths.logs, paths.incidents, paths.chaos, paths.sim_gpu, paths.engine_faults)


def test_folders_that_are_there_already_are_closed_to_others(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path / "state")
    for folder in folders(paths):
        folder.mkdir(parents=True)
        folder.chmod(0o755)
    paths.run.chmod(0o777)
    paths.create()
    assert {mode(folder) for folder in folders(paths)} == {0o700}


def test_new_folders_are_closed_to_others(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path / "deep" / "state")
    paths.create()
    assert {mode(folder) for folder in folders(paths)} == {0o700}


def test_a_folder_in_which_others_could_write_is_refused_not_closed(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path / "state")
    paths.root.mkdir()
    paths.root.chmod(0o770)
    with pytest.raises(ConfigError, match="chmod go-w"):
        paths.create()
    assert mode(paths.root) == 0o770


def test_a_state_folder_of_a_user_who_is_not_here_is_refused_not_made_beside_us() -> None:
    stack = StackSettings.model_construct(name="demo", state_dir=None)
    with pytest.raises(ConfigError, match=r"no user nosuchuser here; a folder of this name is \./~nosuchuser"):
        state_paths(stack, Path("~nosuchuser/state"), {})


def test_a_file_of_a_user_who_is_not_here_is_not_found() -> None:
    assert expanded("~nosuchuser/secret") == Path("~nosuchuser/secret")
    with pytest.raises(ConfigError, match="No such file"):
        resolve_secret("file:~nosuchuser/secret", "notify.x", {})
