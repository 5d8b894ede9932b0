"""``sre rules verify`` as a command: exit codes, options, secrets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click
import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from sre.cli.app import App
from sre.cli.rules_verify import verify
from sre.errors import ConfigError, ExitCode, Rejected, Unreachable
from sre.metrics.exposition import Series
from tests.conftest import unused_port
from tests.monitoring.http_servers import DATA, VLLM, Handler, answers, prometheus, serving

# ---- The command -----------------------------------------------------------------------------------------------------


def run(*arguments: str) -> Result:
    """The command as the program runs it: errors are raised, the exit code is what it returns."""
    return CliRunner().invoke(verify, arguments, obj=App(None, None, False), standalone_mode=False)


def code(result: Result) -> int:
    assert result.exception is None, result.exception
    return int(result.return_value)


async def command(handler: Handler, *arguments: str, path: str = "/metrics") -> Result:
    async with serving(handler) as base:
        return await asyncio.to_thread(run, "--url", base + path, *arguments)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No sre.yaml of this folder is read."""
    monkeypatch.chdir(tmp_path)


async def test_a_healthy_engine_alone_can_fire_what_it_feeds() -> None:
    result = await command(answers(VLLM))
    assert code(result) == ExitCode.OK, result.output
    assert "VllmKvCacheNearlyFull" in result.stdout
    assert "node_exporter is not among the URLs" in result.stdout
    assert "cannot fire" not in result.stdout
    assert result.stdout.rstrip().splitlines()[-1].split(": ")[1].endswith("not looked at")


async def test_an_old_engine_is_answered_no_as_json_too() -> None:
    result = await command(answers((DATA / "vllm-0.8.metrics.txt").read_bytes()), "--output", "json")
    assert code(result) == ExitCode.NO
    data = json.loads(result.stdout)
    (one,) = [alert for alert in data["alerts"] if alert["name"] == "VllmAdmissionRejections"]
    assert one["verdict"] == "cannot fire"
    assert one["reasons"][0]["cause"] == "comes later"
    assert data["exporters"][0]["release"] == "before 0.12"
    assert data["good"] is False


async def test_what_was_not_looked_at_is_counted_by_what_is_missing_and_named_on_demand() -> None:
    short, long = await command(answers(VLLM)), await command(answers(VLLM), "--verbose")
    data = json.loads((await command(answers(VLLM), "-o", "json")).stdout)
    unseen = [alert["name"] for alert in data["alerts"] if alert["verdict"] == "not looked at"]
    heading, *groups, _, total = short.stdout[short.stdout.index("Not looked at") :].splitlines()
    assert heading == f"Not looked at, so nothing is known of {len(unseen)} alerts (their names: --verbose):"
    assert sum(int(group.split()[0]) for group in groups) == len(unseen) > 10
    assert len(groups) <= 8
    assert total.endswith(f"{len(unseen)} not looked at")
    named = {line.split()[0] for line in long.stdout.splitlines() if "  not looked at  " in line}
    assert named == set(unseen)
    assert not named & set(short.stdout.split())
    assert "Not looked at, so" not in long.stdout


async def test_a_page_of_somebody_else_is_no_answer() -> None:
    result = await command(answers(b"go_goroutines 5\n"))
    assert code(result) == ExitCode.NO_ANSWER
    assert "nothing at these addresses" in result.stderr


async def test_an_address_that_fails_is_told_beside_what_the_others_say() -> None:
    gone = f"http://127.0.0.1:{unused_port()}/metrics"
    result = await command(answers(VLLM), "--url", gone)
    assert code(result) == ExitCode.COULD_NOT_RUN
    assert "VllmKvCacheNearlyFull" in result.stdout
    assert gone in result.stderr


def test_when_every_address_fails_each_is_told() -> None:
    urls = [f"http://127.0.0.1:{unused_port()}/metrics" for _ in range(2)]
    result = run("--url", urls[0], "--url", urls[1])
    assert isinstance(result.exception, Unreachable)
    assert all(url in result.stderr + str(result.exception) for url in urls)
    assert result.stdout == ""


async def test_a_prometheus_without_our_exporters_says_so() -> None:
    result = await command(prometheus({"up": [Series({"job": "vllm", "instance": "e:1"}, 0.0)]}), path="")
    assert code(result) == ExitCode.NO
    assert "is it scraped?" in result.stdout


