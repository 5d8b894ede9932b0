"""The command root: help without heavy imports, unknown commands, errors, exit codes."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from sre.cli.main import COMMANDS
from sre.errors import ExitCode
from tests.cli.conftest import Ran, RunSre

HEAVY = (
    "pydantic",
    "aiohttp",
    "rich",
    "apprise",
    "requests",
    "yaml",
    "prometheus_client",
    "psutil",
    "asyncio",
    "sqlite3",
)


def imported_by(*argv: str) -> set[str]:
    """Top-level modules loaded in a fresh interpreter after running ``sre ARGV``."""
    program = (
        "import sys\nfrom sre.cli.main import run\n"
        f"code = run({list(argv)!r})\n"
        "print(' '.join(sorted({m.partition('.')[0] for m in sys.modules})), file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("argv", [("--help",), ("-h",)])
def test_help_imports_nothing_heavy(argv: tuple[str, ...]) -> None:
    assert imported_by(*argv) & set(HEAVY) == set()


def test_the_probe_for_heavy_imports_can_see_one() -> None:
    assert {"pydantic", "yaml"} <= imported_by("config", "show")


def test_help_names_every_command_with_its_line(run_sre: RunSre) -> None:
    out = run_sre("--help").out
    for name, (_, _, line) in COMMANDS.items():
        assert any(name in row.split() and line.split()[0] in row for row in out.splitlines()), name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_and_its_help_begins_with_the_line_of_the_root(name: str) -> None:
    module, attribute, line = COMMANDS[name]
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    assert command.name == name
    assert (command.get_short_help_str(limit=200) or "").rstrip(".") == line.rstrip(".")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_exits_zero(run_sre: RunSre, name: str) -> None:
    ran = run_sre(name, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Usage: sre {name}")


def test_unknown_command_suggests_the_nearest(run_sre: RunSre) -> None:
    ran = run_sre("brekaer")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("Error: no command 'brekaer'; did you mean 'breaker'?\n")
    assert run_sre("xyzzy").err.endswith("Error: no command 'xyzzy'; see sre --help\n")


def test_unknown_option_is_wrong_usage(run_sre: RunSre) -> None:
    ran = run_sre("--confg", "x")
    assert ran.code == 2
    assert "No such option: --confg" in ran.err or "No such option '--confg'" in ran.err


def test_no_command_shows_the_help_as_wrong_usage(run_sre: RunSre) -> None:
    ran = run_sre()
    assert ran.code == 2
    assert "Usage: sre" in ran.out + ran.err


def test_version(run_sre: RunSre) -> None:
    assert run_sre("--version").out.startswith("sre, version 0.1")


def test_debug_shows_the_traceback_of_an_expected_error(run_sre: RunSre, tmp_path: Path) -> None:
    from sre.errors import ConfigError

    missing = str(tmp_path / "none.yaml")
    assert run_sre("--config", missing, "config", "show") == Ran(
        2, "", f"sre: {missing}: no such file; write one with: sre config init {missing}\n"
    )
    with pytest.raises(ConfigError):
        run_sre("--debug", "--config", missing, "config", "show")


def test_a_reader_that_went_away_is_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "sre", "config", "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
        assert process.wait(30) in (0, 1)


@pytest.mark.parametrize("entry", ["main", "vllm_analyzer", "vllm_config"])
def test_ctrl_c_while_modules_are_read_in_is_one_line(entry: str, tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n1 / 0\n")
    done = subprocess.run(
        [sys.executable, "-c", f"from sre.__main__ import {entry}; {entry}()"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.ABORTED, "", "sre: aborted\n")


def test_the_entry_points_are_those_that_catch_it() -> None:
    scripts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert set(scripts.values()) == {f"sre.__main__:{entry}" for entry in ("main", "vllm_analyzer", "vllm_config")}
