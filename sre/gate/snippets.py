"""Ready files for CI systems: ``sre gate snippet NAME`` prints one."""

from __future__ import annotations

from importlib import resources

from sre.errors import ConfigError

NAMES = {
    "github": ".github/workflows/gate.yml",
    "gitlab": ".gitlab-ci.yml",
    "kubernetes": "gate-job.yml",
}
"""Name → where the file is meant to be put."""


def snippet(name: str) -> str:
    """The file's text. ConfigError: no such snippet."""
    if name not in NAMES:
        raise ConfigError([f"snippet {name!r}: there is none of this name; the names are {', '.join(NAMES)}"])
    return resources.files("sre.gate").joinpath("snippet_files", f"{name}.yml").read_text(encoding="utf-8")
