"""A calibration that cannot be made."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest

from sre.adapters.load.calibration import STUB_MODULE, calibrate
from sre.adapters.load.wire import Target
from sre.errors import ProcessError
from sre.gate.prompts import PromptScale
from sre.gate.stages import LiveCounts, StageLoad, StagePlan
from sre.testing.clock import ManualClock
from sre.testing.load import FakeLoad


async def test_a_stub_that_goes_away_is_told_as_that() -> None:
    async def killed_meanwhile(
        target: Target, scale: PromptScale, plan: StagePlan, watch: Callable[[LiveCounts], str | None],
        limit_seconds: float | None, drain_seconds: float,
    ) -> StageLoad:  # fmt: skip
        (stub,) = [one for one in psutil.Process().children() if STUB_MODULE in one.cmdline()]
        stub.kill()
        stub.wait(5)
        return await FakeLoad(ManualClock()).run(plan, watch=watch, drain_seconds=drain_seconds)

    with pytest.raises(ProcessError, match="calibration stub: went away during the calibration"):
        await calibrate(killed_meanwhile, 10.0, 0.1, 0.02, seed=1)
