"""What must be true of the project's own runbooks, beyond ``sre.monitoring.runbook_check``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache

import click

from sre.cli.main import cli
from sre.metrics.catalogue import CATALOGUE
from sre.monitoring.catalogue_rules import all_alerts, all_records
from sre.monitoring.levels import TARGET_LABELS
from sre.monitoring.model import Alert
from sre.monitoring.promql import LE
from sre.monitoring.render import alert_labels
from sre.monitoring.runbooks import SHELL, Code, Runbook
from sre.settings.models import Root
from sre.settings.monitoring import MonitoringSettings

SETTINGS = MonitoringSettings()
MACHINE_PATH = re.compile(r"/(?:root|work|home|Users)/")
LATER = re.compile(r"\bsre (?:degrade|rollback|gate|drill|model|load|capacity|forecast|host)\b")
"""Commands that are planned; a runbook may not promise them."""


@cache
def alerts() -> dict[str, Alert]:
    return {alert.name: alert for alert in all_alerts(SETTINGS)}


@cache
def _records() -> dict[str, frozenset[str]]:
    return {record.name: record.expr.labels | record.labels.keys() for record in all_records(SETTINGS)}


def series(name: str) -> frozenset[str] | None:
    """Labels of a record, sample or family; none of a name that is the begin of some, written ``sre_gpu_``."""
    if name in _records():
        return _records()[name]
    metric = CATALOGUE.by_sample(name) or CATALOGUE.family(name)
    if metric is not None:
        return frozenset(metric.labels) | TARGET_LABELS | {LE}
    begins = name.endswith("_") and any(metric.name.startswith(name) for metric in CATALOGUE.metrics)
    return frozenset() if begins else None


def labels(alert: Alert) -> frozenset[str]:
    """Labels the alert has when it fires."""
    return alert.expr.labels | alert_labels(alert).keys()


# ---- Commands -------------------------------------------------------------------------------------------------------


def sre_commands(page: Runbook) -> Iterator[tuple[int, str]]:
    """Every call of ``sre``, with its line: in shell blocks and in code within sentences."""
    for code in page.code:
        if code.language in (SHELL, ""):
            for number, line in enumerate(code.text.splitlines(), code.line):
                for call in re.split(r"&&|\|\||[|;]", line.split(" #")[0]):
                    if call.strip().split()[:1] == ["sre"]:
                        yield number, call.strip()


def wrong_call(call: str) -> str | None:
    """Why the real ``sre`` would refuse this command line; None when it would run it."""
    words = [re.sub(r"^[A-Z][A-Z_]+$", "1", word) for word in shlex.split(call)[1:]]  # ENGINE, MESSAGE_ID
    command: click.Command = cli
    context = click.Context(cli, info_name="sre")
    while isinstance(command, click.Group):
        if not words:
            return None  # "sre breaker" names the group
        found = command.get_command(context, words[0])
        if found is None:
            return f"no command {words[0]!r}"
        context = click.Context(found, info_name=words[0], parent=context)
        command, words = found, words[1:]
    try:
        command.make_context(command.name, list(words), parent=context.parent)
    except click.exceptions.Exit:
        return None  # --help
    except click.UsageError as error:
        return error.format_message()
    return None


# ---- Settings -------------------------------------------------------------------------------------------------------

_SETTING = re.compile(
    r"`((?:stack|guard|notify|chaos|monitoring)\.[a-z0-9_.\[\]]+)`(?: *\(default ([^\s),;:]+)|, default ([^\s),;:]+))?"
)


def wrong_settings(text: str) -> list[str]:
    """Settings named in a page that do not exist, and defaults that are not theirs."""
    found = []
    for match in _SETTING.finditer(text.replace("\n", " ")):
        path, told = match[1], match[2] or match[3]
        try:
            value = _setting(path)
        except LookupError:
            found.append(f"no setting {path}")
            continue
        if told is not None and not _same(told, value):
            found.append(f"{path} has the default {value}, not {told}")
    return found


def _setting(path: str) -> object:
    value: object = Root()
    for part in path.split("."):
        name = part.removesuffix("[]")
        if name not in getattr(type(value), "model_fields", {}):
            raise LookupError(path)
        value = getattr(value, name)
        if part.endswith("[]"):
            if not isinstance(value, tuple):
                raise LookupError(path)
            value = value[0]
    return value


def _same(told: str, value: object) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(told) == float(value)
        except ValueError:
            return False
    return told == str(value)


# ---- Durations ------------------------------------------------------------------------------------------------------

_WORDS = {"s": "second", "m": "minute", "h": "hour", "d": "day"}


def in_words(duration: str) -> str:
    """``10m`` → ``10 minutes``; ``0s`` → ``at once``."""
    count, unit = int(duration[:-1]), duration[-1]
    return "at once" if count == 0 else f"{count} {_WORDS[unit]}{'' if count == 1 else 's'}"


def wrong_duration(page: Runbook, alert: Alert) -> str | None:
    """Whether Meaning says how long the condition must hold, and how long the alert stays."""
    meaning = " ".join(page.sections.get("Meaning", "").split())
    for duration in filter(None, (alert.for_, alert.keep_firing_for)):
        if in_words(duration) not in meaning:
            return f"Meaning does not say {in_words(duration)!r}"
    return None


def commands_of(page: Runbook, section: str) -> list[Code]:
    return [code for code in page.code if code.section == section]
