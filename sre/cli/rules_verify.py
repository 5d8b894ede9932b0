"""sre rules verify: which alerts can never fire against the user's own metrics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sre.cli.app import App, output_option, pass_app
from sre.cli.monitoring_options import monitoring_settings, release_options, rules_possible
from sre.errors import ConfigError, ExitCode
from sre.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
@click.option(
    "--token",
    "tokens",
    metavar="[URL=]REF",
    multiple=True,
    help="Bearer token, env:NAME or file:PATH; with several URLs each says whose it is.",
)
@click.option(
    "--header",
    "headers",
    metavar="[URL=]NAME=REF",
    multiple=True,
    help="Header, its value env:NAME or file:PATH; with several URLs each says whose it is.",
)
@click.option("--ca-file", type=click.Path(dir_okay=False, path_type=Path), help="Certificates to trust (PEM).")
@click.option(
    "--timeout", type=click.FloatRange(0.1, 600), default=15.0, show_default=True, help="Seconds for one answer."
)
@click.option("--verbose", "-v", is_flag=True, help="Also name each alert that was not looked at.")
@release_options
@output_option
@pass_app
def verify(
    app: App,
    urls: tuple[str, ...],
    kind: str,
    tokens: tuple[str, ...],
    headers: tuple[str, ...],
    ca_file: Path | None,
    timeout: float,
    verbose: bool,
    vllm_version: str | None,
    dcgm_exporter_version: str | None,
    metric_prefix: str | None,
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

    from sre.adapters.prometheus import Access
    from sre.monitoring.catalogue_rules import all_groups, selection
    from sre.monitoring.seen import joined
    from sre.monitoring.verify import verify as judged
    from sre.monitoring.verify import wanted_samples
    from sre.settings.addresses import checked_url, exposes_secrets

    settings = monitoring_settings(
        app, vllm_version=vllm_version, dcgm_exporter_version=dcgm_exporter_version, metric_prefix=metric_prefix
    )
    with rules_possible():
        chosen, groups = selection(settings), all_groups(settings)
    checked = tuple(dict.fromkeys(checked_url(url, query=True) for url in urls))
    sent = _headers(checked, tokens, headers)
    for url in checked:
        if sent[url] and exposes_secrets(url):
            app.note(f"warning: {url}: the secret for it travels unencrypted; use https://")
    access = {url: Access(sent[url], ca_file, timeout) for url in checked}
    found, failures = asyncio.run(_look(access, kind, wanted_samples(groups, chosen)))
    if not found:
        for failure in failures[:-1]:
            app.note(f"sre: {one_line(str(failure))}")
        raise failures[-1]
    report = judged(joined(found), groups, chosen)
    app.emit(output, as_json(report), lambda: as_text(report, verbose=verbose))
    for failure in failures:
        app.note(f"sre: {one_line(str(failure))}")
    if failures:
        return failures[0].exit_code
    if report.blind:
        app.note("sre rules verify: nothing at these addresses says anything about our alerts")
        return ExitCode.NO_ANSWER
    return ExitCode.OK if report.good else ExitCode.NO


async def _look(access: Mapping[str, Access], kind: str, wanted: frozenset[str]) -> tuple[list[Seen], list[SreError]]:
    """What was seen at each URL, and what went wrong at the others. A URL gets only what is meant for it."""
    import asyncio

    from sre.adapters.prometheus import MetricsReader
    from sre.errors import DependencyError

    async def one(url: str, how: Access) -> Seen | DependencyError:
        async with MetricsReader(how) as reader:
            try:
                if kind == "metrics":
                    return await reader.page(url)
                return await (reader.fleet if kind == "prometheus" else reader.look)(url, wanted)
            except DependencyError as error:
                return error

    answers = await asyncio.gather(*(one(url, how) for url, how in access.items()))
    found = [answer for answer in answers if not isinstance(answer, DependencyError)]
    return found, [answer for answer in answers if isinstance(answer, DependencyError)]


def _headers(urls: Sequence[str], tokens: tuple[str, ...], headers: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """What is sent to each URL. Raises ConfigError with every option that is wrong; no secret is in it."""
    from sre.settings.secrets import resolve_secret

    sent: dict[str, dict[str, str]] = {url: {} for url in urls}
    problems: list[str] = []

    def send(url: str, name: str, reference: str, option: str, form: str = "{}") -> None:
        try:
            value = resolve_secret(reference, option, os.environ)
        except ConfigError as error:
            problems.extend(error.problems)
            return
        if not value.isprintable() or not value.isascii():
            problems.append(f"{option}: the value has characters that no header can hold; look at its line ends")
        elif name in sent[url]:
            problems.append(f"{option}: given twice for {url}")
        else:
            sent[url][name] = form.format(value)

    for token in tokens:
        url, reference = _addressed(token, urls)
        if url is None:
            problems.append("--token: whose is it? With several URLs write URL=env:NAME, the URL as in --url")
            continue
        send(url, "Authorization", reference, "--token", "Bearer {}")
    for header in headers:
        url, rest = _addressed(header, urls)
        name, separator, reference = rest.partition("=")
        if not separator or not name or not all(c.isascii() and (c.isalnum() or c in "-_") for c in name):
            problems.append(
                f"--header {one_line(name)}: write it NAME=env:VARIABLE or NAME=file:/path, after URL= of one of --url"
            )
        elif url is None:
            problems.append(f"--header {name}: whose is it? With several URLs write URL={name}=env:NAME")
        else:
            send(url, name, reference, f"--header {name}")
    if problems:
        raise ConfigError(problems)
    return sent


def _addressed(text: str, urls: Sequence[str]) -> tuple[str | None, str]:
    """``URL=rest`` as (URL, rest); without URL the only one, None if there are several."""
    fitting = [url for url in urls for slash in ("", "/") if text.startswith(f"{url}{slash}=")]
    if fitting:
        url = max(fitting, key=len)
        return url, text.removeprefix(url).removeprefix("/").removeprefix("=")
    return (urls[0] if len(urls) == 1 else None), text


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


def as_text(report: Report, *, verbose: bool = False) -> str:
    """
    Exporters, then alerts with the worst first, then records that stay empty, then the sum. Alerts that were not looked
    at are counted by what is missing; ``verbose``: named.
    """
    from sre.monitoring.evidence import Verdict

    lines = []
    for one in report.exporters:
        lines.append(f"{one.exporter.value}: release {one.release}, {one.metrics} of the catalogue's metrics")
        lines += [f"  {reason.cause.value}: {one_line(reason.text)}" for reason in one.problems]
    unseen = [] if verbose else [one for one in report.alerts if one.outcome.verdict is Verdict.NOT_LOOKED_AT]
    judged = [one for one in report.alerts if one not in unseen]
    alerts = sorted(judged, key=lambda finding: (-finding.outcome.verdict.rank, finding.name))
    width = max((len(finding.name) for finding in alerts), default=0)
    if alerts:
        lines += ["", f"{'ALERT':<{width}}  {'VERDICT':<13}  WHY"]
    for finding in alerts:
        first, *more = list(dict.fromkeys(one_line(reason.text) for reason in finding.outcome.reasons)) or [""]
        lines.append(f"{finding.name:<{width}}  {finding.outcome.verdict.value:<13}  {first}".rstrip())
        lines += [f"{'':<{width}}  {'':<13}  {text}" for text in more]
    lines += _unseen(unseen)
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


def _unseen(alerts: Sequence[Finding]) -> list[str]:
    """How many alerts nobody can say anything of, by what is missing for them."""
    from collections import Counter

    missing = Counter("; ".join(dict.fromkeys(one_line(r.text) for r in one.outcome.reasons)) for one in alerts)
    if not missing:
        return []
    width = len(str(max(missing.values())))
    heading = f"Not looked at, so nothing is known of {len(alerts)} alerts (their names: --verbose):"
    return ["", heading, *(f"  {count:>{width}}  {why}" for why, count in missing.most_common())]
