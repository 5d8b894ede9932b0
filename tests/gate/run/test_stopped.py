"""A run that a person stops while something else is wrong, too."""

from __future__ import annotations

from sre.errors import ExitCode, NotReady, StateError
from sre.gate.report import tables
from sre.gate.stages import StageLoad, StagePlan
from tests.gate.run.scene import MemoryFolder, Scene

SILENT = "load processes: do not stop within 5 s; their requests are lost"


async def test_a_load_process_that_does_not_answer_to_the_stop_does_not_hide_who_stopped_the_run() -> None:
    def silent(plan: StagePlan, seconds: float) -> None:
        if plan.rate_rps == 40 and seconds > 10:
            scene.stop.set()
            raise NotReady(SILENT)

    scene = Scene(on_look=silent)
    ended = await scene.run()
    assert ended.exit_code(inconclusive_passes=True) is ExitCode.ABORTED
    assert ended.result.interrupted == f"stopped by a person; {SILENT}"
    assert ended.broken == SILENT
    assert "stopped by a person" in tables.decided(ended.result)
    assert ended.result.runs[0].stages[0].summary is not None


async def test_a_disk_that_is_full_after_all_was_measured_is_told_though_a_person_stopped_the_run() -> None:
    class Full(MemoryFolder):
        def save_records(self, load: StageLoad) -> None:
            super().save_records(load)
            if (load.plan.name, load.plan.run) == ("80qps", 1):
                scene.stop.set()
                raise StateError("No space left on device")

    scene = Scene()
    scene.folder = Full()
    ended = await scene.run()
    assert ended.exit_code(inconclusive_passes=True) is ExitCode.COULD_NOT_RUN
