"""The frame around the code: one command to check, set up once, then offline; a hint here, a failure in CI."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def recipe(target: str) -> list[str]:
    """Commands of a Makefile target, those of its prerequisites included."""
    text = (ROOT / "Makefile").read_text("utf-8")
    match = re.search(rf"^{target}:(.*)\n((?:\t.*\n)*)", text, re.MULTILINE)
    assert match, f"no target {target}"
    commands = [line for needed in match[1].split() for line in recipe(needed)]
    for line in match[2].splitlines():
        called = re.search(r"\$\(MAKE\).* (\w+)$", line)
        commands += recipe(called[1]) if called else [line.strip().lstrip("@")]
    return commands


def test_ci_runs_make_test_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    code = [line for line in lines if line and not line.startswith("#")]
    assert code == ['cd "$(dirname "$0")/.." && exec make test']
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_make_test_sets_up_then_lints_then_tests() -> None:
    programs = [re.sub(r"^\$\(\w+\)/?(python )?", "", command).split()[0] for command in recipe("test")]
    assert programs == [".ci/setup.py", ".ci/setup.py", "ruff", "ruff", "mypy", "lint-imports", ".ci/tests.py"]


def test_benchmarks_are_never_part_of_make_test() -> None:
    for file in (ROOT / "tests" / "benchmarks").rglob("*.py"):
        assert not file.name.startswith("test_"), f"{file.name}: pytest would collect it; call it bench_…"


# --- .ci/setup.py --------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what setup.py looks at, with an interpreter in .venv that only writes down how it was called."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "setup.py", tmp_path / ".ci")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    python.chmod(0o755)
    return tmp_path


def setup(project: Path, which: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run setup.py where no package, program or index can be reached."""
    env = {"PATH": str(project / "bin"), "HOME": str(project), **environ}
    argv = [sys.executable, ".ci/setup.py", which]
    return subprocess.run(argv, cwd=project, env=env, capture_output=True, text=True, timeout=60)


def pip_calls(project: Path) -> list[str]:
    calls = project / "calls"
    return [line for line in calls.read_text().splitlines() if "-m pip" in line] if calls.exists() else []


def test_what_is_installed_is_not_installed_again(project: Path) -> None:
    assert setup(project, "dev").returncode == 0
    assert pip_calls(project) == ["-m pip install --quiet --no-input --editable .[dev]"]
    for which in ("dev", "demo"):
        assert setup(project, which).returncode == 0
    assert len(pip_calls(project)) == 1


def test_the_demo_installs_only_what_it_needs(project: Path) -> None:
    assert setup(project, "demo").returncode == 0
    assert pip_calls(project) == ["-m pip install --quiet --no-input --editable .[gateway,demo]"]


def test_a_new_dependency_installs_again_and_a_linter_setting_does_not(project: Path) -> None:
    setup(project, "dev")
    pyproject = project / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("line-length = 120", "line-length = 119"))
    setup(project, "dev")
    assert len(pip_calls(project)) == 1
    pyproject.write_text(pyproject.read_text().replace('"click>=8.1,<9",', '"click>=8.2,<9",'))
    setup(project, "dev")
    assert len(pip_calls(project)) == 2


def test_an_installation_that_failed_is_said_and_tried_again(project: Path) -> None:
    python = project / ".venv" / "bin" / "python"
    works = python.read_text()
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || { echo "no such index"; exit 1; }\n')
    failed = setup(project, "dev")
    assert failed.returncode == 1
    assert "no such index" in failed.stderr
    assert "is a package index reachable?" in failed.stderr
    python.write_text(works)
    assert setup(project, "dev").returncode == 0
    assert len(pip_calls(project)) == 1


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_missing_debian_tools_are_a_hint_here_and_a_failure_in_ci(project: Path, ci: str, code: int) -> None:
    done = setup(project, "tools", CI=ci)
    assert done.returncode == code
    assert "apt-get install" in done.stderr
    assert "prometheus-alertmanager" in done.stderr


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_a_python_without_vllm_is_a_hint_here_and_a_failure_in_ci(project: Path, ci: str, code: int) -> None:
    done = setup(project, "vllm", CI=ci, SRE_VLLM_PYTHON="/nonexistent/python")
    assert done.returncode == code
    assert "SRE_VLLM_PYTHON=/nonexistent/python has no vllm" in done.stderr


def test_all_does_its_steps_at_once_and_tells_of_each_that_failed(project: Path) -> None:
    """Each step here waits for the other; one after the other they would wait in vain."""
    meet = "i=0; until [ -e {} ] || [ $i = 300 ]; do /bin/sleep 0.1; i=$((i+1)); done; [ -e {} ]"
    python, other = project / ".venv" / "bin" / "python", project / "other-python"
    call = f'echo "$@" >> {project}/calls; [ "$1" = -c ]'
    python.write_text(f"#!/bin/sh\n{call} || {{ >{project}/a; {meet.format(project / 'b', project / 'b')}; }}\n")
    other.write_text(f"#!/bin/sh\n>{project}/b; {meet.format(project / 'a', project / 'a')} && exit 7\n")
    other.chmod(0o755)
    done = setup(project, "all", CI="true", SRE_VLLM_PYTHON=str(other))
    assert done.returncode == 1
    assert "failed with exit code" not in done.stderr
    for sentence in (
        "Debian tools: ",
        "TypeScript: node or npm is missing",
        f"vLLM: SRE_VLLM_PYTHON={other} has no vllm",
    ):
        assert sentence in done.stderr
    assert len(pip_calls(project)) == 1


