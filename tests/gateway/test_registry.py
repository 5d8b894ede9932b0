"""The registry: what is open, how requests ended, whose fault it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.actions.types import Outcome
from sre.adapters.envoy.admin import rename_log
from sre.adapters.envoy.judgement import JUDGED_PATHS
from sre.adapters.envoy.line import FIELDS, parse
from sre.adapters.envoy.registry import LOST_SECONDS, MAX_OPEN, SILENT_SECONDS, RequestRegistry
from sre.adapters.envoy.tail import LogTail
from sre.signals.types import OutcomeCounts
from tests.gateway.lines import line, progress, start

ENGINES = {"127.0.0.1:9001": "a", "127.0.0.1:9002": "b"}
NO_UPSTREAM = {"upstream": "-", "end": "-", "attempts": "0"}


def registry() -> RequestRegistry:
    return RequestRegistry(ENGINES, {"pool-m": "m"})


@pytest.mark.parametrize(
    ("fields", "outcome", "detail"),
    [
        ({}, Outcome.SUCCESS, "ok"),
        ({"path": "/v1/chat/completions?x=1"}, Outcome.SUCCESS, "ok"),
        ({"end": "error"}, Outcome.FAILURE, "error"),
        ({"end": "no_finish"}, Outcome.FAILURE, "no_finish"),
        ({"end": "partial"}, Outcome.FAILURE, "partial"),
        ({"end": "finish_abort"}, Outcome.FAILURE, "finish_abort"),
        ({"end": "opaque"}, Outcome.NEUTRAL, "opaque"),
        ({"end": "-", "flags": "UPE"}, Outcome.FAILURE, "cut"),
        ({"end": "-", "flags": "UC"}, Outcome.FAILURE, "cut"),
        ({"end": "-"}, Outcome.SUCCESS, "ok"),  # a whole document: the filter speaks up only if something is wrong
        ({"end": "ok", "flags": "UPE"}, Outcome.SUCCESS, "ok"),  # cut after [DONE]
        ({"status": "500", "end": "error"}, Outcome.FAILURE, "http_500"),
        ({"status": "503", "end": "error"}, Outcome.FAILURE, "http_503"),
        ({"status": "503", "end": "queue_full"}, Outcome.NEUTRAL, "queue_full"),
        ({"status": "503", "end": "-", "flags": "UC"}, Outcome.FAILURE, "cut"),
        ({"status": "503", "end": "-", "flags": "UF"}, Outcome.FAILURE, "connect_failure"),
        ({"status": "504", "end": "-", "flags": "UT"}, Outcome.FAILURE, "timeout"),
        ({"status": "400", "end": "error"}, Outcome.NEUTRAL, "http_400"),
        ({"status": "429", "end": "error"}, Outcome.NEUTRAL, "http_429"),
        ({"status": "0", "end": "-", "flags": "DC"}, Outcome.NEUTRAL, "client_abort"),
        ({"end": "-", "flags": "DC"}, Outcome.NEUTRAL, "client_abort"),
        # It had everything, then it left: the engine did well. It left because of an error event: the engine did not.
        ({"end": "ok", "flags": "DC"}, Outcome.SUCCESS, "ok"),
        ({"end": "error", "flags": "DC"}, Outcome.FAILURE, "error"),
        ({"end": "-", "flags": "SI"}, Outcome.NEUTRAL, "client_stalled"),
        ({"path": "/v1/embeddings", "end": "-"}, Outcome.SUCCESS, "ok"),
        ({"path": "/v1/embeddings", "end": "-", "flags": "UPE"}, Outcome.FAILURE, "cut"),
        # These answer through a total hang.
        ({"path": "/v1/models", "end": "no_finish"}, Outcome.NEUTRAL, "engine_free"),
        ({"path": "/health", "end": "-"}, Outcome.NEUTRAL, "engine_free"),
        (NO_UPSTREAM | {"status": "503", "route": "hang@pool-m"}, Outcome.NEUTRAL, "hang"),
        (NO_UPSTREAM | {"status": "503", "flags": "UO"}, Outcome.NEUTRAL, "concurrency_limit"),
        (NO_UPSTREAM | {"status": "503", "flags": "UH"}, Outcome.NEUTRAL, "no_healthy_upstream"),
        (NO_UPSTREAM | {"status": "429"}, Outcome.NEUTRAL, "rate_limited"),
        (NO_UPSTREAM | {"status": "413"}, Outcome.NEUTRAL, "body_too_large"),
        (NO_UPSTREAM | {"status": "400", "flags": "DPE"}, Outcome.NEUTRAL, "bad_request"),
        (NO_UPSTREAM | {"status": "0", "flags": "DC"}, Outcome.NEUTRAL, "client_abort"),
    ],
)
def test_verdict_says_only_what_the_engine_did(fields: dict[str, str], outcome: Outcome, detail: str) -> None:
    found = registry().feed(line(**fields), 1.0)
    assert found is not None
    assert (found.outcome, found.detail) == (outcome, detail)


def test_refusal_of_ours_belongs_to_no_engine_and_names_its_pool() -> None:
    r = registry()
    found = r.feed(line(**NO_UPSTREAM, cluster="-", status=503, route="hang@pool-m"), 1.0)
    assert found is not None
    assert (found.engine, found.model, found.detail) == (None, "m", "hang")
    assert r.outcomes() == {"a": OutcomeCounts(), "b": OutcomeCounts()}


@pytest.mark.parametrize(
    "fields",
    [{"end": "-"}, {"end": "ok"}, {"end": "error"}, {"end": "no_finish"}, {"status": 500, "end": "-"},
     {"status": 504, "end": "-", "flags": "UT"}, {"end": "error", "flags": "DC"}, {"end": "-", "flags": "UPE"}],
)  # fmt: skip
def test_with_a_broken_filter_neither_good_nor_bad_completions_count(fields: dict[str, Any]) -> None:
    """Its silence is no consent, and failures without the successes beside them would be a ratio of 1."""
    r = registry()
    r.filter_works = False
    r.feed(line(type="UpstreamEnd", upstream="127.0.0.1:9002", status=503, flags="UF", end="-"), 1.0)
    found = r.feed(line(attempts=2, **fields), 1.0)
    assert found is not None
    assert (found.outcome, found.detail) == (Outcome.NEUTRAL, "unjudged")
    assert r.outcomes() == {"a": OutcomeCounts(neutral=1), "b": OutcomeCounts()}


def test_what_needs_no_filter_is_judged_without_it() -> None:
    r = registry()
    r.filter_works = False
    found = [
        r.feed(line(end="-", **fields), 1.0)
        for fields in ({"path": "/v1/embeddings"}, {"path": "/v1/embeddings", "status": 500}, {"status": 400})
    ]
    assert [f and f.detail for f in found] == ["ok", "http_500", "http_400"]


def test_failures_in_a_row_survive_neutral_outcomes_and_end_with_a_success() -> None:
    r = registry()
    for fields in ({"end": "error"}, {"flags": "DC", "end": "-"}, {"status": 400}, {"end": "error"}):
        r.feed(line(**fields), 1.0)
    assert r.outcomes()["a"] == OutcomeCounts(success=0, failure=2, neutral=2, consecutive_failures=2, client_aborts=1)
    r.feed(line(), 1.0)
    assert r.outcomes()["a"].consecutive_failures == 0
    assert r.outcomes()["b"] == OutcomeCounts()


def test_request_hidden_by_a_retry_counts_against_the_engine_that_failed() -> None:
    r = registry()
    r.feed(line(type="UpstreamEnd", upstream="127.0.0.1:9002", status=503, flags="UF", end="-"), 1.0)
    found = r.feed(line(attempts=2), 1.0)
    assert found is not None
    assert (found.engine, found.outcome, found.attempts) == ("a", Outcome.SUCCESS, 2)
    assert r.outcomes()["b"].failure == 1
    assert r.outcomes()["a"] == OutcomeCounts(success=1)


def test_last_try_is_counted_once() -> None:
    r = registry()
    r.feed(line(type="UpstreamEnd", status=500, end="-"), 1.0)
    r.feed(line(status=500, end="error"), 1.0)
    assert r.outcomes()["a"].failure == 1


def test_open_request_gains_engine_model_and_bytes_as_lines_arrive() -> None:
    r = registry()
    r.feed(start(), 10.0)
    (seen,) = r.in_flight(10.5)
    assert (seen.model, seen.engine, seen.bytes_sent, seen.age_seconds, seen.stream) == (None, None, 0, 0.5, None)
    assert (seen.path, seen.client, seen.started_wall) == ("/v1/completions", "127.0.0.1:5000", 1_800_000_000.5)
    r.feed(progress(duration_ms=250, bytes_sent=100), 10.25)
    (seen,) = r.in_flight(11.25)
    assert (seen.model, seen.engine, seen.bytes_sent, seen.age_seconds) == ("m", "a", 100, 1.25)
    assert (seen.max_tokens, seen.stream) == (16, True)
    r.feed(line(), 12.0)
    assert r.in_flight(12.0) == []


def test_in_flight_is_ordered_by_age() -> None:
    r = registry()
    for request, second in (("new", 30), ("old", 10), ("middle", 20)):
        r.feed(start(request, started=f"2027-01-15T08:00:{second}.000Z"), 1.0)
    assert [seen.request_id for seen in r.in_flight(1.0)] == ["old", "middle", "new"]


def test_sent_bytes_count_each_byte_once() -> None:
    r = registry()
    r.feed(start(), 1.0)
    r.feed(progress(bytes_sent=100), 1.0)
    r.feed(progress(bytes_sent=250), 1.0)
    assert r.sent_bytes(2.0)["a"].value == 250
    r.feed(line(bytes_sent=400), 1.0)
    r.feed(line(id="r-2", bytes_sent=50), 1.0)
    assert {name: reading.value for name, reading in r.sent_bytes(3.0).items()} == {"a": 450, "b": 0}


@pytest.mark.parametrize(
    "fields",
    [{"path": "/v1/models"}, {"path": "/v1/models?x=1"}, {"path": "/version"}, {"path": "/tokenize"},
     {"path": "/health"}, {"status": 400}, {"status": 404, "path": "/v1/chat/completions"},
     {"status": 503, "end": "queue_full"}, {"status": 500}, {"status": 504, "flags": "UT"}],
)  # fmt: skip
def test_answers_that_flow_through_a_total_hang_are_no_progress(fields: dict[str, Any]) -> None:
    r = registry()
    r.feed(start(path=fields.get("path", "/v1/completions")), 1.0)
    r.feed(progress(**({"bytes_sent": 100} | fields)), 1.0)
    r.feed(line(**fields), 1.0)
    assert r.sent_bytes(2.0)["a"].value == 0


@pytest.mark.parametrize("path", sorted(JUDGED_PATHS))
def test_bytes_of_an_open_request_count_once_its_status_is_known(path: str) -> None:
    r = registry()
    r.feed(progress(status=0, bytes_sent=0, path=path), 1.0)
    assert r.sent_bytes(1.0)["a"].value == 0
    r.feed(progress(bytes_sent=100, path=path), 1.0)
    assert r.sent_bytes(1.0)["a"].value == 100


def test_history_opens_requests_but_counts_nothing() -> None:
    r = registry()
    assert r.feed(line(end="error"), 1.0, history=True) is None
    r.feed(progress("r-2", bytes_sent=100), 1.0, history=True)
    assert r.outcomes()["a"] == OutcomeCounts()
    assert [seen.request_id for seen in r.in_flight(1.0)] == ["r-2"]
    r.feed(line(id="r-2", bytes_sent=300), 2.0)
    assert r.outcomes()["a"].success == 1
    assert r.sent_bytes(2.0)["a"].value == 200


def test_request_of_a_dead_envoy_is_closed_as_cut_by_the_gateway() -> None:
    r = registry()
    r.feed(progress("dead", bytes_sent=100), 1.0)
    r.feed(progress("alive"), 1.0)
    r.suspect_all()
    r.feed(progress("alive"), 2.0)
    assert r.expire(1.0 + SILENT_SECONDS) == []
    (cut,) = r.expire(1.1 + SILENT_SECONDS)
    assert (cut.request_id, cut.outcome, cut.detail, cut.engine) == ("dead", Outcome.NEUTRAL, "cut_by_gateway", "a")
    assert [seen.request_id for seen in r.in_flight(4.0)] == ["alive"]
    assert r.outcomes()["a"].failure == 0


def test_request_that_the_log_lost_is_given_up_in_the_end() -> None:
    r = registry()
    r.feed(progress(), 1.0)
    assert r.expire(LOST_SECONDS) == []
    assert len(r.in_flight(LOST_SECONDS)) == 1
    assert r.expire(1.1 + LOST_SECONDS) == []
    assert (r.in_flight(LOST_SECONDS), r.dropped) == ([], 1)


def test_memory_is_bounded_by_the_number_of_open_requests() -> None:
    r = registry()
    for number in range(MAX_OPEN + 5):
        r.feed(start(f"r-{number}"), 1.0)
    assert (len(r.in_flight(1.0)), r.dropped) == (MAX_OPEN, 5)


@pytest.mark.parametrize(
    "raw",
    [b"", b"\t\t\t", b"DownstreamEnd\tx", line()[:40], line(status="NaN!"), line(type="Weird"), line(id="-"),
     b"\xff\xfe\x00", line(attempts="many")],
)  # fmt: skip
def test_odd_line_is_counted_and_forgotten(raw: bytes) -> None:
    r = registry()
    assert r.feed(raw, 1.0) is None
    assert (r.odd_lines, r.in_flight(1.0)) == (1, [])


@given(st.binary(max_size=300))
def test_no_bytes_make_the_registry_raise(raw: bytes) -> None:
    r = registry()
    r.feed(raw, 1.0)
    r.feed(raw.join([line()[:50], b"\t", line()[50:]]), 1.0)


@given(st.text(alphabet=st.characters(exclude_characters="\n", exclude_categories=["Cs"]), min_size=1))
def test_path_of_a_client_cannot_forge_another_field(path: str) -> None:
    found = parse(line(path=path))
    assert found.path == path.encode().decode()
    assert (found.status, found.end, found.upstream) == (200, "ok", "127.0.0.1:9001")


def test_senseless_number_of_a_client_does_not_hide_its_request() -> None:
    found = parse(line(max_tokens="1e400", end="error"))
    assert (found.max_tokens, found.end) == (None, "error")


def test_batch_path_is_shown_as_the_client_sent_it() -> None:
    assert parse(line(route="batch", path="/v1/completions")).path == "/v1/batch/completions"


def test_fields_match_what_envoy_is_told_to_write() -> None:
    assert FIELDS[-1] == "path"
    assert len(set(FIELDS)) == len(FIELDS) == len(line().split(b"\t"))


class TestLogTail:
    def test_lines_come_once_and_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "access.log"
        tail = LogTail(path, 1 << 20)
        assert tail.read(1 << 20) == []
        with path.open("ab") as log:
            log.write(b"one\ntwo\nthr")
            log.flush()
            assert tail.read(1 << 20) == [b"one", b"two"]
            log.write(b"ee\n")
            log.flush()
            assert tail.read(1 << 20) == [b"three"]
        assert tail.read(1 << 20) == []
        tail.close()

    def test_rotation_loses_no_line(self, tmp_path: Path) -> None:
        path = tmp_path / "access.log"
        path.write_bytes(b"one\n")
        tail = LogTail(path, 1 << 20)
        assert tail.read(1 << 20) == [b"one"]
        with path.open("ab") as log:
            rename_log(path, 2)
            log.write(b"two\n")  # the writer still has the old file
            log.flush()
            assert tail.read(1 << 20) == [b"two"]
            assert tail.read(1 << 20) == []
        path.write_bytes(b"three\n")
        assert tail.read(1 << 20) == [b"three"]
        tail.close()

    def test_files_rotated_twice_between_reads_are_read_in_order(self, tmp_path: Path) -> None:
        path = tmp_path / "access.log"
        tail = LogTail(path, 1 << 20)
        path.write_bytes(b"one\n")
        assert tail.read(1 << 20) == [b"one"]
        for text in (b"two\n", b"three\n"):
            rename_log(path, 5)
            path.write_bytes(text)
        found: list[bytes] = []
        for _ in range(4):
            found += tail.read(1 << 20)
        assert found == [b"two", b"three"]
        tail.close()

    def test_file_removed_while_it_was_read_leads_to_the_current_one(self, tmp_path: Path) -> None:
        path = tmp_path / "access.log"
        tail = LogTail(path, 1 << 20)
        path.write_bytes(b"one\n")
        assert tail.read(1 << 20) == [b"one"]
        rename_log(path, 0)
        path.write_bytes(b"two\n")
        assert tail.read(1 << 20) == [b"two"]
        tail.close()

    def test_truncation_starts_over(self, tmp_path: Path) -> None:
        path = tmp_path / "access.log"
        path.write_bytes(b"one\ntwo\n")
        tail = LogTail(path, 1 << 20)
        assert len(tail.read(1 << 20)) == 2
        path.write_bytes(b"x\n")
        assert tail.read(1 << 20) == [b"x"]
        tail.close()

    def test_first_read_starts_near_the_end_with_a_whole_line(self, tmp_path: Path) -> None:
        path = tmp_path / "access.log"
        path.write_bytes(b"".join(b"line-%03d\n" % n for n in range(100)))
        tail = LogTail(path, 25)
        assert tail.read(1 << 20) == [b"line-098", b"line-099"]
        tail.close()

    def test_one_read_is_bounded(self, tmp_path: Path) -> None:
        path = tmp_path / "access.log"
        path.write_bytes(b"12345678\n" * 10)
        tail = LogTail(path, 1 << 20)
        assert len(tail.read(20)) == 2
        assert len(tail.read(1000)) == 8
        tail.close()


def test_rotated_logs_are_kept_up_to_the_number_of_backups(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    for text in ("1", "2", "3", "4"):
        path.write_text(text)
        rename_log(path, 2)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"access.log.1": "4", "access.log.2": "3"}
    path.write_text("5")
    rename_log(path, 0)
    assert not path.exists()
