"""Files that CI names: written where it wants them, and told of where that cannot be."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sre.adapters.gate_files import append, write
from sre.errors import StateError


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
    with pytest.raises(StateError, match=r"file/x: \w[\w ]+; correct its permissions, or name another file$"):
        put(tmp_path / "file" / "x", "text")
