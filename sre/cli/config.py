"""sre config: write, check and show sre.yaml."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sre.cli.app import App, output_option, pass_app
from sre.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from sre.settings.models import Root
    from sre.settings.template import EngineKind


@click.group()
def config() -> None:
    """Write, check and show sre.yaml."""


@config.command()
@click.option(
    "--engine",
    "kind",
    type=click.Choice(["sim", "vllm", "external"]),
    default="sim",
    show_default=True,
    help="Kind of the first engine.",
)
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@click.option("--dry-run", is_flag=True, help="Print the file instead of writing it.")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), default=Path("sre.yaml"))
@pass_app
def init(app: App, kind: EngineKind, force: bool, dry_run: bool, path: Path) -> None:
    """Write a commented, valid configuration to PATH (default: sre.yaml)."""
    from sre.settings.template import template

    text = template(kind)
    if dry_run:
        click.echo(text, nl=False)
        return
    _write(path, text, force=force)
    app.note(f"wrote {path}; check it with: sre --config {path} config validate")


@config.command()
@output_option
@pass_app
def validate(app: App, output: str) -> int:
    """Check the configuration; exit 2 and name every problem if it is wrong."""
    from sre.settings.load import setting_warnings

    source = _source(app)
    try:
        root = app.settings()
    except ConfigError as error:
        if output != "json":
            raise
        answer = {"source": source, "valid": False, "problems": list(error.problems), "warnings": []}
        app.emit(output, answer, "")
        return ExitCode.USAGE
    warnings = setting_warnings(root)
    if output == "text":
        for warning in warnings:
            app.note(f"warning: {source}: {warning}")
    answer = {"source": source, "valid": True, "problems": [], "warnings": list(warnings)}
    app.emit(output, answer, f"{source}: valid: {_summary(root)}")
    return ExitCode.OK


@config.command()
@output_option
@pass_app
def show(app: App, output: str) -> None:
    """Show the settings in force, defaults included, secrets hidden."""
    import yaml

    from sre.settings.secrets import redacted

    shown: dict[str, Any] = redacted(app.settings().model_dump(mode="json"))
    text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
    app.emit(output, shown, f"# {_source(app)}, defaults included\n{text.rstrip()}")


@config.command()
def schema() -> None:
    """Print the JSON Schema of sre.yaml, for editors."""
    from sre.settings.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


def _source(app: App) -> str:
    """What the settings come from, as messages call it."""
    from sre.settings.load import DEFAULT_PATH

    if app.config is not None:
        return str(app.config)
    return str(DEFAULT_PATH) if os.path.lexists(DEFAULT_PATH) else "built-in defaults"


def _summary(root: Root) -> str:
    engines = ", ".join(f"{e.name} ({e.kind}, model {e.served_name})" for e in root.stack.engines)
    rules = sum(rule.enabled for rule in root.guard.rules)
    return (
        f"engines {engines}; gateway {root.stack.gateway.host}:{root.stack.gateway.port}; guard {root.guard.mode} with"
        f" {rules} rules; {len(root.notify.channels)} notification channels"
    )


def _write(path: Path, text: str, *, force: bool) -> None:
    """All or nothing: a half-written file is never left under ``path``."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
        try:
            if force:
                temporary.replace(path)
            else:
                os.link(temporary, path)  # fails if path exists, also when it appeared just now
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        raise ConfigError([f"{path}: exists already; use --force to replace it, or name another file"]) from None
    except OSError as error:
        raise ConfigError([f"{path}: cannot be written: {error.strerror}; choose another folder"]) from None
