"""A desk on a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.webhook.scenes import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()
