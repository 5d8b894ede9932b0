"""What an installation pulls in is what the package imports."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
MODULES = {"pyyaml": "yaml", "nvidia-ml-py": "pynvml"}
"""Where the module is not named as its distribution."""

DEPENDENCIES = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["dependencies"]


@pytest.mark.parametrize("requirement", DEPENDENCIES)
def test_every_core_dependency_is_imported_by_the_package(requirement: str) -> None:
    name = re.split(r"[<>=!~\[;]", requirement, maxsplit=1)[0].strip()
    module = MODULES.get(name, name.replace("-", "_"))
    imported = re.compile(rf"^\s*(import|from) {module}\b", re.MULTILINE)
    files = list((PROJECT / "sre").rglob("*.py"))
    assert any(imported.search(file.read_text()) for file in files), (
        f"{name}: no module of sre imports {module}; move it to an extra"
    )
