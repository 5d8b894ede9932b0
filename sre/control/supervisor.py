"""Everything that ``sre up`` runs, kept running: adopt what is there, start what is not, drain and stop in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from sre.actions.ports import EngineStatus
from sre.clock import Clock
from sre.control.external import ExternalEngine
from sre.control.reports import engine_status, process_report
from sre.control.supervision import GatewayDrain, Host, LedgerStore, LogFiles, ReadinessProbe, Say
from sre.control.tasks import kept_up
from sre.control.unit import LEFTOVER_TERM_SECONDS, Services, Unit
from sre.control.waiting import wait_first
from sre.errors import LeftChanged, StateError
from sre.settings.stack import RestartSettings
from sre.signals.types import ProcessIdentity, ProcessState
from sre.stack.adoption import CHANGED, AdoptionPlan, EndFamily, plan_adoption
from sre.stack.ledger import Ledger, LedgerEntry
from sre.stack.processes import ProcessSpec, Role
from sre.stack.status import StackReport

MAINTENANCE_SECONDS = 2.0
"""Between two looks at log sizes and at the families of the processes."""

FAMILIES_EVERY, ORPHANS_EVERY = 5, 15
"""In every so many-th round the families are noted, and foreign orphans looked for: looks at all of /proc."""

DRAIN_POLL_SECONDS = 0.1
DRAIN_SAY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class StackFacts:
    """What the status says besides processes."""

    name: str
    supervisor: ProcessIdentity
    gateway_url: str
    state_dir: str
    metrics_url: str | None
    supervisor_log: str | None = None


class Supervisor:
    """
    The supervisor of one stack. The caller holds the stack's lock.

    ``run`` is its life; ``request_stop`` ends it, a second call hurries it.
    """

    def __init__(
        self,
        facts: StackFacts,
        specs: Sequence[ProcessSpec],
        *,
        host: Host,
        ledger: LedgerStore,
        probe: ReadinessProbe,
        gateway: GatewayDrain | None,
        clock: Clock,
        policy: RestartSettings,
        logs: LogFiles,
        say: Say,
    ) -> None:
        self._facts = facts
        self._host, self._ledger, self._gateway = host, ledger, gateway
        self._clock, self._logs = clock, logs
        self._tell = say
        self._message = ""
        self._notes: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._drain_wanted = True
        self._drain_timeout_seconds: float | None = None
        self._phase = "starting"
        self._was_ready = False
        self._requests_active: int | None = None
        self._saved: Ledger | None = None
        services = Services(host, probe, clock, policy, logs, self._say, self._record, self._changed.set)
        self._units = {spec.name: Unit(spec, services) for spec in specs if spec.command is not None}
        self._external = {
            spec.name: ExternalEngine(spec, probe, clock, self._say, self._changed.set)
            for spec in specs
            if spec.command is None
        }

    # Its life.

    async def run(self) -> None:
        """
        Adopt, start, keep running, and after ``request_stop`` drain and stop everything: the guard first, or it would
        admit what we refuse and answer the end of the engines; then, with new requests refused and the open ones done,
        the engines; the gateway last, so that clients get an answer to the end.

        Raises:
            LeftChanged: A process of ours could not be ended.
        """
        await self.adopt()
        tasks = [asyncio.create_task(unit.run(), name=unit.spec.name) for unit in self._units.values()]
        others = [
            asyncio.create_task(kept_up(engine.run, f"supervisor: {name}", self._clock))
            for name, engine in self._external.items()
        ]
        others.append(asyncio.create_task(self._maintain()))
        try:
            await self._stop.wait()
            await self._stop_role(Role.GUARD, tasks)
            await self._drain()
            self._enter_phase("stopping")
            for role in (Role.ENGINE, Role.GATEWAY):
                await self._stop_role(role, tasks)
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        self._finish()

    async def stop_all(self) -> int:
        """
        Stop what an earlier supervisor left running, without starting anything; return how many processes ran. A call
        of ``request_stop`` before says how, one during it hurries.

        Raises:
            LeftChanged: A process of ours could not be ended.
        """
        await self.adopt()
        running = [unit for unit in self._units.values() if unit.identity is not None]
        self._stop.set()
        for unit in self._units.values():
            unit.request_stop()
        await self._run_role(Role.GUARD)
        await self._drain()
        self._enter_phase("stopping")
        for role in (Role.ENGINE, Role.GATEWAY):
            await self._run_role(role)
        self._finish()
        return len(running)

    async def wait_ready(self) -> bool:
        """Return True when every process is ready; False when a stop came first."""
        while not self._stop.is_set():
            if self._all_ready():
                return True
            self._changed.clear()
            await self._changed.wait()
        return False

    def request_stop(self, *, drain: bool = True, drain_timeout_seconds: float | None = None) -> None:
        """Begin to stop; called again, hurry: no more draining, short waits."""
        if self._stop.is_set():
            self._hurry.set()
            for unit in self._units.values():
                unit.hurry()
        else:
            self._drain_wanted = drain
            self._drain_timeout_seconds = drain_timeout_seconds
            if not drain:
                self._hurry.set()
        self._stop.set()
        self._changed.set()

    # What it knows and does for others (the API).

    async def report(self) -> StackReport:
        """All of the stack, with the requests that are open now; bounded to about a second."""
        if self._gateway is not None:
            self._requests_active = await self._gateway.requests_active()
        return self.status()

    def status(self) -> StackReport:
        """All of the stack; requests as last seen."""
        now = self._clock.monotonic()
        reports = [process_report(unit, now) for unit in self._units.values()]
        reports += [engine.report() for engine in self._external.values()]
        return StackReport(
            name=self._facts.name,
            phase=self._present_phase(),
            supervisor=self._facts.supervisor,
            gateway_url=self._facts.gateway_url,
            state_dir=self._facts.state_dir,
            metrics_url=self._facts.metrics_url,
            processes=tuple(reports),
            requests_active=self._requests_active,
            notes=tuple(self._notes.values()),
            message=self._message,
        )

    def engines(self) -> list[EngineStatus]:
        """All engines, external ones too."""
        ours = [engine_status(unit) for unit in self._units.values() if unit.spec.role is Role.ENGINE]
        return ours + [engine.status() for engine in self._external.values()]

    def restart(self, name: str, expected: ProcessIdentity, reason: str) -> bool:
        """
        Begin to replace the process of engine ``name`` if it still is ``expected``; False when it is another one or
        none. A repeated call changes nothing.

        Raises:
            KeyError: There is no such engine, or someone else runs it.
        """
        unit = self._units[name]
        return not self._stop.is_set() and unit.request_restart(expected, reason)

    # Start.

    async def adopt(self) -> AdoptionPlan:
        """Take over what runs as configured, end what does not. Nothing is started."""
        entries = self._read_ledger()
        alive = {entry.identity for entry in entries if entry.identity and self._host.alive(entry.identity)}
        specs = {name: unit.spec for name, unit in self._units.items()}
        plan = plan_adoption(specs, entries, self._host.marked(), alive)
        for kept in plan.adopt:
            process = self._host.adopt(kept.identity)
            if process is not None:
                self._units[kept.name].adopt(process, kept.launch_id, kept.entry)
                self._say(kept.name, f"runs already (pid {kept.identity.pid}); taken over")
        await asyncio.gather(*(self._end_left(step) for step in plan.end))
        for entry in entries:
            unit = self._units.get(entry.name)
            if unit is not None and unit.identity is None and entry.identity is not None:
                ended_alone = entry.identity not in alive
                end = "ended while no supervisor ran (unasked)" if ended_alone else f"ended by sre up: {CHANGED}"
                unit.succeed(entry, end, asked=not ended_alone)
        self._record()
        self._look_for_orphans()
        return plan

    async def _end_left(self, step: EndFamily) -> None:
        unit = self._units.get(step.name)
        runs = self._host.alive(step.leader)
        if runs:
            self._say(step.name, f"ending pid {step.leader.pid}: {step.why}")
        term_seconds = LEFTOVER_TERM_SECONDS
        if runs and step.why == CHANGED and unit is not None:
            term_seconds = unit.spec.stop_timeout_seconds
        survivors = await self._host.end_family(step.leader, step.known, term_seconds=term_seconds)
        if survivors:
            pids = ", ".join(str(member.identity.pid) for member in survivors)
            self._note(
                f"left:{step.name}", f"{step.name}: pid {pids} of an earlier run cannot be killed; look at dmesg"
            )
            if unit is not None and unit.identity is None:
                unit.remember(step.leader, [member.identity for member in survivors])

    def _read_ledger(self) -> tuple[LedgerEntry, ...]:
        try:
            ledger = self._ledger.load()
        except StateError as error:
            self._note("ledger", str(error))
            return ()
        if ledger is None or ledger.boot_id != self._host.boot_id():
            return ()  # nothing outlives a reboot
        return ledger.entries

    # While it runs.

    async def _maintain(self) -> None:
        """Keep logs short and families known; notice orphans."""
        rounds = 0
        while True:
            await self._clock.sleep(MAINTENANCE_SECONDS)
            rounds += 1
            try:
                for path in self._log_paths():
                    await asyncio.to_thread(self._logs.rotate, path)
                if rounds % FAMILIES_EVERY == 0:
                    self._note_families()
                if rounds % ORPHANS_EVERY == 0:
                    self._look_for_orphans()
            except Exception as error:  # noqa: BLE001 housekeeping must not end the supervisor
                self._note("maintenance", f"supervisor: internal error: {type(error).__name__}: {error}")

    def _log_paths(self) -> list[str]:
        paths = [unit.spec.log_path for unit in self._units.values()]
        return paths if self._facts.supervisor_log is None else [*paths, self._facts.supervisor_log]

    def _note_families(self) -> None:
        leaders = {
            name: unit.family
            for name, unit in self._units.items()
            if unit.family is not None and unit.identity is not None
        }
        for name, members in self._host.families({k: v for k, v in leaders.items() if v is not None}).items():
            unit = self._units[name]
            unit.members = tuple(member.identity for member in members if member.identity != unit.identity)
        self._record()

    def _look_for_orphans(self) -> None:
        ours: set[ProcessIdentity] = set()
        for unit in self._units.values():
            if unit.family is not None:
                ours |= {unit.family[0], *unit.family[1]}
        orphans = {f"orphan:{orphan.identity.pid}": orphan for orphan in self._host.foreign_orphans(ours)}
        for key in [key for key in self._notes if key.startswith("orphan:") and key not in orphans]:
            del self._notes[key]
        for key, orphan in orphans.items():
            self._note(key, orphan.describe())

    def _record(self) -> None:
        """Write the ledger if it changed. A full disk does not stop the care: processes carry marks as well."""
        entries = tuple(entry for unit in self._units.values() if (entry := unit.entry()) is not None)
        ledger = Ledger(self._host.boot_id(), entries)
        if ledger == self._saved:
            return
        try:
            self._ledger.save(ledger)
        except StateError as error:
            self._note("ledger", str(error))
            return
        self._saved = ledger

    # Stop.

    async def _drain(self) -> None:
        """Let open requests finish, as long as they may."""
        timeout = self._drain_timeout_seconds
        if timeout is None:
            timeout = max((unit.spec.drain_timeout_seconds for unit in self._units.values()), default=0.0)
        gateways = [unit for unit in self._units.values() if unit.spec.role is Role.GATEWAY]
        if self._gateway is None or not self._drain_wanted or timeout <= 0 or self._hurry.is_set():
            return
        if not any(unit.state is ProcessState.READY for unit in gateways):
            return
        self._enter_phase("draining")
        try:
            await self._gateway.drain()
            await self._wait_drained(self._gateway, timeout)
        except Exception as error:  # noqa: BLE001 whatever it is, a stop goes on
            self._say("gateway", f"cannot drain: {error}")

    async def _wait_drained(self, gateway: GatewayDrain, timeout_seconds: float) -> None:
        deadline = self._clock.monotonic() + timeout_seconds
        said_at = float("-inf")
        while True:
            active = self._requests_active = await gateway.requests_active()
            now = self._clock.monotonic()
            if active is None:
                self._say("gateway", "does not say how many requests run; going on")
                return
            if active == 0:
                return
            if now >= deadline or self._hurry.is_set():
                self._say("gateway", f"{active} requests still run and are cut")
                return
            if now - said_at >= DRAIN_SAY_SECONDS:
                said_at = now
                self._say("gateway", f"draining: {active} requests run, at most {deadline - now:.0f} s more")
            await wait_first(self._clock, DRAIN_POLL_SECONDS, self._hurry.wait())

    async def _run_role(self, role: Role) -> None:
        """Let the units of ``role``, which were asked to stop, do so."""
        units = [unit for unit in self._units.values() if unit.spec.role is role]
        if self._hurry.is_set():
            for unit in units:
                unit.hurry()
        await asyncio.gather(*(unit.run() for unit in units))

    async def _stop_role(self, role: Role, tasks: Sequence[asyncio.Task[None]]) -> None:
        units = [unit for unit in self._units.values() if unit.spec.role is role]
        names = {unit.spec.name for unit in units}
        for unit in units:
            unit.request_stop()
            if self._hurry.is_set():
                unit.hurry()
        results = await asyncio.gather(*(task for task in tasks if task.get_name() in names), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                self._say(role.value, f"internal error while stopping: {type(result).__name__}: {result}")

    def _finish(self) -> None:
        self._record()
        left = [unit.problem for unit in self._units.values() if unit.family is not None and unit.problem]
        if left:
            raise LeftChanged("; ".join(left))

    # Words.

    def _all_ready(self) -> bool:
        states = [unit.state for unit in self._units.values()]
        states += [engine.state for engine in self._external.values()]
        ready = all(state is ProcessState.READY for state in states)
        self._was_ready = self._was_ready or ready
        return ready

    def _present_phase(self) -> str:
        if self._phase != "starting":
            return self._phase
        if self._all_ready():
            return "ready"
        return "degraded" if self._was_ready else "starting"

    def _enter_phase(self, phase: str) -> None:
        self._phase = phase
        self._changed.set()

    def _note(self, key: str, sentence: str) -> None:
        if self._notes.get(key) != sentence:
            self._notes[key] = sentence
            self._say("supervisor", sentence)

    def _say(self, name: str, text: str) -> None:
        self._message = f"{name}: {text}"
        self._tell(name, text)
