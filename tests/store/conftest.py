from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sre.adapters.store import GuardStore
from sre.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "guard.db"


@pytest.fixture
def open_store(db: Path, clock: ManualClock) -> Iterator[Callable[..., GuardStore]]:
    """Opens the store at ``db``; what is still open at the end is closed."""
    with ExitStack() as stack:

        def open_it(boot_id: str = "boot-1") -> GuardStore:
            return stack.enter_context(GuardStore.open(db, clock=clock, boot_id=boot_id))

        yield open_it


@pytest.fixture
def store(open_store: Callable[..., GuardStore]) -> GuardStore:
    return open_store()
