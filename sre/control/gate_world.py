"""What a gate run is handed: servers, a folder, somebody to tell, and what is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sre.control.gate_ports import LoadGenerator, SignalReader
from sre.gate.plan import Trace
from sre.gate.result import GateResult, StageResult
from sre.gate.stages import LiveCounts, StageLoad, StagePlan
from sre.settings.gate import GateSettings

if TYPE_CHECKING:
    from sre.gate.baseline import Baseline


def rendered(result: GateResult) -> Iterator[tuple[str, str]]:
    """Every report of a run."""
    from sre.gate.report.html import html
    from sre.gate.report.junit import junit
    from sre.gate.report.markdown import markdown

    yield "junit.xml", junit(result)
    yield "summary.md", markdown(result)
    yield "report.html", html(result)


@dataclass(frozen=True, slots=True)
class Target:
    """One server under load."""

    url: str
    generator: LoadGenerator
    signals: SignalReader


@dataclass(frozen=True, slots=True)
class Order:
    """
    What one gate run is to do.

    Attributes:
        target: The candidate.
        against: The other side of an interleaved comparison; None: no such comparison.
        policies: Arms of the long-tail test beside the target, by name.
        baseline: What the candidate is compared with; None: by the objectives alone.
        render: Makes name and text of every report.
    """

    settings: GateSettings
    target: Target
    tool_version: str
    against: Target | None = None
    policies: Mapping[str, Target] = field(default_factory=dict)
    baseline: Baseline | None = None
    trace: Trace | None = None
    render: Callable[[GateResult], Iterable[tuple[str, str]]] = rendered


class Folder(Protocol):
    """
    The result folder of one run. Every call blocks on the disk.

    Raises:
        StateError: The disk refuses; the sentence names the file and what to do. What was written before stays.
    """

    @property
    def id(self) -> str: ...

    @property
    def path(self) -> Path: ...

    def save(self, result: GateResult) -> None:
        """Replace ``gate.json``, whole or not at all."""
        ...

    def save_records(self, load: StageLoad) -> None:
        """Write the requests of one stage to a file of its own."""
        ...

    def save_report(self, name: str, text: str) -> None:
        """Write one report."""
        ...


class Listener(Protocol):
    """Told what happens while it happens; must return at once."""

    def begins(self, plan: StagePlan, number: int, of: int) -> None:
        """A stage begins: ``number`` from 1, of at least ``of``."""
        ...

    def live(self, plan: StagePlan, counts: LiveCounts) -> None:
        """About four times a second."""
        ...

    def ended(self, stage: StageResult) -> None: ...

    def says(self, sentence: str) -> None:
        """A step that is no stage, or a warning."""
        ...


MakeFolder = Callable[[], Folder]
