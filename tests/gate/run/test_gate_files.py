"""Files that CI names: written where it wants them, and told of where that cannot be."""

from __future__ import annotations

import os
import resource
import select
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sre.adapters.gate_files import GateFiles, append, write
from sre.errors import StateError
from tests.support.gate_samples import passed


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """``--junit /dev/stdout`` must leave a device what it is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(pipe, "<xml>")
        assert os.read(reader, 100) == b"<xml>"
        assert pipe.is_fifo()
    finally:
        os.close(reader)


@pytest.mark.parametrize("put", [write, append])
def test_a_pipe_that_nobody_reads_is_told_and_not_waited_for(put: Callable[[Path, str], None], tmp_path: Path) -> None:
    """The verdict is shown after this."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(StateError, match=r"pipe: nobody reads from this pipe; start its reader first, or name another"):
        put(pipe, "<xml>")


def test_more_than_a_pipe_holds_is_written_as_its_reader_takes_it(tmp_path: Path) -> None:
    pipe, text = tmp_path / "pipe", "x" * 1_000_000
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    taken: list[bytes] = []

    def take() -> None:
        select.select((reader,), (), (), 10)  # before its writer is there, it is at its end
        with open(reader, "rb") as file:
            taken.append(file.read(len(text)))

    thread = threading.Thread(target=take)
    thread.start()
    write(pipe, text)
    thread.join(60)
    assert taken == [text.encode()]


def test_what_stands_in_the_place_of_the_folder_of_results_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StateError, match=r"pipe: is no folder; remove the file that is in a folder's place, or choose"):
        GateFiles(tmp_path / "pipe").create(1.7e9)


def test_a_file_gets_its_folder_and_its_text_whole(tmp_path: Path) -> None:
    path = tmp_path / "out" / "junit.xml"
    write(path, "old, and longer")
    write(path, "new")
    append(path, "er")
    assert path.read_text() == "newer"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("put", [write, append])
def test_a_file_that_cannot_be_made_is_named_with_what_to_do(put: Callable[[Path, str], None], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"file/x: /.*/file is no folder; remove .*, or name another file$"):
        put(tmp_path / "file" / "x", "text")


def test_a_full_disk_leaves_no_folder_without_a_result(tmp_path: Path) -> None:
    """It would be what ``last`` means, with nothing to read in it."""
    files = GateFiles(tmp_path)
    folder = files.create(1.7e9)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))  # stands for a disk without room
    try:
        with pytest.raises(StateError, match=r"gate\.json: File too large"):
            folder.save(passed())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
    folder.save(passed())  # room was made
    assert files.find("last") == folder.path
