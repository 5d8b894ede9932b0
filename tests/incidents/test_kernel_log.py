"""The kernel's log."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sre.adapters.kernel_log import nvidia_lines, read_nvidia_lines

LOG = (
    "6,100,5000000,-;usb 1-1: new device\n"
    "3,101,61234567,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.\n"
    " SUBSYSTEM=pci\n"
    "4,102,61300000,c;nvidia-modeset: warning\n"
    "broken line NVRM\n"
)


def test_the_lines_of_the_driver(tmp_path: Path) -> None:
    assert nvidia_lines(LOG) == [
        "[61.234567] NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.",
        "[61.300000] nvidia-modeset: warning",
    ]
    file = tmp_path / "kmsg"
    file.write_text(LOG)
    log = read_nvidia_lines(file, limit=1)
    assert (log.lines, log.problem) == (["[61.300000] nvidia-modeset: warning"], None)


def test_a_log_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    log = read_nvidia_lines(tmp_path / "none")
    assert log.lines == ()
    assert log.problem is not None
    assert "No such file" in log.problem


def test_the_log_of_this_machine_is_read_or_the_reason_said() -> None:
    log = read_nvidia_lines()
    assert log.problem is None or "/dev/kmsg" in log.problem


@given(st.text())
def test_any_text_is_read_over(text: str) -> None:
    nvidia_lines(text)
