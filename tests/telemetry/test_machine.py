"""Facts about the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sre.adapters import machine

MOUNTS = r"""
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / /proc rw - proc proc rw
30 21 0:40 / MOUNT rw,relatime shared:7 master:2 - nfs4 server:/export rw,vers=4.2
31 21 0:41 / MOUNT\040two rw - tmpfs tmpfs rw
32 21 0:42 / MOUNT/over rw - ext4 /dev/sdb rw
33 21 0:43 / MOUNT/over rw - tmpfs tmpfs rw
garbage
"""


def filesystem(path: Path, mount: Path) -> str | None:
    return machine.filesystem_of(path, MOUNTS.replace("MOUNT", str(mount)))


def test_the_deepest_mount_counts(tmp_path: Path) -> None:
    assert filesystem(tmp_path / "a" / "b", tmp_path) == "nfs4"
    assert filesystem(tmp_path.parent, tmp_path) == "ext4"


def test_of_two_mounts_on_one_point_the_later_one_is_seen(tmp_path: Path) -> None:
    (tmp_path / "over").mkdir()
    assert filesystem(tmp_path / "over" / "x", tmp_path) == "tmpfs"


def test_blanks_in_mount_points(tmp_path: Path) -> None:
    folder = tmp_path / "m two"
    folder.mkdir()
    assert filesystem(folder, tmp_path / "m") == "tmpfs"


def test_no_mount_table_is_not_known(tmp_path: Path) -> None:
    assert machine.filesystem_of(tmp_path, "") is None


def test_this_machine_has_a_file_system(tmp_path: Path) -> None:
    assert machine.filesystem_of(tmp_path)
    assert (machine.free_bytes(tmp_path / "not" / "there") or 0) > 0


def test_a_folder_that_can_be_made_is_no_problem_and_is_not_made(tmp_path: Path) -> None:
    assert machine.write_problem(tmp_path / "a" / "b") is None
    assert list(tmp_path.iterdir()) == []


def test_writing_leaves_nothing_behind(tmp_path: Path) -> None:
    assert machine.write_problem(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert machine.write_problem(tmp_path / "file" / "state") == f"{tmp_path / 'file'} is not a folder"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_a_problem(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert machine.write_problem(tmp_path) is not None
        assert machine.write_problem(tmp_path / "below") is not None
    finally:
        tmp_path.chmod(0o700)


def test_kernel_facts_can_be_read() -> None:
    assert machine.inotify_problem() is None
    assert machine.clock_synchronized() in {True, False, None}
    soft, hard = machine.nofile_limits()
    assert 0 < soft <= hard


def test_programs_by_either_name() -> None:
    found = machine.programs(["sh", "no-such-program|sh", "no-such-program"])
    assert found["sh"] == found["no-such-program"] or found["no-such-program"] is None
    assert machine.programs(["missing-one|sh"])["missing-one"] == found["sh"]


def test_versions_of_distributions() -> None:
    assert machine.installed_version("click")
    assert machine.installed_version("no-such-distribution-of-ours") is None
