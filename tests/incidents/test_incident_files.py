"""Incident folders: private, whole, first word kept, bounded."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.actions.types import InFlightRequest
from sre.adapters import incident_files
from sre.adapters.incident_files import IncidentFiles
from sre.breaker.records import incident_id
from sre.errors import StateError
from sre.incidents.identity import is_incident_id, opened_wall
from sre.redaction import redact

ID = "inc-20270115-080000-00a1"
FACTS = {"scope": "engine sim-0", "reason": "hang", "severity": "page", "opened_wall": 1_800_000_000.25}


def request(number: int, path: str = "/v1/chat/completions") -> InFlightRequest:
    return InFlightRequest(
        request_id=f"r{number}", path=path, model="sim-7b", engine="sim-0", client="127.0.0.1:5000",
        started_wall=1_799_999_990.0, age_seconds=10.0, max_tokens=16, stream=True, bytes_sent=100,
    )  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> IncidentFiles:
    return IncidentFiles(tmp_path / "incidents")


def test_a_new_incident_is_private_and_open(files: IncidentFiles, tmp_path: Path) -> None:
    folder = files.open(ID, FACTS)
    assert folder == tmp_path / "incidents" / ID
    files.write_contexts(ID, [request(1)])
    files.write_evidence(ID, "engine-log.txt", "line")
    for path in [folder, *folder.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    found = files.read(ID)
    assert found is not None
    assert not found.resolved
    assert (found.opened_wall, found.facts["reason"], found.damage) == (1_800_000_000.25, "hang", [])
    assert found.evidence == ["engine-log.txt"]


def test_every_call_may_be_repeated_and_the_first_word_stays(files: IncidentFiles) -> None:
    for n in (1, 2):
        files.open(ID, {**FACTS, "seen": n})
        assert files.write_contexts(ID, [request(i) for i in range(3 * n)]) == 3
        files.write_evidence(ID, "log.txt", f"take {n}")
        files.resolve(ID, at_wall=1_800_000_041.0 + n, facts={"ended": n})
    found = files.read(ID)
    assert found is not None
    assert (found.facts["seen"], found.facts["ended"]) == (1, 1)
    assert found.resolved_wall == 1_800_000_042.0
    assert found.contexts is not None
    assert [c["request_id"] for c in found.contexts] == ["r0", "r1", "r2"]
    assert files.read_evidence(ID, "log.txt") == "take 1"


def test_no_request_in_flight_is_recorded_too(files: IncidentFiles) -> None:
    files.open(ID, FACTS)
    found = files.read(ID)
    assert found is not None
    assert found.contexts is None
    assert files.write_contexts(ID, []) == 0
    found = files.read(ID)
    assert found is not None
    assert found.contexts == []


def test_a_context_holds_no_secret_and_no_endless_text(files: IncidentFiles) -> None:
    files.open(ID, FACTS)
    files.write_contexts(ID, [request(1, "/v1/models?api_key=abcd1234&" + "x" * 10_000)])
    found = files.read(ID)
    assert found is not None
    assert found.contexts is not None
    path = found.contexts[0]["path"]
    assert path.startswith("/v1/models?api_key=<hidden>&x")
    assert len(path) <= 2_100


def test_a_damaged_line_is_read_over_and_told(files: IncidentFiles, tmp_path: Path) -> None:
    files.open(ID, FACTS)
    files.write_contexts(ID, [request(1)])
    with (tmp_path / "incidents" / ID / "contexts.jsonl").open("a") as file:
        file.write('{"age_seconds": 9, "cli')
    found = files.read(ID)
    assert found is not None
    assert found.contexts is not None
    assert [one["request_id"] for one in found.contexts] == [request(1).request_id]
    assert found.damage == ["contexts.jsonl: 1 damaged lines left out"]


def test_a_damaged_incident_is_reported_and_can_still_be_resolved(files: IncidentFiles, tmp_path: Path) -> None:
    files.open(ID, FACTS)
    (tmp_path / "incidents" / ID / "incident.json").write_text("{ not json")
    found = files.read(ID)
    assert found is not None
    assert found.damage[0].startswith("incident.json cannot be read")
    assert found.opened_wall == opened_wall(ID)
    files.resolve(ID, at_wall=5.0)
    found = files.read(ID)
    assert found is not None
    assert found.resolved


def test_what_is_said_of_an_incident_is_redacted(tmp_path: Path) -> None:
    files = IncidentFiles(tmp_path, redact=lambda text: redact(text, ["hunter22"]))
    folder = files.open(ID, {"reason": "hang", "seen": ["401 for hunter22", 7], "more": {"why": "hunter22"}})
    files.resolve(ID, at_wall=5.0, facts={"end": "not hunter22 any more"})
    text = (folder / "incident.json").read_text()
    assert "hunter22" not in text
    document = json.loads(text)
    assert (document["reason"], document["seen"]) == ("hang", ["401 for <hidden>", 7])
    assert (document["end"], document["resolved_wall"]) == ("not <hidden> any more", 5.0)


def test_evidence_is_redacted_cut_at_its_beginning_and_bounded(tmp_path: Path) -> None:
    files = IncidentFiles(tmp_path, redact=lambda text: redact(text, ["hunter22"]))
    files.open(ID, FACTS)
    files.write_evidence(ID, "log.txt", "HF_TOKEN=hf_secret1\nlogin hunter22\n")
    assert files.read_evidence(ID, "log.txt") == "HF_TOKEN=<hidden>\nlogin <hidden>\n"
    files.write_evidence(ID, "long.txt", "a" * 2_000_000 + "the end")
    long = files.read_evidence(ID, "long.txt")
    assert long is not None
    assert long.startswith("(beginning cut off)\n")
    assert long.endswith("the end")
    assert len(long) < 1_100_000
    for n in range(100):
        files.write_evidence(ID, f"{n}.txt", "x")
    found = files.read(ID)
    assert found is not None
    assert len(found.evidence) == incident_files.EVIDENCE_FILES


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden", "x" * 101, "a\n"])
def test_a_name_that_leaves_the_folder_is_refused(files: IncidentFiles, name: str) -> None:
    files.open(ID, FACTS)
    with pytest.raises(ValueError, match="no name for a piece of evidence"):
        files.write_evidence(ID, name, "x")
    assert files.read_evidence(ID, name) is None


@given(st.text())
def test_only_an_incident_id_becomes_a_path(text: str) -> None:
    files = IncidentFiles(Path("/nonexistent"))
    if not is_incident_id(text):
        assert files.read(text) is None
        with pytest.raises(ValueError, match="no incident id"):
            files.open(text, {})


@given(st.floats(0, 4e9), st.integers(0, 10**6))
def test_the_name_the_guard_gives_is_an_incident_id_and_holds_its_time(wall: float, number: int) -> None:
    name = incident_id(wall, number)
    assert is_incident_id(name)
    assert abs(wall - opened_wall(name)) < 1.001


@pytest.mark.parametrize(
    "text",
    [
        ID + "\n",
        ID.upper(),
        "inc-20270115-080000-00a",
        "inc-20271315-080000-00a1",
        f"x{ID}",
        "inc-٢٠٢٧٠١١٥-080000-00a1",
    ],
)
def test_what_only_looks_like_an_incident_id_is_none(text: str) -> None:
    assert not is_incident_id(text)
    with pytest.raises(ValueError, match="no incident id"):
        opened_wall(text)


def test_old_incidents_go_resolved_ones_first(tmp_path: Path) -> None:
    files = IncidentFiles(tmp_path, incidents_kept=3)
    names = [f"inc-2027011{n}-080000-0000" for n in range(6)]
    for n, name in enumerate(names):
        files.open(name, FACTS)
        if n in (1, 2):
            files.resolve(name, at_wall=1.0)
    assert files.list() == [names[3], names[4], names[5]]
    files.resolve(names[4], at_wall=1.0)
    files.open("inc-20270120-080000-0000", FACTS)
    assert files.list() == [names[3], names[5], "inc-20270120-080000-0000"]


def test_old_incidents_go_when_they_take_too_much_room(tmp_path: Path) -> None:
    files = IncidentFiles(tmp_path, bytes_kept=250_000)
    for n in range(5):
        name = f"inc-2027011{n}-080000-0000"
        files.open(name, FACTS)
        files.write_evidence(name, "log.txt", "x" * 100_000)
    files.open(ID, FACTS)
    assert len(files.list()) == 3
    assert files.list()[-1] == ID


def test_a_disk_that_refuses_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "incidents").write_text("a file where the folder should be")
    files = IncidentFiles(tmp_path / "incidents")
    with pytest.raises(StateError, match=r"incident file .*: File exists; free space or"):
        files.open(ID, FACTS)
    with pytest.raises(StateError, match="free space or correct its permissions"):
        files.write_contexts(ID, [request(1)])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_sentence(files: IncidentFiles, tmp_path: Path) -> None:
    folder = files.open(ID, FACTS)
    (folder / ".contexts.jsonl.new").symlink_to("/dev/full")
    with pytest.raises(StateError, match="No space left on device; free space"):
        files.write_contexts(ID, [request(1)])
    assert not (folder / "contexts.jsonl").exists()
    assert not os.path.lexists(folder / ".contexts.jsonl.new")


def test_the_folder_is_plain_json_for_other_tools(files: IncidentFiles, tmp_path: Path) -> None:
    files.open(ID, FACTS)
    files.write_contexts(ID, [request(1)])
    folder = tmp_path / "incidents" / ID
    assert json.loads((folder / "incident.json").read_text()) == {**FACTS, "id": ID, "resolved_wall": None}
    (line,) = (folder / "contexts.jsonl").read_text().splitlines()
    assert set(json.loads(line)) == {
        "request_id", "path", "model", "engine", "client", "started_wall", "age_seconds", "max_tokens", "stream",
        "bytes_sent", "chunks_sent",
    }  # fmt: skip