async def test_a_token_is_read_from_its_reference_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        allowed = request.headers.get("Authorization") == "Bearer s3cret" and request.headers.get("X-Scope") == "t1"
        return web.Response(body=VLLM) if allowed else web.Response(status=401)

    (tmp_path / "scope").write_text("t1\n")
    monkeypatch.setenv("TOKEN", "s3cret")
    arguments = ("--token", "env:TOKEN", "--header", f"X-Scope=file:{tmp_path / 'scope'}")
    result = await command(handle, *arguments)
    assert code(result) == ExitCode.OK
    denied = await command(handle)
    assert isinstance(denied.exception, Rejected)
    assert "s3cret" not in result.output + denied.output + str(denied.exception)


async def test_a_secret_goes_to_its_own_url_only(monkeypatch: pytest.MonkeyPatch) -> None:
    got: dict[str, list[str | None]] = {"/a/metrics": [], "/b/metrics": []}

    async def handle(request: web.Request) -> web.StreamResponse:
        got[request.path].append(request.headers.get("Authorization"))
        got[request.path].append(request.headers.get("X-Scope"))
        return web.Response(body=VLLM)

    monkeypatch.setenv("TOKEN", "s3cret")
    async with serving(handle) as base:
        a, b = f"{base}/a/metrics", f"{base}/b/metrics"
        arguments = ("--url", a, "--url", b, "--token", f"{a}=env:TOKEN", "--header", f"{b}=X-Scope=env:TOKEN")
        result = await asyncio.to_thread(run, *arguments)
    assert code(result) == ExitCode.OK
    assert got == {"/a/metrics": ["Bearer s3cret", None], "/b/metrics": [None, "s3cret"]}


@pytest.mark.parametrize("option", [("--token", "env:TOKEN"), ("--header", "X-Scope=env:TOKEN")])
def test_a_secret_in_the_clear_is_warned_of(option: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    result = run("--url", "http://127.0.0.1.invalid:1/metrics", "--timeout", "1", *option)
    assert "warning: http://127.0.0.1.invalid:1/metrics: the secret for it travels unencrypted" in result.stderr
    quiet = run("--url", "http://127.0.0.1.invalid:1/metrics", "--timeout", "1")
    assert "warning" not in quiet.stderr


async def test_releases_and_prefix_are_options() -> None:
    ray = VLLM.replace(b"vllm:", b"ray_vllm:")
    told = await command(answers(ray))
    assert code(told) == ExitCode.NO
    assert code(await command(answers(ray), "--metric-prefix", "ray_vllm:")) == ExitCode.OK
    old = await command(answers((DATA / "vllm-0.8.metrics.txt").read_bytes()), "--vllm-version", "0.8")
    assert code(old) == ExitCode.OK
    wrong = run("--url", "http://h", "--vllm-version", "x")
    assert "--vllm-version: " in str(wrong.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--url", "http://h", "--url", "http://i", "--token", "env:HOME"), "whose is it"),
        (("--url", "http://h", "--url", "http://i", "--header", "X=env:HOME"), "whose is it"),
        (("--url", "http://h", "--token", "env:HOME", "--token", "env:HOME"), "given twice"),
        (("--url", "nonsense"), "is no URL"),
        (("--url", "http://h", "--token", "s3cret"), "never written here"),
        (("--url", "http://h", "--token", "env:NOT_SET_HERE"), "NOT_SET_HERE is not set"),
        (("--url", "http://h", "--header", "X-Scope"), "write it NAME=env:VARIABLE"),
        (("--url", "http://h", "--header", "X Y=env:A"), "write it NAME=env:VARIABLE"),
        (("--url", "http://h", "--ca-file", "none.pem"), "--ca-file"),
    ],
)
def test_wrong_options_are_usage_errors(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, ConfigError), result.output
    assert words in str(result.exception)
    assert "s3cret" not in str(result.exception)


def test_a_url_is_needed() -> None:
    assert isinstance(run().exception, click.UsageError)


def test_a_line_end_in_a_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "a\nb")
    with pytest.raises(ConfigError, match="no header can hold"):
        raise run("--url", "http://h", "--token", "env:TOKEN").exception or AssertionError
