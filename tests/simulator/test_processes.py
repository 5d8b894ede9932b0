"""The simulated engine as processes: start, faults from outside, ends. What vLLM does, too, is in tests/contracts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from sre.metrics import vllm
from tests.conftest import WaitUntil, unused_port
from tests.support.engines import EngineProcess, group_members, running_sim, sim_argv, start

pytestmark = pytest.mark.integration

DEV = {"VLLM_SERVER_DEV_MODE": "1"}
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """A fast engine with all files, for tests that leave it as it was."""
    folder = tmp_path_factory.mktemp("sim")
    options: tuple[str, ...] = ("--time-scale", "20", "--gpus", "0,1", "--gpu-file", str(folder / "gpu.json"))
    options += ("--fault-file", str(folder / "faults.json"), "--max-num-seqs", "64")
    with running_sim(folder / "engine.log", *options) as engine:
        engine.extra = {"gpu": folder / "gpu.json", "faults": folder / "faults.json"}
        yield engine


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as executor:
        yield executor


def started_in_vain(*options: str, environment: dict[str, str] | None = None) -> str:
    """Stderr of an engine that must not start."""
    done = subprocess.run(
        sim_argv(unused_port(), *options), capture_output=True, text=True, timeout=20,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    assert done.returncode == 1
    return done.stderr


# it says what it is


def test_it_is_labelled_as_a_simulator_everywhere(sim: EngineProcess) -> None:
    assert "SIMULATED ENGINE" in sim.log.read_text().splitlines()[0]
    assert "sim" in sim.get("/version").json()["version"]
    assert sim.get("/v1/models").json()["data"][0]["owned_by"] == "sre-simulator"
    assert sim.complete(1).json()["system_fingerprint"] == "sre-simulated-engine"
    for path in ("/health", "/metrics", "/nosuch"):
        assert sim.get(path).headers["x-sre-simulated"] == "engine"
    assert requests.post(sim.url + "/v1/completions", json={"prompt": "x", "stream": True}, timeout=30).headers[
        "x-sre-simulated"
    ]


# starts


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(sim_argv(port), capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--max-model-len", "5000", "--kv-cache-tokens", "4096"), "does not fit into the KV cache"),
        (("--time-scale", "0"), "--time-scale must be above 0"),
        (("--gpus", "a"), "--gpus a is not a list of indices"),
        (("--api-key-env", "SRE_NOT_SET"), "environment variable SRE_NOT_SET is empty"),
        (("--gpu-file", "/nonexistent/gpu.json"), "folder /nonexistent of --gpu-file is missing"),
    ],
)
def test_wrong_options_are_one_sentence(options: tuple[str, ...], said: str) -> None:
    stderr = started_in_vain(*options)
    assert said in stderr
    assert stderr.count("\n") == 1


def test_until_loaded_clients_are_refused_and_sigterm_ends_it(log: Path, wait_until: WaitUntil) -> None:
    port = unused_port()
    engine = start(sim_argv(port, "--load-seconds", "60"), port, "tiny", log)
    try:
        wait_until(lambda: engine.core_pid, 10, ignore=(LookupError,))
        with pytest.raises(requests.ConnectionError):
            engine.get("/health")
        engine.process.terminate()
        assert engine.wait_exit(5) == 0
        wait_until(lambda: not group_members(engine.process.pid))
    finally:
        engine.kill()


def test_a_core_that_dies_while_loading_fails_the_start(log: Path, wait_until: WaitUntil) -> None:
    port = unused_port()
    engine = start(sim_argv(port, "--load-seconds", "60"), port, "tiny", log)
    try:
        os.kill(wait_until(lambda: engine.core_pid, 10, ignore=(LookupError,)), signal.SIGKILL)
        assert engine.wait_exit(5) == 1
        assert "its core died while starting" in log.read_text()
    finally:
        engine.kill()


# ends


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_ends_it_in_order(log: Path, wait_until: WaitUntil, number: int) -> None:
    with running_sim(log) as engine:
        os.killpg(engine.process.pid, number)
        assert engine.wait_exit(5) == 0
        wait_until(lambda: not group_members(engine.process.pid))
        assert "Traceback" not in log.read_text()


def test_shutdown_timeout_lets_running_requests_finish(
    log: Path, pool: ThreadPoolExecutor, wait_until: WaitUntil
) -> None:
    with running_sim(log, "--shutdown-timeout", "20") as engine:
        running = [pool.submit(engine.complete, 100) for _ in range(3)]
        wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 3)
        engine.process.terminate()
        (refused,) = wait_until(lambda: _answer(engine, 500))
        assert refused.json()["error"]["message"] == "cannot schedule new futures after shutdown"
        assert engine.get("/health").status_code == 200
        assert [r.result(20).json()["choices"][0]["finish_reason"] for r in running] == ["length"] * 3
        assert engine.wait_exit(5) == 0


def test_shutdown_timeout_is_kept(log: Path, pool: ThreadPoolExecutor, wait_until: WaitUntil) -> None:
    with running_sim(log, "--shutdown-timeout", "0.5") as engine:
        running = pool.submit(engine.complete, 2000)
        wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 1)
        engine.process.terminate()
        assert running.result(10).json()["choices"][0]["finish_reason"] == "abort"
        assert engine.wait_exit(5) == 0


def test_sigterm_aborts_with_200_and_says_nothing_in_streams(
    log: Path, pool: ThreadPoolExecutor, wait_until: WaitUntil
) -> None:
    with running_sim(log) as engine:
        whole, stream = pool.submit(engine.complete, 2000), pool.submit(engine.complete, 2000, stream=True)
        wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 2)
        began = time.monotonic()
        engine.process.terminate()
        assert whole.result(10).json()["choices"][0]["finish_reason"] == "abort"
        assert (whole.result().status_code, stream.result(10).status_code) == (200, 200)
        assert stream.result().text.endswith("data: [DONE]\n\n")
        assert '"finish_reason":"' not in stream.result().text
        assert engine.wait_exit(5) == 0
        assert time.monotonic() - began < 4


def test_sigterm_ends_it_though_the_core_is_stopped(log: Path, pool: ThreadPoolExecutor, wait_until: WaitUntil) -> None:
    with running_sim(log) as engine:
        running = pool.submit(engine.complete, 2000)
        wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 1)
        os.kill(engine.core_pid, signal.SIGSTOP)
        engine.process.terminate()
        assert running.result(10).json()["choices"][0]["finish_reason"] == "abort"
        assert engine.wait_exit(10) == 0
        wait_until(lambda: not group_members(engine.process.pid))


def test_a_stream_stands_still_while_the_core_is_stopped_and_goes_on(
    log: Path, pool: ThreadPoolExecutor, wait_until: WaitUntil
) -> None:
    with running_sim(log) as engine:
        stream = pool.submit(engine.complete, 200, stream=True)
        wait_until(lambda: engine.value(vllm.GENERATION_TOKENS.sample) > 5)
        os.kill(engine.core_pid, signal.SIGSTOP)
        wait_until(lambda: engine.value(vllm.ITERATION_TOKENS.sample) == engine.value(vllm.ITERATION_TOKENS.sample))
        tokens = engine.value(vllm.GENERATION_TOKENS.sample)
        assert engine.value(vllm.REQUESTS_RUNNING.sample) == 1  # frozen
        assert engine.get("/health").status_code == 200
        with pytest.raises(TimeoutError):
            stream.result(1.0)
        assert engine.value(vllm.GENERATION_TOKENS.sample) == tokens < 200
        os.kill(engine.core_pid, signal.SIGCONT)
        text = stream.result(20).text
        # A front that is behind tells of two tokens in one event, as vLLM's does: tokens are counted, not events.
        assert engine.value(vllm.GENERATION_TOKENS.sample) == 200
        assert 100 < text.count('"finish_reason":null') < 200
        assert text.count('"finish_reason":"length"') == 1
        assert text.endswith("data: [DONE]\n\n")


def test_keep_alive_on_engine_death(log: Path, pool: ThreadPoolExecutor, wait_until: WaitUntil) -> None:
    with running_sim(log, environment={"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1"}) as engine:
        running = pool.submit(engine.complete, 2000)
        wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 1)
        os.kill(engine.core_pid, signal.SIGKILL)
        assert running.result(10).status_code == 500
        wait_until(lambda: engine.get("/health").status_code == 503)
        assert engine.get("/v1/models").status_code == 200
        assert engine.complete(1).json()["error"]["code"] == 500
        assert engine.value(vllm.REQUESTS_RUNNING.sample) == 1  # frozen
        assert engine.process.poll() is None
        engine.process.terminate()
        assert engine.wait_exit(5) == 0


def test_a_killed_api_server_leaves_an_orphan_that_sigterm_ends(log: Path, wait_until: WaitUntil) -> None:
    with running_sim(log) as engine:
        core = engine.core_pid
        engine.process.kill()
        engine.process.wait()
        wait_until(lambda: "stays as an orphan" in log.read_text())
        with pytest.raises(requests.ConnectionError):
            engine.get("/health")
        assert group_members(engine.process.pid) == [core]
        assert (Path("/proc") / str(core) / "cmdline").read_bytes().rstrip(b"\0") == b"VLLM::EngineCore"
        assert (Path("/proc") / str(core) / "comm").read_text() == "VLLM::EngineCor\n"
        os.kill(core, signal.SIGTERM)
        wait_until(lambda: not group_members(engine.process.pid))


# faults and the GPU


def write_faults(engine: EngineProcess, seconds: float = 60.0, run_id: str = "r", **faults: float) -> None:
    path: Path = engine.extra["faults"]
    document = {"boot_id": BOOT_ID, "expires_monotonic": time.monotonic() + seconds, "run_id": run_id, "faults": faults}
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(document))
    draft.replace(path)


@pytest.fixture
def faulty(sim: EngineProcess, wait_until: WaitUntil) -> Iterator[EngineProcess]:
    """The engine; its fault file is gone afterwards, and so are the faults."""
    yield sim
    sim.extra["faults"].unlink(missing_ok=True)
    wait_until(lambda: sim.complete(1).status_code == 200)


def test_error_ratio_answers_500_until_the_file_is_gone(faulty: EngineProcess, wait_until: WaitUntil) -> None:
    write_faults(faulty, error_ratio=1.0)
    (failed,) = wait_until(lambda: _answer(faulty, 500))
    assert failed.json()["error"]["type"] == "InternalServerError"
    errors = faulty.value("vllm:request_success_total", finished_reason="error")
    body = {"prompt": "x", "max_tokens": 2, "stream": True}
    stream = requests.post(faulty.url + "/v1/completions", json=body, timeout=30)
    assert stream.status_code == 200
    assert stream.text.endswith('"code": 500}}\n\ndata: [DONE]\n\n')
    assert faulty.value("vllm:request_success_total", finished_reason="error") == errors + 1


def test_faults_expire_by_themselves(faulty: EngineProcess, wait_until: WaitUntil) -> None:
    write_faults(faulty, seconds=1.0, batch_failures=-1)
    wait_until(lambda: _answer(faulty, 500))
    wait_until(lambda: _answer(faulty, 200))
    assert faulty.extra["faults"].exists()


def test_so_many_batches_fail(faulty: EngineProcess) -> None:
    write_faults(faulty, batch_failures=3, run_id="three")
    time.sleep(0.1)  # until the file is looked at again; the engine is idle
    assert [faulty.complete(1).status_code for _ in range(5)] == [500, 500, 500, 200, 200]


def test_delay_holds_requests_back(faulty: EngineProcess) -> None:
    write_faults(faulty, delay_seconds=0.4)
    time.sleep(0.1)
    began = time.monotonic()
    assert faulty.complete(1).status_code == 200
    assert time.monotonic() - began >= 0.4


def test_a_broken_fault_file_is_told_and_ignored(faulty: EngineProcess, wait_until: WaitUntil) -> None:
    faulty.extra["faults"].write_text("{")
    wait_until(lambda: "ignored" in faulty.log.read_text())
    assert faulty.complete(1).status_code == 200


def test_the_gpu_file_says_how_the_gpus_are_loaded(
    sim: EngineProcess, pool: ThreadPoolExecutor, wait_until: WaitUntil
) -> None:
    def read() -> dict[str, Any]:
        document: dict[str, Any] = json.loads(sim.extra["gpu"].read_text())
        return document

    document = read()
    assert (document["pid"], document["boot_id"]) == (sim.core_pid, BOOT_ID)
    stat = (Path("/proc") / str(sim.core_pid) / "stat").read_text().rpartition(")")[2].split()
    assert document["start_ticks"] == int(stat[19])
    assert set(document["gpus"]) == {"0", "1"}
    running = [pool.submit(sim.complete, 2000) for _ in range(32)]
    loaded = wait_until(lambda: (d := read())["gpus"]["0"]["utilization_ratio"] > 0.5 and d)
    assert loaded["gpus"]["0"]["memory_used_bytes"] > 48e9
    assert time.monotonic() - loaded["updated_monotonic"] < 5
    assert all(request.result(60).status_code == 200 for request in running)


def test_the_gpu_file_goes_with_the_engine(tmp_path: Path, log: Path) -> None:
    file = tmp_path / "gpu.json"
    with running_sim(log, "--gpus", "0", "--gpu-file", str(file)) as engine:
        assert file.exists()
        engine.process.terminate()
        engine.wait_exit(5)
    assert list(tmp_path.iterdir()) == [log]


# admission


def test_a_full_queue_is_503_without_retry_after(log: Path, pool: ThreadPoolExecutor) -> None:
    with running_sim(log, "--max-num-queued-reqs", "4", "--time-scale", "4") as engine:
        answers = [future.result(30) for future in [pool.submit(engine.complete, 200) for _ in range(12)]]
        shed = [answer for answer in answers if answer.status_code == 503]
        assert len(shed) == 8
        assert "Retry-After" not in shed[0].headers
        assert shed[0].json()["error"]["type"] == "Service Unavailable"
        assert engine.value("vllm:admission_rejections_total", reason="max_num_queued_reqs") == 8
        assert engine.value("http_requests_total", status="5xx") == 8
        assert engine.complete(1, n=5).status_code == 503  # n takes n slots
        assert engine.complete(1, stream=True, n=5).status_code == 503


def test_the_api_key_guards_only_v1(log: Path) -> None:
    options = ("--api-key-env", "SRE_TEST_KEY")
    with running_sim(log, *options, environment={"SRE_TEST_KEY": "s3cret", **DEV}) as engine:
        assert engine.get("/v1/models").status_code == 401
        assert engine.complete(1).json() == {"error": "Unauthorized"}
        for path in ("/health", "/metrics", "/is_paused", "/load"):
            assert engine.get(path).status_code == 200
        key = {"Authorization": "Bearer s3cret"}
        assert engine.get("/v1/models", headers=key).status_code == 200
        assert engine.get("/v1/models", headers={"Authorization": "Bearer s3cres"}).status_code == 401
        assert "s3cret" not in log.read_text()


def test_dev_endpoints_need_dev_mode(sim: EngineProcess) -> None:
    for path in ("/pause", "/resume", "/sleep", "/wake_up", "/abort_requests", "/reset_prefix_cache"):
        assert sim.post(path).status_code == 404
    assert sim.get("/is_paused").status_code == 404


def test_priority_policy(log: Path, pool: ThreadPoolExecutor, wait_until: WaitUntil) -> None:
    with running_sim(log, "--scheduling-policy", "priority", "--max-num-seqs", "1", "--time-scale", "4") as engine:
        order: list[str] = []

        def ask(name: str, priority: str, tokens: int = 30) -> None:
            body = {"prompt": "x", "max_tokens": tokens, "ignore_eos": True}
            engine.post("/v1/completions", body, headers={"X-Vllm-Priority": priority})
            order.append(name)

        first = pool.submit(ask, "first", "5", 1000)
        wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 1)
        low = [pool.submit(ask, "low", "3") for _ in range(3)]
        wait_until(lambda: engine.value(vllm.REQUESTS_WAITING.sample) == 3)
        high = pool.submit(ask, "high", "-1")
        for done in (first, high, *low):
            done.result(30)
        assert order.index("high") <= 1


# bad clients


def test_a_body_above_64_mib_is_413(sim: EngineProcess) -> None:
    headers = {"content-type": "application/json"}
    answer = requests.post(sim.url + "/v1/completions", data=b" " * (65 << 20), headers=headers, timeout=60)
    assert answer.status_code == 413


def test_a_client_that_does_not_read_holds_up_nobody(sim: EngineProcess, wait_until: WaitUntil) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 30_000, "ignore_eos": True, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.create_connection(("127.0.0.1", sim.port)) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(head.encode() + b"\r\n\r\n" + body)
        wait_until(lambda: sim.value(vllm.REQUESTS_RUNNING.sample) == 1)
        assert sim.complete(5).status_code == 200
    wait_until(lambda: sim.value(vllm.REQUESTS_RUNNING.sample) == 0)


def test_garbage_is_a_400_and_no_more(sim: EngineProcess) -> None:
    with socket.create_connection(("127.0.0.1", sim.port), timeout=5) as client:
        client.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        assert b" 400 " in client.recv(4096)
    assert sim.get("/health").status_code == 200


def test_pieces_of_a_long_prompt_are_no_steps_in_the_metrics(log: Path) -> None:
    """As in vLLM: while a long prompt is computed alone, the step counter stands still."""
    with running_sim(log, "--max-num-batched-tokens", "256", "--time-scale", "10") as engine:
        before = engine.value(vllm.ITERATION_TOKENS.sample)
        assert engine.complete(3, prompt="x" * 40_000).status_code == 200  # 10,000 tokens: 40 steps
        assert engine.value(vllm.ITERATION_TOKENS.sample) - before == 3


def test_memory_does_not_grow_with_requests(sim: EngineProcess, pool: ThreadPoolExecutor) -> None:
    def rss() -> int:
        pages = 0
        for pid in (sim.process.pid, sim.core_pid):
            pages += int((Path("/proc") / str(pid) / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def many(count: int) -> None:
        assert all(status == 200 for status in pool.map(lambda _: sim.complete(8).status_code, range(count)))

    many(400)
    before = rss()
    many(1200)
    assert rss() - before < 6 << 20


def _answer(engine: EngineProcess, status: int) -> list[requests.Response]:
    """The answer in a list, if it has that status: an error is a false Response."""
    answer = engine.complete(1)
    return [answer] if answer.status_code == status else []
