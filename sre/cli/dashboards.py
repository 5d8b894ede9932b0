"""sre dashboards: generate Grafana's dashboards, list them, push them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sre.cli.app import App, output_option, pass_app
from sre.cli.generating import file_options, only_one_way, write
from sre.cli.monitoring_options import monitoring_settings, release_options, rules_possible
from sre.errors import ExitCode

if TYPE_CHECKING:
    from sre.adapters.grafana import Pushed
    from sre.monitoring.dashboards.model import Dashboard
    from sre.settings.monitoring import MonitoringSettings


FOLDER = "dashboards"


@click.group()
def dashboards() -> None:
    """Generate, list and push Grafana dashboards."""


@dashboards.command()
@file_options(
    folders=(FOLDER,),
    formats=("json", "configmap"),
    about_formats="Grafana's JSON, or Kubernetes ConfigMaps for Grafana's sidecar.",
    everything="them all",
)
@release_options
@pass_app
def generate(
    app: App, output_dir: Path | None, to_stdout: bool, check: bool, form: str,
    vllm_version: str | None, dcgm_exporter_version: str | None, metric_prefix: str | None,
) -> int:  # fmt: skip
    """Write one file per dashboard; the same settings give the same bytes."""
    from sre.monitoring.dashboards.document import GENERATED

    only_one_way(to_stdout=to_stdout, check=check, output_dir=output_dir)
    settings = monitoring_settings(
        app, vllm_version=vllm_version, dcgm_exporter_version=dcgm_exporter_version, metric_prefix=metric_prefix
    )
    files = _files(settings, form)
    if to_stdout:
        click.echo(_joined(files, form), nl=False)
        return ExitCode.OK
    folder = output_dir or Path(FOLDER)
    return write(app, folder, files, GENERATED, check=check, what="dashboards", command="sre dashboards generate")


@dashboards.command("list")
@output_option
@pass_app
def list_(app: App, output: str) -> None:
    """List the dashboards that would be generated."""
    found = _all(monitoring_settings(app))
    rows = [{"uid": one.uid, "title": one.title, "about": one.about, "panels": len(one.panels)} for one in found]
    width = max(len(one.uid) for one in found)
    app.emit(
        output, rows, lambda: "\n".join(f"{r['uid']:<{width}}  {r['panels']:>3} panels  {r['about']}" for r in rows)
    )


@dashboards.command()
@click.option("--url", required=True, metavar="URL", help="Base address of Grafana, e.g. http://grafana:3000.")
@click.option(
    "--token",
    "token",
    required=True,
    metavar="REFERENCE",
    help="Where a service account's token is: env:NAME or file:/path.",
)
@click.option("--folder", metavar="UID", help="Folder, made if missing; default: where they are, new ones at the top.")
@click.option(
    "--folder-title", metavar="TITLE", default="sre", show_default=True, help="Title of a folder that is made."
)
@click.option("--overwrite/--no-overwrite", default=True, show_default=True, help="Replace dashboards that differ.")
@click.option("--dry-run", is_flag=True, help="Read only; say what would be done.")
@release_options
@output_option
@pass_app
def push(
    app: App, url: str, token: str, folder: str | None, folder_title: str, overwrite: bool, dry_run: bool,
    vllm_version: str | None, dcgm_exporter_version: str | None, metric_prefix: str | None, output: str,
) -> int:  # fmt: skip
    """Save all dashboards in a Grafana; exit 1 if one could not be saved."""
    import asyncio
    import json
    import os

    from sre.adapters.grafana import Grafana, checked_uid
    from sre.settings.addresses import exposes_secrets
    from sre.settings.secrets import resolve_secret

    settings = monitoring_settings(
        app, vllm_version=vllm_version, dcgm_exporter_version=dcgm_exporter_version, metric_prefix=metric_prefix
    )
    documents = [json.loads(text) for text in _files(settings, "json").values()]
    if folder is not None:
        checked_uid(folder, "--folder")
    grafana = Grafana(url, resolve_secret(token, "--token", os.environ))
    if exposes_secrets(grafana.base):
        app.note(f"warning: grafana {grafana.base}: the token travels unencrypted; use https://")

    async def run() -> list[Pushed]:
        async with grafana:
            return await grafana.push(
                documents, folder=folder, folder_title=folder_title, overwrite=overwrite, dry_run=dry_run
            )

    done = asyncio.run(run())
    app.emit(
        output,
        {"dry_run": dry_run, "dashboards": [{"uid": p.uid, "outcome": p.outcome, "detail": p.detail} for p in done]},
        lambda: "\n".join(_line(one, dry_run) for one in done),
    )
    bad = [one for one in done if not one.good]
    if bad:
        app.note(f"sre: {len(bad)} of {len(done)} dashboards not pushed: {', '.join(one.uid for one in bad)}")
    return ExitCode.COULD_NOT_RUN if bad else ExitCode.OK


def _line(one: Pushed, dry_run: bool) -> str:
    outcome = f"would be {one.outcome}" if dry_run and one.outcome in ("created", "updated") else one.outcome
    return f"{one.uid}: {outcome.replace('_', ' ')}" + (f": {one.detail}" if one.detail else "")


def _all(settings: MonitoringSettings) -> tuple[Dashboard, ...]:
    from sre.monitoring.dashboards.catalogue import all_dashboards

    with rules_possible():
        return all_dashboards(settings)


def _files(settings: MonitoringSettings, form: str) -> dict[str, str]:
    """File name → text."""
    from sre.monitoring.dashboards.document import render, render_config_map

    made, suffix = (render, "json") if form == "json" else (render_config_map, "yaml")
    return {f"{one.uid}.{suffix}": made(one, settings) for one in _all(settings)}


def _joined(files: dict[str, str], form: str) -> str:
    """Several files in one stream: a JSON array, or YAML documents."""
    if form == "configmap":
        return "".join(files.values())
    return "[\n" + ",\n".join(text.rstrip("\n") for text in files.values()) + "\n]\n"
