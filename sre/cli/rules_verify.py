"""sre rules verify: which alerts can never fire against the user's own metrics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sre.cli.app import App, output_option, pass_app
from sre.errors import ConfigError, ExitCode
from sre.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sre.adapters.prometheus import Access
    from sre.errors import SreError
    from sre.monitoring.seen import Seen
    from sre.monitoring.verify import Finding, Report


@click.command()
@click.option("--url", "urls", multiple=True, required=True, help="An exporter's /metrics, or a Prometheus; repeat it.")
@click.option(
    "--as",
    "kind",
    type=click.Choice(["auto", "prometheus", "metrics"]),
    default="auto",
    show_default=True,
    help="What stands at the URLs.",
)
@click.option("--token", metavar="REF", help="Bearer token for every URL: env:NAME or file:PATH.")
@click.option("--header", "headers", metavar="NAME=REF", multiple=True, help="Header, its value env:NAME or file:PATH.")
@click.option("--ca-file", type=click.Path(dir_okay=False, path_type=Path), help="Certificates to trust (PEM).")
@click.option(
    "--timeout", type=click.FloatRange(0.1, 600), default=15.0, show_default=True, help="Seconds for one answer."
)
@output_option
@pass_app
def verify(
    app: App,
    urls: tuple[str, ...],
    kind: str,
    token: str | None,
    headers: tuple[str, ...],
    ca_file: Path | None,
    timeout: float,
    output: str,
) -> int:
    """
    Say which alerts can never fire, and why.

    Reads your exporters' /metrics or your Prometheus, and follows every alert and recording rule down to the series it
    needs: missing, renamed, removed, in another unit, without a label, of the wrong type, without traffic, or behind a
    target that is down. Changes nothing.

    \b
    Exit codes: 0 every alert that could be judged can fire · 3 some cannot · 5 nothing could be judged ·
    1 an address did not answer
    """
    import asyncio

    from sre.adapters.prometheus import checked_url
    from sre.monitoring.catalogue_rules import all_groups, selection
    from sre.monitoring.seen import joined
    from sre.monitoring.verify import verify as judged
    from sre.monitoring.verify import wanted_samples

    settings = app.settings().monitoring
    try:
        chosen = selection(settings)
        groups = all_groups(settings)
    except ValueError as error:
        raise ConfigError([f"monitoring: {error}"]) from error
    for url in urls:
        checked_url(url)
    access = _access(token, headers, ca_file, timeout)
    found, failures = asyncio.run(_look(urls, kind, access, wanted_samples(groups, chosen)))
    if not found:
        for failure in failures[:-1]:
            app.note(f"sre: {one_line(str(failure))}")
        raise failures[-1]
    report = judged(joined(found), groups, chosen)
    app.emit(output, as_json(report), lambda: as_text(report))
    for failure in failures:
        app.note(f"sre: {one_line(str(failure))}")
    if failures:
        return failures[0].exit_code
    if report.blind:
        app.note("sre rules verify: nothing at these addresses says anything about our alerts")
        return ExitCode.NO_ANSWER
    return ExitCode.OK if report.good else ExitCode.NO


async def _look(
    urls: Sequence[str], kind: str, access: Access, wanted: frozenset[str]
) -> tuple[list[Seen], list[SreError]]:
    """What was seen at each URL, and what went wrong at the others."""
    import asyncio

    from sre.adapters.prometheus import MetricsReader
    from sre.errors import DependencyError

    async with MetricsReader(access) as reader:

        async def one(url: str) -> Seen | DependencyError:
            try:
                if kind == "metrics":
                    return await reader.page(url)
                return await (reader.fleet if kind == "prometheus" else reader.look)(url, wanted)
            except DependencyError as error:
                return error

        answers = await asyncio.gather(*(one(url) for url in dict.fromkeys(urls)))
    found = [answer for answer in answers if not isinstance(answer, DependencyError)]
    return found, [answer for answer in answers if isinstance(answer, DependencyError)]


def _access(token: str | None, headers: tuple[str, ...], ca_file: Path | None, timeout: float) -> Access:
    """Raises ConfigError with every option that is wrong."""
    from sre.adapters.prometheus import Access
    from sre.settings.secrets import resolve_secret

    sent: dict[str, str] = {}
    problems: list[str] = []

    def resolve(name: str, reference: str, option: str, form: str = "{}") -> None:
        try:
            value = resolve_secret(reference, option, os.environ)
        except ConfigError as error:
            problems.extend(error.problems)
            return
        if not value.isprintable() or not value.isascii():
            problems.append(f"{option}: the value has characters that no header can hold; look at its line ends")
            return
        sent[name] = form.format(value)

    if token is not None:
        resolve("Authorization", token, "--token", "Bearer {}")
    for header in headers:
        name, separator, reference = header.partition("=")
        if not separator or not name or not all(c.isascii() and (c.isalnum() or c in "-_") for c in name):
            problems.append(f"--header {name}: write it NAME=env:VARIABLE or NAME=file:/path")
            continue
        resolve(name, reference, f"--header {name}")
    if problems:
        raise ConfigError(problems)
    return Access(sent, ca_file, timeout)


def as_json(report: Report) -> dict[str, Any]:
    """The whole answer."""
    return {
        "exporters": [
            {
                "exporter": one.exporter.value,
                "release": one.release,
                "metrics": one.metrics,
                "problems": [
                    {"cause": reason.cause.value, "metric": reason.metric, "text": reason.text}
                    for reason in one.problems
                ],
            }
            for one in report.exporters
        ],
        "alerts": [_finding(one) for one in report.alerts],
        "records": [_finding(one) for one in report.records],
        "good": report.good and not report.blind,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "name": finding.name,
        **({"severity": finding.severity} if finding.severity else {}),
        "verdict": finding.outcome.verdict.value,
        "reasons": [
            {"cause": reason.cause.value, "metric": reason.metric, "text": reason.text}
            for reason in finding.outcome.reasons
        ],
    }


def as_text(report: Report) -> str:
    """Exporters, then alerts with the worst first, then records that stay empty, then the sum."""
    from sre.monitoring.evidence import Verdict

    lines = []
    for one in report.exporters:
        lines.append(f"{one.exporter.value}: release {one.release}, {one.metrics} of the catalogue's metrics")
        lines += [f"  {reason.cause.value}: {one_line(reason.text)}" for reason in one.problems]
    alerts = sorted(report.alerts, key=lambda finding: (-finding.outcome.verdict.rank, finding.name))
    width = max((len(finding.name) for finding in alerts), default=0)
    if alerts:
        lines += ["", f"{'ALERT':<{width}}  {'VERDICT':<13}  WHY"]
    for finding in alerts:
        first, *more = list(dict.fromkeys(one_line(reason.text) for reason in finding.outcome.reasons)) or [""]
        lines.append(f"{finding.name:<{width}}  {finding.outcome.verdict.value:<13}  {first}".rstrip())
        lines += [f"{'':<{width}}  {'':<13}  {text}" for text in more]
    bad = (Verdict.CANNOT_FIRE, Verdict.MISLEADS)
    empty = [finding for finding in report.records if finding.outcome.verdict in bad]
    if empty:
        lines += ["", "Recorded series that stay empty or mislead:"]
    for finding in empty:
        reasons = "; ".join(dict.fromkeys(reason.metric for reason in finding.outcome.reasons))
        lines.append(f"  {finding.name}: {reasons}")
    counts = [f"{report.count(verdict)} {verdict.value}" for verdict in Verdict if report.count(verdict)]
    lines += ["", f"{len(report.alerts)} alerts: {', '.join(counts)}"]
    return "\n".join(lines).lstrip("\n")
