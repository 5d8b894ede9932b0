"""The cases of one alert and the rules they need, as files for promtool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from sre.monitoring.cases import cases, needed
from sre.monitoring.model import Alert, Group
from sre.monitoring.render import rule_file
from sre.settings.monitoring import MonitoringSettings


def case_files(
    groups: Iterable[Group],
    alert: Alert,
    settings: MonitoringSettings,
    present: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[str, dict[str, str]]:
    """
    Name of the test file, and all files by name.

    With only the rules an alert needs promtool's answer is the same as with all, and takes a hundredth of the time.

    Args:
        present: Groups of rule files that exist, as YAML holds them, to be judged instead of what is generated.
    """
    few = needed(groups, [alert])
    rules, test = f"{alert.name}.rules.yml", f"{alert.name}.test.yml"
    (text,) = cases(few, settings, [rules]).values()
    return test, {rules: rule_file(few, settings) if present is None else _only(few, present), test: text}


def _only(few: tuple[Group, ...], present: Sequence[Mapping[str, Any]]) -> str:
    """Rules of the files with the names of ``few``, in the groups of ``few``: the tests name them in their order."""
    by_name: dict[str, list[Any]] = {}
    for existing in present:
        for rule in existing.get("rules") or ():
            by_name.setdefault(str(rule.get("record") or rule.get("alert")), []).append(rule)
    groups = []
    for group in few:
        names = dict.fromkeys(rule.name for rule in group.rules)
        groups.append({"name": group.name, "rules": [rule for name in names for rule in by_name.pop(name, ())]})
    return yaml.safe_dump({"groups": groups}, sort_keys=False)
