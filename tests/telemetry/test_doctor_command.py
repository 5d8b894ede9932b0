"""sre doctor as a person runs it: without a stack, without network, with hung and broken things around it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sre.cli.doctor import render
from sre.control.doctor import examine, exit_code
from sre.settings.models import Root
from sre.settings.paths import StatePaths
from sre.wiring.doctor import look
from tests.gpu.support import NvmlStandin, no_nvml

pytestmark = pytest.mark.integration


@dataclass(frozen=True, slots=True)
class Report:
    code: int
    findings: list[tuple[str, str, str]]
    """(check, level, sentence)."""
    text: str

    def of(self, check: str) -> list[tuple[str, str]]:
        return [(level, sentence) for name, level, sentence in self.findings if name == check]


class Doctor:
    """``sre doctor`` on ``folder``, with a configuration whose ports are free and an NVML that cannot be loaded."""

    def __init__(self, folder: Path, free_port: Callable[[], int]) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.gateway_port = free_port()
        self.metrics_port = free_port()
        self.environ: Mapping[str, str] = no_nvml(folder / "nothing")

    def config(self, stack: Mapping[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
        gateway = {"port": self.gateway_port, **(stack or {}).get("gateway", {})}
        engines = (stack or {}).get("engines", [{"name": "sim-0", "gpus": [0]}])
        guard = {"metrics_port": self.metrics_port, **sections.pop("guard", {})}
        return {"stack": {"engines": engines, "gateway": gateway}, "guard": guard, **sections}

    def look(
        self, stack: Mapping[str, Any] | None = None, *, deadline_seconds: float = 20.0, **sections: Any
    ) -> Report:
        """What the command finds, in this process."""
        root = Root.model_validate(self.config(stack, **sections))
        findings = examine(asyncio.run(look(root, StatePaths(self.state), self.environ, deadline_seconds)))
        plain = [(f.check, f.level.value, f.sentence) for f in findings]
        return Report(exit_code(findings), plain, render(findings))

    def command(self, *options: str) -> Report:
        """The command itself."""
        file = self.folder / "sre.yaml"
        file.write_text(json.dumps(self.config()))  # JSON is YAML
        done = subprocess.run(
            [sys.executable, "-m", "sre", "-c", str(file), "--state-dir", str(self.state), "doctor", *options],
            env=dict(self.environ),
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.folder,
        )
        assert "Traceback" not in done.stderr, done.stderr
        findings = json.loads(done.stdout)["findings"] if "json" in options else []
        return Report(done.returncode, [(f["check"], f["level"], f["sentence"]) for f in findings], done.stdout)


@pytest.fixture
def doctor(short_dir: Path, free_port: Callable[[], int]) -> Doctor:
    return Doctor(short_dir, free_port)


def test_without_a_stack_it_changes_nothing(doctor: Doctor) -> None:
    report = doctor.command("-o", "json")
    assert not doctor.state.exists()
    assert report.of("envoy")[0][0] in {"ok", "problem"}
    assert [level for level, _ in report.of("ports")] == ["ok"]
    assert report.of("stack") == [("ok", "no stack runs here")]
    assert [level for level, _ in report.of("gpu")] == ["ok"]
    assert "foreseen" in report.of("rules")[0][1]
    assert report.of("notify")[0] == ("warning", "no channel is configured: nobody would be told")
    levels = {level for _, level, _ in report.findings}
    assert report.code == (3 if "problem" in levels else 0)


def test_text_names_the_remedy_below_each_finding(doctor: Doctor) -> None:
    report = doctor.command()
    lines = report.text.splitlines()
    warned = next(i for i, line in enumerate(lines) if "no channel is configured" in line)
    assert lines[warned].startswith("warning   notify ")
    assert lines[warned + 1].strip().startswith("-> add notify.channels")
    assert lines[-1].endswith("fine")


def test_a_taken_port_names_its_holder(doctor: Doctor) -> None:
    with socket.create_server(("127.0.0.1", doctor.gateway_port)):
        report = doctor.look()
    ((level, sentence),) = [found for found in report.of("ports") if "gateway" in found[1] and found[0] != "ok"]
    assert level == "problem"
    assert f"pid {os.getpid()}" in sentence
    assert report.code == 3


def test_a_state_folder_that_cannot_be_made_is_a_problem(doctor: Doctor) -> None:
    (doctor.folder / "file").write_text("")
    doctor.state = doctor.folder / "file" / "state"
    report = doctor.look()
    assert report.of("state-dir")[0][0] == "problem"
    assert report.code == 3


@pytest.mark.parametrize(
    ("script", "level", "word"),
    [
        ("echo 'x  version: abc/1.40.0/Clean/RELEASE/BoringSSL'", "ok", "1.40.0"),
        ("echo 'x  version: abc/1.31.2/Clean/RELEASE/BoringSSL'", "warning", "1.31.2"),
        ("exit 7", "problem", "exit code 7"),
        ("exec sleep 60", "problem", "did not say its version"),
    ],
)
def test_the_envoy_binary_is_run(doctor: Doctor, script: str, level: str, word: str) -> None:
    binary = doctor.folder / "envoy"
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o700)
    deadline_seconds = 8.0 if "sleep" in script else 20.0
    report = doctor.look({"gateway": {"envoy_binary": str(binary)}}, deadline_seconds=deadline_seconds)
    ((found, sentence),) = report.of("envoy")
    assert found == level
    assert word in sentence


async def test_a_look_that_is_given_up_leaves_no_process(
    doctor: Doctor, wait_until_async: Callable[..., Awaitable[Any]]
) -> None:
    binary, written = doctor.folder / "envoy", doctor.folder / "pid"
    binary.write_text(f"#!/bin/sh\necho $$ > {written}\nexec sleep 60\n")
    binary.chmod(0o700)
    root = Root.model_validate(doctor.config({"gateway": {"envoy_binary": str(binary)}}))
    looking = asyncio.create_task(look(root, StatePaths(doctor.state), doctor.environ, 60.0))
    pid = await wait_until_async(lambda: written.exists() and written.read_text().strip())
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    assert not Path(f"/proc/{pid}").exists()


def test_secrets_are_resolved_and_never_shown(doctor: Doctor) -> None:
    doctor.environ = {**doctor.environ, "GOOD_URL": "mailtos://u:hunter2@host.example"}
    channels = [
        {"name": "good", "kind": "email", "url": "env:GOOD_URL"},
        {"name": "bad", "kind": "sms", "url": "env:SRE_TEST_NOT_SET"},
    ]
    report = doctor.look(notify={"channels": channels})
    assert "hunter2" not in report.text
    ((level, sentence),) = [found for found in report.of("notify") if found[0] != "ok"]
    assert level == "problem"
    assert "SRE_TEST_NOT_SET" in sentence
    assert report.code == 3


def test_a_channel_that_takes_no_message_anywhere_is_a_problem(doctor: Doctor) -> None:
    doctor.environ = {**doctor.environ, "URL": "nosuch://hunter2"}
    report = doctor.look(
        notify={"channels": [{"name": "n", "kind": "webhook", "url": "env:URL"}]}, deadline_seconds=60.0
    )
    assert report.of("notify") == [("problem", "notify.channels[0].url: there is no service nosuch://")]


def test_an_interpreter_without_vllm_is_a_problem(doctor: Doctor) -> None:
    report = doctor.look({"engines": [{"name": "v", "kind": "vllm", "model": "m", "python": sys.executable}]})
    assert [level for level, _ in report.of("engines")] == ["problem"]


def test_an_external_engine_that_is_away_is_a_warning(doctor: Doctor, free_port: Callable[[], int]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    report = doctor.look({"engines": [{"name": "x", "kind": "external", "model": "m", "url": url}]})
    assert [level for level, _ in report.of("engines")] == ["warning"]


def test_nvml_is_read_in_a_child(doctor: Doctor) -> None:
    standin = NvmlStandin(doctor.folder / "lib")
    standin.set({"0.temperature": 71})
    doctor.environ = standin.environ
    report = doctor.look()
    ((level, sentence),) = report.of("gpu")
    assert level == "ok"
    assert "nvml" in sentence
    assert "71 °C" in sentence


def test_an_nvml_that_hangs_is_not_seen_and_holds_nobody_up(doctor: Doctor) -> None:
    standin = NvmlStandin(doctor.folder / "lib")
    standin.set({"nvmlInitWithFlags.hang": 1})
    doctor.environ = standin.environ
    report = doctor.look(deadline_seconds=10.0)
    ((level, sentence),) = report.of("gpu")
    assert level == "not_seen"
    assert "did not return" in sentence
    assert [level for level, _ in report.of("ports")] == ["ok"]


def test_the_command_ends_though_a_gpu_call_does_not(doctor: Doctor) -> None:
    standin = NvmlStandin(doctor.folder / "lib")
    standin.set({"nvmlDeviceGetTemperature.hang": 1})
    doctor.environ = standin.environ
    (finding, *_) = doctor.command("-o", "json").of("gpu")
    assert finding[0] == "problem"
    assert "did not return" in finding[1]


def test_a_memory_rule_that_vllm_would_trip_for_ever_is_said_before_the_start(doctor: Doctor) -> None:
    standin = NvmlStandin(doctor.folder / "lib")
    doctor.environ = standin.environ
    engine = {
        "name": "v", "kind": "vllm", "model": "m", "gpus": [0], "python": sys.executable,
        "args": ["--gpu-memory-utilization", "0.95"],
    }  # fmt: skip
    report = doctor.look({"engines": [engine]})
    ((level, sentence),) = [found for found in report.of("rules") if "gpu-memory" in found[1]]
    assert level == "warning"
    assert "not armed" in sentence


def test_an_invalid_configuration_is_named(doctor: Doctor) -> None:
    file = doctor.folder / "bad.yaml"
    file.write_text("stack: {gatway: {}}\n")
    done = subprocess.run(
        [sys.executable, "-m", "sre", "-c", str(file), "doctor"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert "gatway" in done.stderr
