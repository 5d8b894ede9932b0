"""``sre rules lint``: check rule files and dashboards, of ours or of anyone."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sre.cli.app import App, pass_app
from sre.cli.monitoring_options import monitoring_settings, release_options
from sre.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from sre.metrics.types import Version
    from sre.monitoring.lint import Finding, LintOptions
    from sre.settings.monitoring import MonitoringSettings

MAX_BYTES = 64 * 1024 * 1024
"""A file above is not read: no rule file is as large, and its text would be refused anyway."""
STDIN = "-"


@click.command("lint")
@click.argument("files", nargs=-1, type=click.Path(path_type=str))
@click.option(
    "--output", "-o", type=click.Choice(["text", "json", "github"]), default="text", show_default=True,
    help="Form of the findings; github: workflow commands.",
)  # fmt: skip
@click.option("--disable", "disabled", multiple=True, metavar="CHECK", help="Do not run this check; may be repeated.")
@click.option("--only", multiple=True, metavar="CHECK", help="Run only this check; may be repeated.")
@click.option("--strict", is_flag=True, help="Warnings, too, make the answer no.")
@click.option("--list-checks", is_flag=True, help="List every check and leave.")
@click.option("--explain", metavar="CHECK", help="Say what a check is for and leave.")
@click.option("--prometheus-version", metavar="V", help="Lowest Prometheus that must read the files [default: 2.42].")
@release_options
@click.option("--retention", metavar="DURATION", help="What Prometheus keeps [default: monitoring.retention_days].")
@click.option(
    "--scrape-interval", metavar="DURATION",
    help="Of the slowest job [default: monitoring.scrape_interval_seconds].",
)  # fmt: skip
@click.option(
    "--runbooks", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Folder of the runbooks that runbook_url names; they are checked, too.",
)  # fmt: skip
@pass_app
def lint(
    app: App,
    files: tuple[str, ...],
    output: str,
    disabled: tuple[str, ...],
    only: tuple[str, ...],
    strict: bool,
    list_checks: bool,
    explain: str | None,
    prometheus_version: str | None,
    vllm_version: str | None,
    dcgm_exporter_version: str | None,
    metric_prefix: str | None,
    retention: str | None,
    scrape_interval: str | None,
    runbooks: Path | None,
) -> int:
    """
    Check Prometheus rules, PrometheusRule objects and Grafana dashboards (JSON, or in a ConfigMap).

    FILES are read together, so that a record of one is known in the others; - is standard input.

    \b
    Exit codes: 0 no errors · 1 a file cannot be read · 2 wrong usage, or a file holds no rules and no dashboard ·
    3 errors found (with --strict: or warnings)
    """
    from sre.monitoring.lint import CHECKS, File, NotRules, Severity, lint_files, render

    if list_checks:
        checks = [{"id": c.id, "severity": c.severity.value, "why": c.why, "remedy": c.remedy} for c in CHECKS.values()]
        app.emit(output, checks, render.check_table)
        return ExitCode.OK
    if explain is not None:
        click.echo(render.explain(CHECKS[_known(explain, "--explain")]))
        return ExitCode.OK
    if not files:
        raise click.UsageError("give one or more files, or - for standard input")
    settings = monitoring_settings(
        app, vllm_version=vllm_version, dcgm_exporter_version=dcgm_exporter_version, metric_prefix=metric_prefix
    )
    options = _options(settings, disabled, only, prometheus_version, retention, scrape_interval, runbooks)
    texts, unreadable, refused = [], False, False
    for name in files:
        try:
            texts.append(File("<stdin>" if name == STDIN else name, _read(name)))
        except OSError as error:
            app.note(f"sre: {name}: cannot be read: {error.strerror or error}")
            unreadable = True
        except ConfigError as error:
            app.note(f"sre: {error}")
            refused = True
    findings: list[Finding] = []
    with _uncollected():
        results = lint_files(texts, options)
    for result in results:
        if isinstance(result, NotRules):
            app.note(f"sre: {result}")
            refused = True
        else:
            findings += result
    _print(app, output, findings, len(texts))
    if unreadable:
        return ExitCode.COULD_NOT_RUN
    if refused:
        return ExitCode.USAGE
    bad = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
    return ExitCode.NO if any(one.severity in bad for one in findings) else ExitCode.OK


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection: next to nothing is given back meanwhile, and looking costs a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _print(app: App, output: str, findings: Sequence[Finding], files: int) -> None:
    from sre.monitoring.lint import render

    if output == "json":
        app.emit("json", render.as_json(findings), "")
        return
    text = render.as_github(findings) if output == "github" else render.as_text(findings)
    if text:
        app.emit("text", None, text)
    app.note(render.summary(findings, files))


def _read(name: str) -> str:
    """
    A file's text.

    Raises:
        OSError: It cannot be read.
        ConfigError: It is too large, or no UTF-8.
    """
    if name == STDIN:
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        with Path(name).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ConfigError([f"{name}: has more than {MAX_BYTES // 2**20} MiB; no rule file is as large"])
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            [f"{name}: is no UTF-8 text (byte {error.start}); give a rule file, a PrometheusRule or a dashboard"]
        ) from error


def _known(check: str, option: str) -> str:
    import difflib

    from sre.monitoring.lint import CHECKS

    if check not in CHECKS:
        near = difflib.get_close_matches(check, CHECKS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else "; see --list-checks"
        raise click.UsageError(f"{option}: there is no check {check!r}{hint}")
    return check


def _version(text: str, option: str) -> Version:
    from sre.metrics.types import Version

    try:
        return Version.parse(text)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from error


def _seconds(text: str, option: str) -> float:
    from sre.monitoring.lint.rulefile import duration_seconds

    seconds = duration_seconds(text)
    if not seconds:
        raise click.UsageError(f"{option}: {text!r} is no duration; write it like 30s or 15d")
    return seconds


def _options(
    settings: MonitoringSettings,
    disabled: tuple[str, ...],
    only: tuple[str, ...],
    prometheus_version: str | None,
    retention: str | None,
    scrape_interval: str | None,
    runbooks: Path | None,
) -> LintOptions:
    from sre.monitoring.catalogue_rules import selection
    from sre.monitoring.lint.findings import PROMETHEUS_LOWEST, LintOptions

    # What the generator goes by: the same releases, prefix and bucket edges.
    chosen = selection(settings)
    return LintOptions(
        only=frozenset(_known(check, "--only") for check in only),
        disabled=frozenset(_known(check, "--disable") for check in disabled),
        prometheus_version=(
            _version(prometheus_version, "--prometheus-version") if prometheus_version else PROMETHEUS_LOWEST
        ),
        versions={exporter: release for exporter, release in chosen.versions.items() if release is not None},
        retention_seconds=_seconds(retention, "--retention") if retention else settings.retention_days * 86_400,
        scrape_interval_seconds=(
            _seconds(scrape_interval, "--scrape-interval") if scrape_interval else settings.scrape_interval_seconds
        ),
        metric_prefix=chosen.prefix,
        custom_buckets=chosen.buckets,
        runbooks=_runbooks(runbooks) if runbooks is not None else None,
    )


def _runbooks(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise click.UsageError(f"--runbooks: {folder} is no folder")
    return {page.name: page.read_text("utf-8", "replace") for page in sorted(folder.glob("*.md"))}
