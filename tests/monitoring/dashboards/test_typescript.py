"""Grafana's own types judge the JSON: keys, enums, options of each panel, in the oldest and the newest release."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sre.monitoring.dashboards.catalogue import all_dashboards
from sre.monitoring.dashboards.document import render
from tests.conftest import require_binary
from tests.monitoring.dashboards.conftest import EVERYTHING

ROOT = Path(__file__).resolve().parents[3]
MODULES = ROOT / ".setup" / "typescript" / "node_modules"
TYPES = Path(__file__).parent / "typescript" / "types.ts"
PANELS = {
    "heatmap": "Heatmap",
    "stat": "Stat",
    "statetimeline": "StateTimeline",
    "table": "Table",
    "timeseries": "TimeSeries",
}
RELEASES = {
    "schema-10": ("dist/index.d.ts", "dist/esm/raw/composable/{panel}/panelcfg/x/{name}PanelCfg_types.gen.d.ts"),
    "schema-13": ("dist/types/index.d.ts", "dist/types/raw/composable/{panel}/panelcfg/x/types.gen.d.ts"),
}
"""Release → its types, and those of a panel's options."""


@pytest.fixture(scope="module")
def modules() -> Path:
    """TypeScript and Grafana's types; skip without them, fail in CI."""
    require_binary("node", "install Node.js 18 or newer")
    if (MODULES / "typescript").is_dir():
        return MODULES
    message = "TypeScript is not installed; make setup installs it into .setup"
    if os.environ.get("SRE_REQUIRE_BINARIES") == "1":
        pytest.fail(message)
    pytest.skip(message)


def project(folder: Path, modules: Path, release: str, documents: list[str]) -> Path:
    """A TypeScript project that holds the documents against the types of a release."""
    index, panel = RELEASES[release]
    paths = {"@grafana/schema": [str(modules / release / index)]}
    for key, name in PANELS.items():
        paths[f"panelcfg/{key}"] = [str(modules / release / panel.format(panel=key, name=name))]
    options = {
        "noEmit": True, "skipLibCheck": True, "strict": True, "module": "esnext", "moduleResolution": "bundler",
        "target": "es2022", "lib": ["es2022"], "types": [], "paths": paths,
    }  # fmt: skip
    folder.mkdir()
    shutil.copy(TYPES, folder)
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": ["check.ts"]}))
    lines = ['import type { Dashboard } from "./types";']
    lines += [f"export const d{n} = {text.strip()} satisfies Dashboard;" for n, text in enumerate(documents)]
    (folder / "check.ts").write_text("\n".join(lines) + "\n")
    return folder


def compile_(folder: Path, modules: Path) -> str:
    """What the compiler complains about; "" for nothing."""
    done = subprocess.run(
        ["node", modules / "typescript" / "bin" / "tsc", "-p", "."], cwd=folder, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode in (0, 2), done.stdout + done.stderr
    return done.stdout


def with_one_panel(text: str, kind: str) -> str:
    """The dashboard with its first panel of this kind alone."""
    document = json.loads(text)
    document["panels"] = [next(panel for panel in document["panels"] if panel["type"] == kind)]
    return json.dumps(document)


@pytest.mark.integration
def test_grafanas_types_accept_every_dashboard_and_refuse_slips(modules: Path, tmp_path: Path) -> None:
    """
    One compilation per release holds all dashboards and one with slips: so that it is seen that each can fail.

    Slips: a key that is none, an option of another panel, an enum's value that is none, a text for a number.
    """
    good = [render(one, EVERYTHING) for one in all_dashboards(EVERYTHING)]
    bad = [
        with_one_panel(good[0], "stat").replace('"schemaVersion":', '"schemaversion":'),
        with_one_panel(good[0], "stat").replace('"graphMode": "none"', '"drawStyle": "line"'),
        with_one_panel(good[0], "timeseries").replace('"mode": "dashed"', '"mode": "dotted"'),
        with_one_panel(good[0], "timeseries").replace('"fillOpacity": 8', '"fillOpacity": "8"'),
    ]
    folders = [project(tmp_path / release, modules, release, [*good, *bad]) for release in RELEASES]
    with ThreadPoolExecutor() as pool:
        outputs = list(pool.map(lambda folder: compile_(folder, modules), folders))
    lines = (folders[0] / "check.ts").read_text().splitlines()
    starts = [number for number, line in enumerate(lines, 1) if line.startswith("export const")]
    for release, output in zip(RELEASES, outputs, strict=True):
        errors = [int(line.split("(")[1].split(",")[0]) for line in output.splitlines() if line.startswith("check.ts(")]
        hit = {sum(start <= error for start in starts) - 1 for error in errors}
        wrong = [line for line in output.splitlines() if line.startswith("check.ts(")]
        assert hit == set(range(len(good), len(good) + len(bad))), f"{release}: {hit}\n" + "\n".join(wrong)[:3000]
