"""promtool as judge of what is generated: rule files, the cases of alerts, and single expressions."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sre.monitoring.cases import alerts_of, cases, needed
from sre.monitoring.model import Group
from sre.monitoring.render import rule_file
from sre.settings.monitoring import MonitoringSettings
from tests.conftest import require_binary

HINT = "apt-get install prometheus brings it"
SETTINGS = MonitoringSettings()


JOBS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class Verdict:
    """What promtool said."""

    returncode: int
    output: str


def run(*arguments: str | Path) -> Verdict:
    """promtool with these arguments."""
    promtool = require_binary("promtool", HINT)
    # Each case opens a database of its own: fewer collections of garbage spare a third of the time.
    environ = {**os.environ, "GOGC": "400"}
    done = subprocess.run([promtool, *map(str, arguments)], capture_output=True, text=True, timeout=240, env=environ)
    return Verdict(done.returncode, done.stdout + done.stderr)


def judge_cases(
    groups: Iterable[Group],
    folder: Path,
    settings: MonitoringSettings = SETTINGS,
    change: Callable[[tuple[Group, ...]], Iterable[Group]] = tuple,
) -> Verdict:
    """
    The four cases of every alert in ``groups``, each evaluated with only the rules it needs.

    With all rules the answer is the same, since alerts do not read one another, and it takes minutes.

    Args:
        change: What the rule file is made of instead, to see that a broken rule is noticed.
    """
    groups = tuple(groups)
    files = []
    for alert in alerts_of(groups):
        rules = folder / f"{alert.name}.rules.yml"
        few = needed(groups, [alert])
        rules.write_text(rule_file(change(few), settings))
        for interval, text in cases(few, settings, [rules.name]).items():
            files.append(folder / f"{alert.name}.{interval}.yml")
            files[-1].write_text(text)
    with ThreadPoolExecutor(JOBS) as pool:
        verdicts = list(pool.map(lambda part: run("test", "rules", *part), [files[n::JOBS] for n in range(JOBS)]))
    return Verdict(max(one.returncode for one in verdicts), "".join(one.output for one in verdicts))


def judge_values(
    groups: Iterable[Group],
    folder: Path,
    series: Mapping[str, str],
    expected: Mapping[str, Mapping[str, float]],
    *,
    at: str = "10m",
    settings: MonitoringSettings = SETTINGS,
) -> Verdict:
    """Whether each expression has exactly these samples (labels → value) at ``at``, after these series."""
    groups = tuple(groups)
    (folder / "rules.yml").write_text(rule_file(groups, settings))
    document: dict[str, Any] = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "15s",
        "group_eval_order": [group.name for group in groups],
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": expression,
                        "eval_time": at,
                        "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
                    }
                    for expression, samples in expected.items()
                ],
            }
        ],
    }
    (folder / "test.yml").write_text(yaml.safe_dump(document, sort_keys=False))
    return run("test", "rules", folder / "test.yml")
