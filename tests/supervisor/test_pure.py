"""What decides without touching anything: /proc lines, the ledger's document, back-off, commands, take-over."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.adapters.processes.proc import is_orphan, members_of, parse_stat
from sre.settings.stack import EngineSettings, RestartSettings, SimEngineSettings, StackSettings
from sre.signals.types import ProcessIdentity
from sre.stack.adoption import plan_adoption
from sre.stack.commands import FaultHook, sim_command, vllm_command, with_ports
from sre.stack.ledger import Ledger, LedgerEntry, decode, encode
from sre.stack.processes import Command, Found, Role
from sre.stack.restart import RunHistory, after_crash
from sre.stack.status import stack_report_from_json, stack_report_to_json
from tests.supervisor.fakes import spec

# /proc/PID/stat

TAIL = "S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 {start} 1000 200 18446744073709551615"


@given(comm=st.text(max_size=15), pid=st.integers(1, 4_194_304), start=st.integers(0, 2**63))
def test_stat_is_read_whatever_a_process_calls_itself(comm: str, pid: int, start: int) -> None:
    stat = parse_stat(f"{pid} ({comm}) " + TAIL.format(start=start))
    assert (stat.pid, stat.comm, stat.state, stat.parent, stat.session) == (pid, comm, "S", 1, 42)
    assert stat.identity == ProcessIdentity(pid, start)


@given(st.text())
def test_anything_else_is_a_value_error(text: str) -> None:
    try:
        stat = parse_stat(text)
    except ValueError:
        return
    assert isinstance(stat.start_ticks, int)


@pytest.mark.parametrize("comm", ["a) S 1 1 1 (b", ") (", "VLLM::EngineCor", "\n"])
def test_names_that_look_like_fields_do_not_shift_them(comm: str) -> None:
    assert parse_stat(f"7 ({comm}) " + TAIL.format(start=99)).start_ticks == 99


def stat(pid: int, parent: int, session: int, start: int = 100) -> Any:
    return parse_stat(f"{pid} (x) S {parent} {session} {session} " + " ".join(["0"] * 15) + f" {start} 0")


def test_family_is_leader_session_and_descendants() -> None:
    table = {s.pid: s for s in (stat(10, 1, 10), stat(11, 10, 10), stat(12, 11, 12), stat(20, 1, 20), stat(21, 20, 20))}
    assert [s.pid for s in members_of(ProcessIdentity(10, 100), table)] == [10, 11, 12]


def test_session_of_a_dead_leader_still_is_its_family() -> None:
    table = {s.pid: s for s in (stat(11, 1, 10), stat(12, 11, 12))}
    assert [s.pid for s in members_of(ProcessIdentity(10, 100), table)] == [11, 12]


def test_session_with_the_number_of_another_process_is_not() -> None:
    table = {s.pid: s for s in (stat(10, 1, 10, start=500), stat(11, 10, 10, start=600))}
    assert members_of(ProcessIdentity(10, 100), table) == []


def test_member_that_moved_away_is_found_by_what_was_known_of_it() -> None:
    table = {s.pid: s for s in (stat(12, 1, 12),)}
    assert members_of(ProcessIdentity(10, 100), table) == []
    assert [s.pid for s in members_of(ProcessIdentity(10, 100), table, [ProcessIdentity(12, 100)])] == [12]
    assert members_of(ProcessIdentity(10, 100), table, [ProcessIdentity(12, 99)]) == []


def test_orphan_is_who_was_taken_over_by_another_session() -> None:
    table = {s.pid: s for s in (stat(1, 0, 1), stat(10, 1, 10), stat(11, 10, 10), stat(31, 1, 30), stat(32, 31, 30))}
    assert [pid for pid, one in table.items() if is_orphan(one, table)] == [31]


# Ledger

identities = st.builds(ProcessIdentity, st.integers(1, 2**22), st.integers(0, 2**60))
entries = st.builds(
    LedgerEntry,
    name=st.text(max_size=20),
    role=st.sampled_from(Role),
    launch_id=st.text(max_size=10),
    fingerprint=st.text(max_size=10),
    identity=st.none() | identities,
    members=st.lists(identities, max_size=3).map(tuple),
    started_at=st.floats(0, 1e9),
    ready_at=st.none() | st.floats(0, 1e9),
    restarts=st.integers(0, 1000),
    crashes_in_a_row=st.integers(0, 1000),
    last_exit=st.none() | st.text(max_size=20),
    last_exit_asked=st.none() | st.booleans(),
)
ledgers = st.builds(Ledger, st.text(max_size=40), st.lists(entries, max_size=3).map(tuple))


@given(ledgers)
def test_ledger_survives_the_disk(ledger: Ledger) -> None:
    assert decode(encode(ledger)) == ledger


@given(ledgers, st.data())
def test_damaged_ledger_is_refused_or_unchanged_never_something_else(ledger: Ledger, data: st.DataObject) -> None:
    raw = bytearray(encode(ledger).encode())
    kind = data.draw(st.sampled_from(["cut", "flip", "insert"]))
    at = data.draw(st.integers(0, len(raw) - 1))
    if kind == "cut":
        raw = raw[:at]
    elif kind == "flip":
        raw[at] ^= 1 << data.draw(st.integers(0, 6))
    else:
        raw[at:at] = data.draw(st.binary(min_size=1, max_size=8))
    try:
        read = decode(raw.decode("utf-8"))
    except ValueError:  # UnicodeDecodeError is one
        return
    assert read == ledger


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
    )
)
def test_other_documents_are_refused(document: Any) -> None:
    with pytest.raises(ValueError):
        decode(json.dumps(document))


# Back-off


@given(
    crashes=st.integers(0, 10_000),
    ran=st.floats(0, 1e6),
    policy=st.builds(
        RestartSettings,
        initial_backoff_seconds=st.floats(0.01, 100),
        max_backoff_seconds=st.floats(100, 1000),
        multiplier=st.floats(1, 10),
        stable_after_seconds=st.floats(1, 1000),
    ),
    at_once=st.booleans(),
)
def test_delay_is_bounded_and_never_shrinks_within_a_row(
    crashes: int, ran: float, policy: RestartSettings, at_once: bool
) -> None:
    decision = after_crash(RunHistory(crashes, 5), now=1000.0, ran_seconds=ran, policy=policy, first_at_once=at_once)
    assert decision.start_at == 1000.0 + decision.delay_seconds
    assert decision.history.restarts == 6
    assert 0 <= decision.delay_seconds <= policy.max_backoff_seconds
    following = after_crash(decision.history, now=1000.0, ran_seconds=0.0, policy=policy, first_at_once=at_once)
    assert following.delay_seconds >= decision.delay_seconds
    if ran >= policy.stable_after_seconds:
        assert decision.delay_seconds == (0.0 if at_once else policy.initial_backoff_seconds)
    elif not at_once:
        assert decision.delay_seconds >= policy.initial_backoff_seconds
    assert math.isfinite(following.delay_seconds)


# Commands


def engine(**settings: Any) -> EngineSettings:
    return EngineSettings.model_validate({"name": "e", "kind": "vllm", "port": 8100, "model": "org/m", **settings})


def test_vllm_runs_as_a_module_with_its_own_arguments_last() -> None:
    command = vllm_command(engine(args=["--max-model-len", "512"]), python="/venv/python", model_is_folder=False)
    assert command.argv == (
        "/venv/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "org/m", "--served-model-name", "org/m",
        "--host", "127.0.0.1", "--port", "8100", "--max-model-len", "512",
    )  # fmt: skip
    assert "HF_HUB_OFFLINE" not in command.env
    assert command.env["VLLM_NO_USAGE_STATS"] == "1"


def test_only_a_model_on_disk_keeps_the_hub_away() -> None:
    assert vllm_command(engine(), python="p", model_is_folder=True).env["HF_HUB_OFFLINE"] == "1"


def test_gpus_become_visible_devices_and_tensor_parallel() -> None:
    command = vllm_command(engine(gpus=[2, 3]), python="p", model_is_folder=False)
    assert command.env["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert command.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert command.argv[-2:] == ("--tensor-parallel-size", "2")


@pytest.mark.parametrize("own", [["-tp", "1"], ["--pipeline-parallel-size=2"], ["--data-parallel-size", "2"]])
def test_who_says_how_to_split_is_not_overruled(own: list[str]) -> None:
    argv = vllm_command(engine(gpus=[0, 1], args=own), python="p", model_is_folder=False).argv
    assert argv[-len(own) :] == tuple(own)
    assert "--tensor-parallel-size" not in argv


def test_cpu_build_has_defaults_that_the_operator_may_change() -> None:
    command = vllm_command(engine(build="cpu", env={"OMP_NUM_THREADS": "4"}), python="p", model_is_folder=True)
    assert command.env_defaults == {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    assert command.env["OMP_NUM_THREADS"] == "4"
    assert "CUDA_VISIBLE_DEVICES" not in command.env


def test_secrets_are_in_neither_arguments_nor_environment_nor_fingerprint() -> None:
    settings = engine(api_key="env:KEY", env={"HF_TOKEN": "file:/token", "PLAIN": "env:shown"})
    command = vllm_command(settings, python="p", model_is_folder=False)
    assert command.secret_env == {"VLLM_API_KEY": "env:KEY", "HF_TOKEN": "file:/token"}
    assert command.env["PLAIN"] == "env:shown"
    assert not any("KEY" in argument for argument in command.argv)
    sim = sim_command(engine(kind="sim", api_key="env:KEY"), python="p", gpu_file="g", fault_file="f")
    assert sim.argv[-2:] == ("--api-key-env", "VLLM_API_KEY")
    assert sim.secret_env == {"VLLM_API_KEY": "env:KEY"}


def test_fault_hook_is_a_middleware_with_its_own_path() -> None:
    command = vllm_command(engine(), python="p", model_is_folder=False, hook=FaultHook("/hooks", "/faults/e.json"))
    assert command.argv[-2:] == ("--middleware", "sre_fault_hook.FaultHook")
    assert command.env["PYTHONPATH"] == "/hooks"
    assert command.env["SRE_FAULT_FILE"] == "/faults/e.json"


def test_sim_command_says_every_setting() -> None:
    sim = SimEngineSettings()
    argv = sim_command(engine(kind="sim", gpus=[0, 1]), python="p", gpu_file="g", fault_file="f").argv
    assert argv[:3] == ("p", "-m", "sre.servers.simulated_engine")
    said = dict(zip(argv[3::2], argv[4::2], strict=True))
    assert said["--gpus"] == "0,1"
    for field in type(sim).model_fields:
        assert float(said["--" + field.replace("_", "-")]) == float(getattr(sim, field)), field


@pytest.mark.parametrize(
    "change", [{"args": ["--x"]}, {"env": {"A": "b"}}, {"port": 9}, {"model": "other"}, {"api_key": "env:OTHER"}]
)
def test_any_change_of_the_command_changes_its_fingerprint(change: dict[str, Any]) -> None:
    before = vllm_command(engine(), python="p", model_is_folder=False)
    after = vllm_command(engine(**change), python="p", model_is_folder=False)
    assert before.fingerprint() == vllm_command(engine(), python="p", model_is_folder=False).fingerprint()
    assert before.fingerprint() != after.fingerprint()
    assert before.fingerprint() != before.fingerprint("further")


def test_ports_are_filled_in_where_sre_yaml_gives_none() -> None:
    stack = StackSettings.model_validate(
        {"engines": [{"name": "a"}, {"name": "b", "port": 7}, {"name": "c", "kind": "external", "url": "http://x:1"}]}
    )
    assert [one.port for one in with_ports(stack, {"a": 5, "b": 6}).engines] == [5, 7, None]
    with pytest.raises(KeyError):
        with_ports(stack, {})


# Take-over

ME = ProcessIdentity(10, 1000)


def found(identity: ProcessIdentity = ME, **changes: Any) -> Found:
    values: dict[str, Any] = {
        "name": "sim-0", "launch_id": "L", "fingerprint": "print-of-sim-0", "leader": True, "argv": ("run", "sim-0"),
    }  # fmt: skip
    return Found(identity=identity, **(values | changes))


def known(identity: ProcessIdentity | None = ME, **changes: Any) -> LedgerEntry:
    values: dict[str, Any] = {
        "name": "sim-0", "role": Role.ENGINE, "launch_id": "L", "fingerprint": "print-of-sim-0",
    }  # fmt: skip
    return LedgerEntry(identity=identity, **(values | changes))


SPECS = {"sim-0": spec("sim-0")}


def test_ledger_and_marks_of_one_process_are_one() -> None:
    plan = plan_adoption(SPECS, [known()], [found(), found(ProcessIdentity(11, 1001), leader=False)], {ME})
    assert [step.identity for step in plan.adopt] == [ME]
    assert plan.end == ()


def test_intent_whose_process_was_started_is_adopted_by_its_marks() -> None:
    plan = plan_adoption(SPECS, [known(None)], [found()], set())
    assert [step.identity for step in plan.adopt] == [ME]


@pytest.mark.parametrize("change", [{"leader": False}, {"fingerprint": "x"}, {"argv": ("run", "child")}])
def test_marked_process_that_is_not_surely_the_launch_is_ended(change: dict[str, Any]) -> None:
    plan = plan_adoption(SPECS, [], [found(**change)], set())
    assert plan.adopt == ()
    assert [step.leader for step in plan.end] == [ME]


def test_dead_leader_means_its_family_is_ended() -> None:
    child = ProcessIdentity(11, 1001)
    plan = plan_adoption(SPECS, [known(members=(child,))], [found(child)], set())
    assert plan.adopt == ()
    assert {step.leader for step in plan.end} == {ME, child}


@given(st.data())
def test_at_most_one_per_name_and_everything_else_ends(data: st.DataObject) -> None:
    pids = [ProcessIdentity(n, n) for n in range(10, 16)]
    names = st.sampled_from(["sim-0", "sim-1", "gone"])
    prints = st.sampled_from(["print-of-sim-0", "print-of-sim-1", "other"])
    launches = st.sampled_from(["L1", "L2", "L3"])
    entries = data.draw(
        st.lists(
            st.builds(
                LedgerEntry,
                name=names,
                role=st.just(Role.ENGINE),
                launch_id=launches,
                fingerprint=prints,
                identity=st.none() | st.sampled_from(pids),
            ),
            max_size=4,
        )
    )
    marked = data.draw(
        st.lists(
            st.builds(
                Found,
                identity=st.sampled_from(pids),
                name=names,
                launch_id=launches,
                fingerprint=prints,
                leader=st.booleans(),
                argv=st.sampled_from([("run", "sim-0"), ("run", "sim-1"), ("x",)]),
            ),
            max_size=4,
        )
    )
    alive = data.draw(st.sets(st.sampled_from(pids)))
    specs = {"sim-0": spec("sim-0"), "sim-1": spec("sim-1")}
    plan = plan_adoption(specs, entries, marked, alive)
    adopted = [step.name for step in plan.adopt]
    assert len(set(adopted)) == len(adopted)
    assert set(adopted) <= set(specs)
    kept_launches = {step.launch_id for step in plan.adopt}
    for step in plan.adopt:
        prints_of = {e.fingerprint for e in entries if e.identity == step.identity}
        prints_of |= {m.fingerprint for m in marked if m.identity == step.identity}
        assert specs[step.name].fingerprint in prints_of
    for process in marked:
        assert process.launch_id in kept_launches or process.identity in {step.leader for step in plan.end}
    for one in entries:
        if one.identity in alive and one.identity not in {step.identity for step in plan.adopt}:
            assert one.identity in {step.leader for step in plan.end}


def test_fingerprint_of_a_command_holds_its_folder() -> None:
    assert Command(("a",), cwd="/x").fingerprint() != Command(("a",), cwd="/y").fingerprint()


def test_report_survives_its_json() -> None:
    from sre.stack.status import StackReport

    report = StackReport("s", "ready", ME, "http://g", "/s", None, (), None, ("note",), "m")
    assert stack_report_from_json(json.loads(json.dumps(stack_report_to_json(report)))) == report
