"""Writes golden files and schema anew: ``python -m tests.gate.report.golden_files``. Look at the difference."""

from __future__ import annotations

import functools
from pathlib import Path

from sre.gate.report import schema
from sre.gate.report.annotations import annotations
from sre.gate.report.junit import junit
from sre.gate.report.markdown import markdown
from tests.support import gate_samples

FOLDER = Path(__file__).with_name("golden")


@functools.cache
def files() -> dict[str, str]:
    """File name → what it must hold."""
    rich = gate_samples.rich(name=gate_samples.HOSTILE)
    return {
        "junit.xml": junit(rich),
        "summary.md": markdown(rich),
        "annotations.txt": "\n".join(annotations(rich)) + "\n",
        "passed.xml": junit(gate_samples.passed()),
        "passed.md": markdown(gate_samples.passed()),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text)
    (Path(schema.__file__).with_name(schema.FILE)).write_text(schema.render())
