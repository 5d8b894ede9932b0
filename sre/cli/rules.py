"""sre rules: generate, list, test, lint and verify alerts and recording rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sre.cli.app import App, output_option, pass_app
from sre.cli.generating import file_options, only_one_way, write
from sre.cli.groups import PartlyElsewhere
from sre.cli.monitoring_options import monitoring_settings, release_options, rules_possible
from sre.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from sre.monitoring.catalogue_rules import RuleFile
    from sre.monitoring.model import Alert
    from sre.settings.monitoring import MonitoringSettings

# name -> (module, attribute): imported when called, so that generating does not wait for the parsers of the others.
_ELSEWHERE = {"lint": ("sre.cli.rules_lint", "lint"), "verify": ("sre.cli.rules_verify", "verify")}
DIMENSIONS = ("resource", "batching", "request", "slo", "toolkit")
FOLDERS = {"prometheus": "alerts", "operator": "alerts/operator", "alertmanager": "alerts/alertmanager"}


@click.group(cls=PartlyElsewhere, elsewhere=_ELSEWHERE)
def rules() -> None:
    """Generate, list, test, lint and verify alerts and recording rules."""


@rules.command()
@file_options(
    folders=tuple(FOLDERS.values()),
    formats=tuple(FOLDERS),
    about_formats="Rule files, PrometheusRule objects of the operator, or Alertmanager's routes, inhibition and"
    " receivers.",
    everything="everything",
)
@click.option(
    "--dimension",
    "dimensions",
    type=click.Choice(DIMENSIONS),
    multiple=True,
    help="Only these alerts and the records they need; may be repeated.",
)
@click.option("--namespace", metavar="NAME", help="Of PrometheusRule objects.")
@click.option(
    "--label",
    "labels",
    metavar="KEY=VALUE",
    multiple=True,
    help="Of PrometheusRule objects, for the operator's rule selector; may be repeated.",
)
@release_options
@pass_app
def generate(
    app: App, output_dir: Path | None, to_stdout: bool, check: bool, form: str, dimensions: tuple[str, ...],
    namespace: str | None, labels: tuple[str, ...],
    vllm_version: str | None, dcgm_exporter_version: str | None, metric_prefix: str | None,
) -> int:  # fmt: skip
    """Write alerts and recording rules for these releases; the same settings give the same bytes."""
    only_one_way(to_stdout=to_stdout, check=check, output_dir=output_dir)
    if form != "operator" and (namespace or labels):
        raise click.UsageError("--namespace and --label are for --format operator")
    if form == "alertmanager" and dimensions:
        raise click.UsageError("--dimension is for rules; Alertmanager's routes hold for all of them")
    settings = monitoring_settings(
        app, vllm_version=vllm_version, dcgm_exporter_version=dcgm_exporter_version, metric_prefix=metric_prefix
    )
    files, mark = _generated(app, settings, form, dimensions, _namespace(namespace), _pairs(labels), to_stdout)
    if to_stdout:
        click.echo("---\n".join(files.values()), nl=False)
        return ExitCode.OK
    folder = output_dir or Path(FOLDERS[form])
    return write(app, folder, files, mark, check=check, what="files", command="sre rules generate")


def _generated(
    app: App,
    settings: MonitoringSettings,
    form: str,
    dimensions: tuple[str, ...],
    namespace: str,
    labels: dict[str, str],
    as_one: bool,
) -> tuple[dict[str, str], str]:
    """File name → text, and their mark. Rules ``as_one``: Prometheus reads but the first document of a file."""
    from sre.monitoring import render

    if form == "alertmanager":
        from sre.monitoring import alertmanager

        with rules_possible():
            return {"alertmanager.yml": alertmanager.render(settings)}, alertmanager.HEADER
    files = _rule_files(settings, dimensions)
    for note in _notes(settings):
        app.note(f"note: {note}")
    if form == "operator":
        return {
            f"prometheusrule-{file.stem}.yml": render.prometheus_rule(
                file.stem, file.groups, settings, namespace=namespace, labels=labels
            )
            for file in files
        }, render.OPERATOR_HEADER
    if as_one:
        groups = [group for file in files for group in file.groups]
        return {"sre.yml": render.rule_file(groups, settings)}, render.HEADER
    return {f"{file.stem}.yml": render.rule_file(file.groups, settings) for file in files}, render.HEADER


def _rule_files(settings: MonitoringSettings, dimensions: tuple[str, ...]) -> list[RuleFile]:
    from sre.monitoring import catalogue_rules

    with rules_possible():
        files = catalogue_rules.rule_files(settings)
    return catalogue_rules.of_dimensions(files, dimensions) if dimensions else files


def _notes(settings: MonitoringSettings) -> list[str]:
    from sre.monitoring import catalogue_rules

    return catalogue_rules.notes(settings)


# What Kubernetes accepts: RFC 1123 labels, and label keys with an optional DNS prefix.
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?", re.ASCII)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?", re.ASCII)


def _namespace(text: str | None) -> str:
    if text is not None and not _NAMESPACE.fullmatch(text):
        raise ConfigError([f"--namespace {text}: Kubernetes has no such names; lower-case letters, digits and -"])
    return text or ""


def _pairs(labels: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in labels:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise ConfigError(
                [f"--label {text}: is no label of Kubernetes; write KEY=VALUE of letters, digits, -, _ and ., 63 each"]
            )
        pairs[key] = value
    return pairs


@rules.command("list")
@click.option("--dimension", "dimensions", type=click.Choice(DIMENSIONS), multiple=True, help="Only these.")
@release_options
@output_option
@pass_app
def list_(
    app: App,
    dimensions: tuple[str, ...],
    output: str,
    vllm_version: str | None,
    dcgm_exporter_version: str | None,
    metric_prefix: str | None,
) -> None:
    """List the alerts: severity, dimension, how long the condition must hold, and the condition."""
    from sre.monitoring.cases import alerts_of
    from sre.monitoring.expression_layout import laid_out

    settings = monitoring_settings(
        app, vllm_version=vllm_version, dcgm_exporter_version=dcgm_exporter_version, metric_prefix=metric_prefix
    )
    files = _rule_files(settings, dimensions)
    alerts = alerts_of(group for file in files for group in file.groups)

    def text() -> str:
        lines = []
        for alert in alerts:
            lines.append(f"{alert.name}  {alert.severity.value}  {alert.dimension.value}  for {alert.for_}")
            lines += [f"    {line}" for line in laid_out(alert.expr.text)]
        return "\n".join(lines)

    app.emit(output, [_row(alert, settings) for alert in alerts], text)


def _row(alert: Alert, settings: MonitoringSettings) -> dict[str, Any]:
    from sre.monitoring.render import alert_annotations

    return {
        "name": alert.name,
        "severity": alert.severity.value,
        "dimension": alert.dimension.value,
        "component": alert.component,
        "for": alert.for_,
        "keep_firing_for": alert.keep_firing_for,
        "labels": dict(alert.labels),
        "expression": alert.expr.text,
        "annotations": alert_annotations(alert, settings),
    }


@rules.command("test")
@click.argument("folder", metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path), required=False)
@click.option("--alert", "names", metavar="NAME", multiple=True, help="Only this alert; may be repeated.")
@release_options
@output_option
@pass_app
def test_(
    app: App,
    folder: Path | None,
    names: tuple[str, ...],
    output: str,
    vllm_version: str | None,
    dcgm_exporter_version: str | None,
    metric_prefix: str | None,
) -> int:
    """
    Prove every alert with promtool: it fires, stays quiet, survives no traffic, resolves.

    Judges the rule files in DIR, or without it what `sre rules generate` would write. Exit 3 if an alert fails.
    """
    import tempfile

    from sre.adapters.promtool import promtool_binary, run_cases
    from sre.monitoring.case_files import case_files
    from sre.monitoring.cases import alerts_of

    settings = monitoring_settings(
        app, vllm_version=vllm_version, dcgm_exporter_version=dcgm_exporter_version, metric_prefix=metric_prefix
    )
    groups = [group for file in _rule_files(settings, ()) for group in file.groups]
    alerts = _chosen(alerts_of(groups), names)
    present = None if folder is None else _groups_in(folder)
    promtool = promtool_binary()
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="sre-rules-") as temporary:
        tests = []
        for alert in alerts:
            test, texts = case_files(groups, alert, settings, present)
            for name, text in texts.items():
                (Path(temporary) / name).write_text(text, "utf-8")
            tests.append(Path(temporary) / test)
        for done, (alert, judged) in enumerate(zip(alerts, run_cases(promtool, tests), strict=True), 1):
            if not judged.passed:
                failed[alert.name] = judged.output.strip()
            if app.interactive and output == "text":
                click.echo(f"\r{done}/{len(alerts)}", nl=done == len(alerts), err=True)
    app.emit(
        output,
        {"alerts": [{"name": alert.name, "passed": alert.name not in failed} for alert in alerts], "failed": failed},
        lambda: "\n".join(
            [*(f"{name}: FAILED\n{said}" for name, said in failed.items()), _verdict(len(alerts), len(failed))]
        ),
    )
    return ExitCode.NO if failed else ExitCode.OK


def _verdict(alerts: int, failed: int) -> str:
    cases = f"{alerts} alerts: fires, quiet, no traffic, resolves"
    return f"{cases}: all pass" if not failed else f"{cases}: {failed} fail"


def _chosen(alerts: list[Alert], names: tuple[str, ...]) -> list[Alert]:
    import difflib

    known = {alert.name: alert for alert in alerts}
    problems = []
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            problems.append(
                f"--alert {name}: no such alert; " + (f"did you mean {near[0]}?" if near else "see sre rules list")
            )
    if problems:
        raise ConfigError(problems)
    return [known[name] for name in dict.fromkeys(names)] if names else alerts


def _groups_in(folder: Path) -> list[dict[str, Any]]:
    """Groups of every rule file in the folder. Raises ConfigError."""
    import yaml

    files = sorted([*folder.glob("*.yml"), *folder.glob("*.yaml")])
    if not files:
        raise ConfigError([f"{folder}: no rule files; write them with: sre rules generate --output-dir {folder}"])
    groups: list[dict[str, Any]] = []
    problems = []
    for file in files:
        try:
            document = yaml.safe_load(file.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            problems.append(f"{file}: cannot be read as YAML: {' '.join(str(error).split())}; correct it")
            continue
        found = document.get("groups") if isinstance(document, dict) else None
        if not isinstance(found, list) or not all(_is_group(group) for group in found):
            problems.append(f"{file}: is no rule file of Prometheus (groups: with rules:); move it away")
            continue
        groups += found
    if problems:
        raise ConfigError(problems)
    return groups


def _is_group(group: Any) -> bool:
    return (
        isinstance(group, dict)
        and isinstance(group.get("rules"), list)
        and all(isinstance(rule, dict) for rule in group["rules"])
    )
