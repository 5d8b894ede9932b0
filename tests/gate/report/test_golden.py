"""The whole of every text report of one rich result, and of the least one."""

from __future__ import annotations

import pytest

from tests.gate.report import golden_files


@pytest.mark.parametrize("name", sorted(golden_files.files()))
def test_report_is_as_committed(name: str) -> None:
    assert golden_files.files()[name] == (golden_files.FOLDER / name).read_text(), (
        f"{name} differs: python -m tests.gate.report.golden_files, and look at the difference"
    )


def test_no_golden_file_is_left_over() -> None:
    assert {path.name for path in golden_files.FOLDER.iterdir()} == set(golden_files.files())
