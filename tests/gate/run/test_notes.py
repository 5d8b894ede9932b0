"""What a run notes of the world around its stages."""

from __future__ import annotations

import dataclasses

from sre.gate.stages import SILENT, StageSignals
from sre.testing.load import FakeSignals
from tests.gate.run.scene import Scene


async def test_a_metrics_page_that_says_nothing_is_noted_once() -> None:
    scene = Scene()
    unseen = {"engine http://fake/metrics": "no answer in time", "engine http://other/metrics": "answered 404"}
    silent = FakeSignals(StageSignals(1.0, unseen=unseen))
    scene.order = dataclasses.replace(scene.order, target=dataclasses.replace(scene.order.target, signals=silent))
    result = (await scene.run()).result
    (note,) = (note for note in result.notes if "metrics" in note)
    assert note.startswith("engine http://fake/metrics could not be read: no answer in time; its figures are missing")
    assert "busy, or a wrong URL (gate.target.metrics_urls)" in note
    assert note.partition(" (first at")[0] in scene.heard.sentences


async def test_a_metrics_page_that_answered_before_the_stage_is_not_called_a_wrong_url() -> None:
    scene = Scene()
    busy = {"engine http://fake/metrics": f"it answered before the stage, not after it: {SILENT}"}
    signals = FakeSignals(StageSignals(1.0, unseen=busy))
    scene.order = dataclasses.replace(scene.order, target=dataclasses.replace(scene.order.target, signals=signals))
    result = (await scene.run()).result
    assert [note for note in result.notes if "metrics" in note] == []
