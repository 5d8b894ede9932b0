"""Whether a fault may be injected at all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sre.chaos.catalogue import Fault
from sre.chaos.ports import Target
from sre.errors import ExitCode, Refused


class Cancelled(Refused):
    """Refused before anything was changed: no verdict. ``problems`` holds every reason, one sentence each."""

    exit_code = ExitCode.COULD_NOT_RUN

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


@dataclass(frozen=True, slots=True)
class Request:
    """
    What a person, or a drill, asks for.

    Attributes:
        value: In the fault's unit; None: its default.
        gpus: GPU faults only; None: the GPUs of the engine.
        i_own: Name of the engine, said again by the person who may break it: needed for a real engine.
        last_engine: Hit the last engine of its pool that serves, too.
        without_guard: Inject although no guard is there to contain it.
        verify_effect: False: go on without proof that the fault took effect.
    """

    fault: Fault
    engine: str
    hold_seconds: float
    value: float | None = None
    gpus: tuple[int, ...] | None = None
    i_own: str | None = None
    last_engine: bool = False
    without_guard: bool = False
    verify_effect: bool = True

    def checked_value(self) -> float | None:
        """The value to inject. Raises ValueError with a sentence."""
        spec = self.fault.value
        if spec is None:
            if self.value is not None:
                raise ValueError(f"fault {self.fault.name} takes no value; leave --value out")
            return None
        return spec.check(spec.default if self.value is None else self.value)


def refusals(
    request: Request,
    target: Target,
    *,
    guard_answers: bool,
    max_hold_seconds: float,
    gpus_shown: Collection[int] = (),
) -> tuple[str, ...]:
    """
    Return every reason not to inject, as sentences; empty: go.

    Args:
        gpus_shown: By the guard. Empty: none is told, then nothing is known of them.
    """
    fault, name = request.fault, f"engine {target.engine}"
    found = []
    if request.hold_seconds > max_hold_seconds:
        found.append(
            f"--for: {request.hold_seconds:g} s is longer than chaos.max_hold_seconds ({max_hold_seconds:g});"
            " hold it shorter or raise the limit"
        )
    if target.kind == "external":
        # Nothing else about it can be judged.
        return (*found, f"{name}: kind external is someone else's; faults are injected only into what sre up started")
    if target.kind == "vllm" and request.i_own != target.engine:
        found.append(f"{name}: a real vLLM; say --i-own {target.engine} if you may break it")
    if not target.ready:
        found.append(f"{name}: is not ready, so a fault would prove nothing; see sre status")
    if not guard_answers and not request.without_guard:
        found.append(
            "guard: does not answer, so nothing would contain the fault; start it with sre up, or say --without-guard"
        )
    if target.others and not target.others_ready and not request.last_engine:
        found.append(
            f"{name}: the last engine of pool {target.pool} that serves; bring another one back, or say --last-engine"
        )
    match fault.deed:
        case "stop_core" | "kill_core" if target.ready and not target.cores:
            found.append(
                f"{name}: no VLLM::EngineCore process under it; fault {fault.name} needs an engine core in a process"
                " of its own"
            )
        case "gpu_overlay" if not (target.gpus if request.gpus is None else request.gpus):
            found.append(f"{name}: uses no GPU by sre.yaml (engines[].gpus); say which with --gpu 0")
        case "gpu_overlay" if gpus_shown and (
            absent := sorted({*(target.gpus if request.gpus is None else request.gpus)} - {*gpus_shown})
        ):
            named = "engines[].gpus" if request.gpus is None else "--gpu"
            found.append(
                f"{named}: the guard reads no GPU {_listed(absent)}, so nothing would act on the fault; it reads"
                f" {_listed(sorted(gpus_shown))}"
            )
        case "engine_faults" if not target.acts_faults:
            found.append(
                f"{name}: a real vLLM does not act out {fault.name} by itself; set engines[].fault_hook: true and"
                " restart it"
            )
    return tuple(found)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
