"""A gate run on a fake server, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sre.control.gate_end import Ended
from sre.control.gate_run import run_gate
from sre.control.gate_world import Order, Target
from sre.errors import StateError
from sre.gate.plan import Trace
from sre.gate.report.junit import junit
from sre.gate.report.markdown import markdown
from sre.gate.result import GateResult, StageResult
from sre.gate.stages import LiveCounts, StageLoad, StagePlan
from sre.settings.gate import GateSettings
from sre.testing.clock import ManualClock
from sre.testing.load import Behaviour, FakeLoad, FakeSignals


def gate_settings(**sections: Any) -> GateSettings:
    """Small stages; sections as in sre.yaml, over them."""
    base: dict[str, Any] = {
        "load": {"stages_qps": [20, 40, 80], "stage_seconds": 30, "drain_seconds": 10},
        "baseline": {"runs": 2},
        "knee": {"enabled": False},
    }
    for name, values in sections.items():
        base[name] = {**base.get(name, {}), **values} if isinstance(values, dict) else values
    return GateSettings.model_validate(base)


def without_plots(result: GateResult) -> Iterator[tuple[str, str]]:
    """The reports, but for the page with pictures: drawing them is another test's matter, and slow."""
    yield "junit.xml", junit(result)
    yield "summary.md", markdown(result)
    yield "report.html", "<html>"


class MemoryFolder:
    """Result folder in memory; ``full_after`` writes it refuses, as a full disk does."""

    def __init__(self, full_after: int | None = None) -> None:
        self.id = "20261201T030000Z-test"
        self.path = Path("memory") / self.id
        self.saved: list[GateResult] = []
        self.records: list[StagePlan] = []
        self.reports: dict[str, str] = {}
        self._left = full_after

    def save(self, result: GateResult) -> None:
        self._write("gate.json")
        self.saved.append(result)

    def save_records(self, load: StageLoad) -> None:
        self._write("requests.jsonl.gz")
        self.records.append(load.plan)

    def save_report(self, name: str, text: str) -> None:
        self._write(name)
        self.reports[name] = text

    def _write(self, name: str) -> None:
        if self._left is not None:
            if self._left <= 0:
                raise StateError(f"{self.path / name}: No space left on device; free space on its disk")
            self._left -= 1


@dataclass
class Heard:
    """Listener that remembers."""

    sentences: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    stages: list[StageResult] = field(default_factory=list)
    looks: int = 0

    def begins(self, plan: StagePlan, number: int, of: int) -> None:
        self.begun.append(f"{number}/{of} {plan.name}")

    def live(self, plan: StagePlan, counts: LiveCounts) -> None:
        self.looks += 1

    def ended(self, stage: StageResult) -> None:
        self.stages.append(stage)

    def says(self, sentence: str) -> None:
        self.sentences.append(sentence)


class Scene:
    """One run; what it was made of stays at hand."""

    def __init__(
        self,
        script: Behaviour | Callable[[StagePlan], Behaviour] | None = None,
        *,
        settings: GateSettings | None = None,
        against: Behaviour | Callable[[StagePlan], Behaviour] | None = None,
        policies: dict[str, Behaviour | Callable[[StagePlan], Behaviour]] | None = None,
        full_after: int | None = None,
        against_max_model_len: int = 40_000,
        baseline: Any = None,
        trace: Trace | None = None,
        described: tuple[tuple[str, str], ...] = (("client_host", "test"),),
        **fake: Any,
    ) -> None:
        self.clock = ManualClock()
        self.stop = asyncio.Event()
        self.settings = settings or gate_settings()
        self.load = FakeLoad(self.clock, script, **fake)
        self.against = None if against is None else FakeLoad(self.clock, against, max_model_len=against_max_model_len)
        self.folder = MemoryFolder(full_after)
        self.folders_made = 0
        self.heard = Heard()
        self.order = Order(
            settings=self.settings,
            target=Target("http://fake", self.load, FakeSignals(described=described)),
            tool_version="0",
            against=None if self.against is None else Target("http://other", self.against, FakeSignals()),
            policies={
                name: Target(f"http://{name}", FakeLoad(self.clock, does), FakeSignals())
                for name, does in (policies or {}).items()
            },
            baseline=baseline,
            trace=trace,
            render=without_plots,
        )

    def make_folder(self) -> MemoryFolder:
        self.folders_made += 1
        return self.folder

    async def run(self) -> Ended:
        return await run_gate(self.order, self.make_folder, self.clock, self.heard, self.stop)
