"""``sre rules lint`` as a command: exit codes, forms of output, options."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from sre.cli.app import App
from sre.cli.rules_lint import lint
from sre.errors import ConfigError
from sre.monitoring.lint import CHECKS, Finding, Severity, render
from tests.monitoring.lint.support import ALERT

EXAMPLES = Path(__file__).with_name("examples")
ERROR = str(EXAMPLES / "expression/impossible/fail.yml")
WARNING = str(EXAMPLES / "alert/summary/fail.yml")
CLEAN = str(EXAMPLES / "alert/summary/pass.yml")


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command with the built-in settings."""
    monkeypatch.chdir(tmp_path)

    def invoke(*argv: str, stdin: bytes = b"") -> Ran:
        result = CliRunner().invoke(
            lint, argv, obj=App(None, None, False), standalone_mode=False, input=io.BytesIO(stdin)
        )
        if isinstance(result.exception, ConfigError):
            return Ran(result.exception.exit_code, result.stdout, str(result.exception))
        if result.exception is not None:
            import click

            assert isinstance(result.exception, click.ClickException), result.exception
            return Ran(result.exception.exit_code, result.stdout, result.exception.format_message())
        return Ran(int(result.return_value or 0), result.stdout, result.stderr)

    return invoke


def test_exit_codes(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing of rules")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(100 * 2**20)
    assert run(CLEAN).code == 0
    assert run(WARNING).code == 0
    assert run("--strict", WARNING).code == 3
    assert run(ERROR).code == 3
    assert run("notes.txt").code == 2
    assert run("binary").code == 2
    assert run("huge").code == 2
    assert run("missing.yml", ERROR).code == 1
    assert run(str(tmp_path)).code == 1
    assert run().code == 2


def test_the_text_is_a_compilers(run: Run) -> None:
    done = run(ERROR)
    first, remedy = done.out.splitlines()
    assert first.startswith(f"{ERROR}:")
    assert ": error: alert ExampleAlert: == 2 never holds" in first
    assert first.endswith("[expression/impossible]")
    assert remedy.startswith("    ")
    assert done.err.strip() == "1 file: 1 error"


def test_json(run: Run) -> None:
    (found,) = json.loads(run("-o", "json", ERROR).out)
    assert found["check"] == "expression/impossible"
    assert found["severity"] == "error"
    assert (found["line"], found["column"]) > (1, 1)
    assert json.loads(run("-o", "json", CLEAN).out) == []


def test_github_commands_are_escaped() -> None:
    finding = Finding("a,b:c.yml", 3, 7, "file/syntax", Severity.WARNING, "100 %\nof it", "Do: this")
    assert render.as_github([finding]) == (
        "::warning file=a%2Cb%3Ac.yml,line=3,col=7,title=file/syntax::100 %25%0Aof it Do: this"
    )


def test_github(run: Run) -> None:
    assert run("-o", "github", ERROR).out.startswith("::error file=")


def test_no_control_character_reaches_the_terminal() -> None:
    finding = Finding("a", 1, 1, "file/syntax", Severity.ERROR, "red \x1b[31m\nline", "x")
    assert "\x1b" not in render.as_text([finding])
    assert render.as_text([finding]).count("\n") == 1


def test_standard_input(run: Run) -> None:
    done = run("-", stdin=Path(ERROR).read_bytes())
    assert done.code == 3
    assert done.out.startswith("<stdin>:")


def test_disable_and_only(run: Run) -> None:
    assert run("--disable", "expression/impossible", ERROR).code == 0
    assert run("--only", "alert/name", ERROR).code == 0
    wrong = run("--disable", "expression/imposible", ERROR)
    assert wrong.code == 2
    assert "did you mean expression/impossible?" in wrong.err


def test_options_reach_the_checks(run: Run) -> None:
    grammar = str(EXAMPLES / "group/newer-key/fail.yml")
    assert run(grammar).code == 3
    assert run("--prometheus-version", "2.53", grammar).code == 0
    retention = str(EXAMPLES / "expression/range-beyond-retention/fail.yml")
    assert run(retention).code == 3
    assert run("--retention", "40d", retention).code == 0
    short = str(EXAMPLES / "expression/short-range/fail.yml")
    assert run("--scrape-interval", "2s", short).code == 0
    renamed = str(EXAMPLES / "expression/deprecated-metric/fail.yml")
    assert run("--strict", renamed).code == 3
    assert run("--strict", "--dcgm-exporter-version", "4.8.3", renamed).code == 0
    removed = str(EXAMPLES / "expression/removed-metric/fail.yml")
    assert run("--vllm-version", "0.8.5", "--strict", removed).code == 0
    renamed_all = ALERT.format(expr="          llm_kv_cache_usage_perc > 90", for_="5m", summary='"x"').encode()
    assert run("-", stdin=renamed_all).code == 0
    assert run("--metric-prefix", "llm_", "-", stdin=renamed_all).code == 3


@pytest.mark.parametrize(
    ("option", "value"),
    [("--retention", "long"), ("--scrape-interval", "0"), ("--prometheus-version", "new"), ("--vllm-version", "?"),
     ("--runbooks", "nowhere")],
)  # fmt: skip
def test_wrong_options_are_usage_errors(run: Run, option: str, value: str) -> None:
    done = run(option, value, CLEAN)
    assert done.code == 2
    assert option in done.err


def test_runbooks_are_read_from_a_folder(run: Run) -> None:
    folder = EXAMPLES / "alert/runbook-file"
    assert run(str(folder / "fail.yml")).code == 0
    assert run("--runbooks", str(folder / "runbooks"), str(folder / "fail.yml")).code == 3
    assert run("--runbooks", str(folder / "runbooks"), str(folder / "pass.yml")).code == 0


def test_the_checks_are_listed_and_explained(run: Run) -> None:
    assert [line.split()[0] for line in run("--list-checks").out.splitlines()] == list(CHECKS)
    assert [one["id"] for one in json.loads(run("--list-checks", "-o", "json").out)] == list(CHECKS)
    explained = run("--explain", "expression/xid-latch").out
    assert CHECKS["expression/xid-latch"].why in " ".join(explained.split())
    assert "# sre-lint: disable=expression/xid-latch" in explained
    assert run("--explain", "xid").code == 2


def test_settings_are_defaults(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sre.yaml").write_text("monitoring:\n  retention_days: 40\n")
    assert run(str(EXAMPLES / "expression/range-beyond-retention/fail.yml")).code == 0


def test_bucket_edges_are_those_of_the_generator(run: Run, tmp_path: Path) -> None:
    """A family of vLLM's ``--custom-histogram-buckets`` stands for all of its histograms."""
    rules = tmp_path / "rules.yml"
    expr = "histogram_quantile(0.99, sum by (le) (rate(vllm:e2e_request_latency_seconds_bucket[5m]))) > 0.65"
    rules.write_text(ALERT.format(expr=f"          {expr}", for_="5m", summary='"x"'))
    assert run(str(rules)).code == 3
    (tmp_path / "sre.yaml").write_text(
        "monitoring: {custom_buckets: {request_latency: [0.1, 0.5, 0.65, 1, 2, 10, 30, 60]}}"
    )
    assert run(str(rules)).code == 0