def test_wrong_usage_says_what_is_right(project: Path) -> None:
    done = setup(project, "everything")
    assert (done.returncode, done.stderr) == (2, "setup: usage: python3 .ci/setup.py demo|dev|tools|vllm|all\n")


# --- .ci/tests.py --------------------------------------------------------------------------------------------------

TESTS_PY = ROOT / ".ci" / "tests.py"
FOLDERS = [str(folder) for name in ("IN_PAIRS", "ALONE") for folder in runpy.run_path(str(TESTS_PY))[name]]
SUITE = """
import os, pytest

def told(test):
    with open({told!r}, "a") as file:
        file.write(f"{folder} {{test}} {{os.nice(0)}}\\n")

def test_computing():
    told("computing")
    {computing}

@pytest.mark.integration
def test_real():
    told("real")
    {real}
"""


@pytest.fixture
def suite(tmp_path: Path) -> Callable[..., Path]:
    """A project with a suite of two tests in each folder that has a part of its own, and in one that has none."""

    def make(folder: str = "", computing: str = "pass", real: str = "pass") -> Path:
        (tmp_path / ".ci").mkdir()
        shutil.copy(TESTS_PY, tmp_path / ".ci")
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  integration: x\n  vllm: x\n")
        for number, one in enumerate([*FOLDERS, "tests/new"]):
            (tmp_path / one).mkdir(parents=True)
            bodies = {"computing": computing, "real": real} if one == folder else {"computing": "pass", "real": "pass"}
            text = SUITE.format(folder=one, told=str(tmp_path / "told"), **bodies)
            (tmp_path / one / f"test_{number}.py").write_text(text)
        return tmp_path

    return make


# Plugins take a second of each start.
QUICK = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def run_tests(project: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, ".ci/tests.py"]
    return subprocess.run(argv, cwd=project, env=QUICK, capture_output=True, text=True, timeout=120)


def test_every_test_is_run_once_and_each_part_is_told_in_one_piece(suite: Callable[..., Path]) -> None:
    project = suite()
    done = run_tests(project)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line.split() for line in (project / "told").read_text().splitlines()]
    kinds = ("computing", "real")
    assert sorted((folder, kind) for folder, kind, _ in told) == sorted(
        (folder, kind) for folder in [*FOLDERS, "tests/new"] for kind in kinds
    )
    niceness = {(kind, int(nice)) for _, kind, nice in told}
    assert niceness == {("computing", 19), ("real", os.nice(0))}, "what computes is in nobody's way"
    pieces = re.split(r"^==== (\S+) ====$", done.stdout, flags=re.MULTILINE)
    names, texts = pieces[1::2], pieces[2::2]
    assert sorted(names[:-1]) == sorted([*FOLDERS, "others", "computing"])
    assert names[-1] == "all"
    for text in texts[:-1]:
        assert len(re.findall(r"^=+ test session starts", text, re.MULTILINE)) == 1
        assert len(re.findall(r"^=+ .*passed.* in", text, re.MULTILINE)) == 1


@pytest.mark.parametrize(("folder", "kind"), [(FOLDERS[0], "computing"), (FOLDERS[-1], "real"), ("tests/new", "real")])
def test_one_failure_anywhere_fails_the_whole_and_hides_no_other_part(
    suite: Callable[..., Path], folder: str, kind: str
) -> None:
    done = run_tests(suite(folder, **{kind: "assert False, 'broken'"}))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "AssertionError: broken" in done.stdout
    assert len(re.findall(r"^\S+ +\d+ s  passed$", done.stdout, re.MULTILINE)) == len(FOLDERS) + 1
    assert len(re.findall(r"^\S+ +\d+ s  exit code 1$", done.stdout, re.MULTILINE)) == 1


def test_a_part_that_is_killed_fails_the_whole_and_the_others_go_on(suite: Callable[..., Path]) -> None:
    done = run_tests(suite("tests/new", real="os.kill(os.getpid(), 9)"))
    assert done.returncode == 137, done.stdout + done.stderr
    assert re.search(r"^others +\d+ s  exit code 137$", done.stdout, re.MULTILINE)
    assert len(re.findall(r"^\S+ +\d+ s  passed$", done.stdout, re.MULTILINE)) == len(FOLDERS) + 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_who_ends_it_ends_all_of_it_and_each_part_tidies_up(suite: Callable[..., Path], number: signal.Signals) -> None:
    wait = "import time, pathlib\n    try: time.sleep(60)\n    finally: pathlib.Path('tidy').write_text('')"
    project = suite("tests/new", real=wait)
    with subprocess.Popen(
        [sys.executable, ".ci/tests.py"], cwd=project, env=QUICK, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 60
        while not ((project / "told").exists() and "tests/new real" in (project / "told").read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if number is signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert (project / "tidy").exists()


ENDLESS = """
import time
import pytest

@pytest.fixture
def folder(tmp_path_factory):
    made = tmp_path_factory.getbasetemp().parent / "made"
    made.mkdir()
    yield made
    made.rmdir()

def test_endless(folder):
    time.sleep(60)
"""


def test_a_run_that_is_terminated_leaves_nothing_behind(tmp_path: Path) -> None:
    """`timeout` ends a run so, and so do CI systems."""
    (tmp_path / "test_endless.py").write_text(ENDLESS)
    options = ("-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", os.devnull)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, "--basetemp", str(tmp_path / "base"), str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )
    made = tmp_path / "made"
    try:
        deadline = time.monotonic() + 30
        while not made.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
        assert process.wait(30) == pytest.ExitCode.INTERRUPTED
    finally:
        process.kill()
        process.wait()
    assert not made.exists()
