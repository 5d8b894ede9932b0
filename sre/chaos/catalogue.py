"""The faults that can be injected: descriptions in ``chaos/*.yml``, one file per fault."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from sre.errors import ConfigError
from sre.settings.base import Settings
from sre.settings.stack import Name, Positive

Deed = Literal["stop_core", "kill_core", "gpu_overlay", "engine_faults"]


class FaultValue(Settings):
    """The one number a fault may take (``--value``)."""

    key: str
    """Its name in the fault file."""
    unit: str
    default: float
    minimum: float
    maximum: float
    whole: bool = False

    @model_validator(mode="after")
    def _default_is_allowed(self) -> FaultValue:
        self.check(self.default)
        return self

    def check(self, value: float) -> float:
        """Return ``value`` as it goes into the file. Raises ValueError."""
        if not self.minimum <= value <= self.maximum:
            raise ValueError(f"{value:g} is not in {self.minimum:g}…{self.maximum:g} ({self.unit})")
        if self.whole and value != int(value):
            raise ValueError(f"{value:g} is not a whole number ({self.unit})")
        return int(value) if self.whole else float(value)


class Fidelity(Settings):
    """What the fault is like, and what it is not; printed with every result."""

    reproduces: Annotated[tuple[str, ...], Field(min_length=1)]
    does_not_reproduce: Annotated[tuple[str, ...], Field(min_length=1)]


class Fault(Settings):
    """One fault, named by its symptom."""

    name: Name
    summary: str
    symptom: str
    deed: Deed
    deed_summary: str
    value: FaultValue | None = None
    one_way: bool = False
    """Nothing undoes it: a successor is asserted instead."""
    default_hold_seconds: Positive
    effect_timeout_seconds: Positive
    """Not seen to take effect within this time: the run is INVALID."""
    effect_proof: str
    fidelity: Fidelity

    @model_validator(mode="after")
    def _value_iff_file(self) -> Fault:
        if (self.value is not None) != (self.deed in ("gpu_overlay", "engine_faults")):
            raise ValueError("deeds that write a file have a value, the others have none")
        if self.one_way != (self.deed == "kill_core"):
            raise ValueError("kill_core, and nothing else, is one-way")
        return self


def parse_fault(text: str, where: str) -> Fault:
    """Read one description. Raises ConfigError with every problem."""
    try:
        return Fault.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ConfigError([f"{where}: not YAML: {' '.join(str(error).split())}"]) from error
    except ValidationError as error:
        raise ConfigError(
            [f"{where}: {'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in error.errors()]
        ) from error


def load_faults(folder: Path | None = None) -> Mapping[str, Fault]:
    """Every fault by name. ``folder``: default the descriptions that come with the package."""
    places = (Path(__file__).with_name("faults"), Path(__file__).resolve().parents[2] / "chaos")
    folder = folder or next((p for p in places if p.is_dir()), places[-1])
    faults = [parse_fault(file.read_text(encoding="utf-8"), file.name) for file in sorted(folder.glob("*.yml"))]
    if not faults:
        raise ConfigError([f"{folder}: no fault descriptions (*.yml) there; install the package again"])
    return {fault.name: fault for fault in faults}


def find_fault(faults: Mapping[str, Fault], name: str) -> Fault:
    """Raises ConfigError with the nearest name."""
    if name in faults:
        return faults[name]
    near = difflib.get_close_matches(name, faults, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(faults)}"
    raise ConfigError([f"sre chaos: no fault {name!r}; {hint}"])
