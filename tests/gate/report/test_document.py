"""gate.json: what goes in comes out; what is damaged is named; what is newer is told apart."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sre.errors import StateError
from sre.gate.report import codec, document, schema
from sre.gate.result import GateResult
from sre.gate.stages import RequestClass, StagePlan
from tests.support import gate_samples

VALID = Draft202012Validator(schema.schema())


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Any value that a field's type hint allows, NaN aside: it does not equal itself."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint == tuple[tuple[str, str], ...]:  # headers and fingerprints; a header named "token" would not come back
        return st.lists(st.tuples(st.sampled_from(["x-priority", "Äa"]), st.text(max_size=8)), max_size=2).map(tuple)
    if origin in (Union, types.UnionType):
        return st.one_of(*(st.none() if each is types.NoneType else strategy(each) for each in arguments))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return st.tuples(*(strategy(each) for each in arguments))
    if origin is tuple or (isinstance(origin, type) and issubclass(origin, Sequence)):
        return st.lists(strategy(arguments[0]), max_size=2).map(tuple)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(st.text(max_size=8), strategy(arguments[1]), max_size=2)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    if dataclasses.is_dataclass(hint):
        return st.builds(hint, **{name: st.deferred(lambda h=h: strategy(h)) for name, h in codec.hints(hint).items()})
    return {
        float: st.floats(allow_nan=False),
        int: st.integers(),
        str: st.text(max_size=20),
        bool: st.booleans(),
    }[hint]


@settings(max_examples=30)
@given(strategy(GateResult))
def test_any_result_comes_back_equal_and_its_document_is_valid(result: GateResult) -> None:
    text = document.dumps(result)
    assert document.loads(text) == result
    VALID.validate(json.loads(text))


@pytest.mark.parametrize("result", [gate_samples.rich(name=gate_samples.HOSTILE), gate_samples.passed()])
def test_samples_come_back_equal_and_valid(result: GateResult) -> None:
    text = document.dumps(result)
    assert document.loads(text) == result
    VALID.validate(json.loads(text))


def test_document_is_json_for_a_strict_parser() -> None:
    def refuse(token: str) -> None:
        raise AssertionError(token)

    found = json.loads(document.dumps(gate_samples.rich()), parse_constant=refuse)
    assert found["runs"][0]["stages"][2]["summary"]["classes"]["all"]["ttft"]["p99"] == "inf"
    assert found["schema"] == "sre/gate-result"
    assert found["schema_version"] == "1.1"


def test_odd_numbers_are_words() -> None:
    assert codec.encode([math.inf, -math.inf, math.nan]) == ["inf", "-inf", "nan"]
    assert codec.decode(float, "-inf") == -math.inf
    assert math.isnan(codec.decode(float, "nan"))


def test_committed_schema_is_up_to_date() -> None:
    assert schema.published() == schema.render(), "python -m tests.gate.report.golden_files"
    Draft202012Validator.check_schema(json.loads(schema.published()))


def test_schema_can_refuse() -> None:
    found = document.encode(gate_samples.passed())
    found["runs"][0]["stages"][0]["plan"]["kind"] = "sprint"
    assert not VALID.is_valid(found)
    del found["runs"]
    assert not VALID.is_valid(found)


def test_unknown_keys_are_ignored_and_missing_ones_with_a_default_take_it() -> None:
    found = document.encode(gate_samples.passed())
    found["mood"] = {"of": "the day"}
    found["runs"][0]["stages"][0]["summary"]["p42"] = 1
    found["schema_version"] = "1.7"
    del found["notes"]
    assert document.decode(found) == gate_samples.passed()


def damaged(change: str, value: Any = None) -> str:
    """The least result's text with the value at a path replaced; None: removed."""
    found = document.encode(gate_samples.passed())
    *path, last = (int(part) if part.isdigit() else part for part in change.split("."))
    place: Any = found
    for part in path:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return json.dumps(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "run/gate.json: the file is empty; the run that wrote it did not get to its end"),
        ("  \n", "run/gate.json: the file is empty; the run that wrote it did not get to its end"),
        ('{"schema": "sre/', "run/gate.json: line 1, column 12: not JSON (Unterminated string starting at)"),
        ("[" * 100_000, "run/gate.json: not JSON that can be read (RecursionError)"),
        ('{"schema": NaN}', "run/gate.json: not JSON that can be read (ValueError)"),
        ("[]", "run/gate.json: it names no schema, not 'sre/gate-result'; give the result of a gate run"),
        ('{"schema": "sre/gate-requests"}', "run/gate.json: its schema is 'sre/gate-requests', not 'sre/gate-result'"),
        (damaged("schema_version", "2.0"), "schema version 2.0 is of a newer release, this one reads 1.x"),
        (damaged("schema_version", "0.9"), "run/gate.json: schema version 0.9 is of an older release"),
        (damaged("schema_version", 1), "run/gate.json: schema_version: 1 is no version such as 1.0"),
        (damaged("schema_version", "1.x"), "run/gate.json: schema_version: '1.x' is no version such as 1.0"),
        (damaged("runs.0.stages.0.plan.rate_rps", "fast"),
         "run/gate.json: runs[0].stages[0].plan.rate_rps: 'fast' is not a number; the file is damaged"),
        (damaged("runs.0.stages.0.plan.rate_rps", True), "runs[0].stages[0].plan.rate_rps: True is not a number"),
        (damaged("runs.0.stages.0.summary.planned", 1.5), "summary.planned: 1.5 is not a whole number"),
        (damaged("runs.0.stages.0.summary.classes.all"), ""),
        (damaged("runs.0.stages.0.plan.kind", "sprint"), "plan.kind: 'sprint' is none of warm_up, staircase"),
        (damaged("runs.0.stages.0.plan"), "run/gate.json: runs[0].stages[0].plan: is missing"),
        (damaged("runs", {}), "run/gate.json: runs: {} is not a list"),
        (damaged("omitted", []), "run/gate.json: omitted: [] is not an object"),
        (damaged("runs.0.stages.0.summary.in_flight", [[1]]), "summary.in_flight[0]: 1 values instead of 2"),
        (damaged("url", 5), "run/gate.json: url: 5 is not text"),
        (damaged("model", "x").replace('"x"', "1e999"), "run/gate.json: model: inf is not text"),
    ],
)  # fmt: skip
def test_damaged_file_is_told_with_its_place(text: str, said: str) -> None:
    if not said:
        assert "all" not in document.loads(text).runs[0].stages[0].summary.classes  # type: ignore[union-attr]
        return
    with pytest.raises(StateError) as caught:
        document.loads(text, "run/gate.json")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_too_large_are_told() -> None:
    with pytest.raises(StateError, match='too large; infinity is written "inf"'):
        document.loads(damaged("wall_started_at", 5).replace('"wall_started_at": 5', '"wall_started_at": 1e999'))
    with pytest.raises(codec.Unreadable, match="too large"):
        codec.decode(float, 10**400)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    )
)
def test_any_other_document_raises_only_our_error(found: Any) -> None:
    with pytest.raises(StateError):
        document.decode({"schema": "sre/gate-result", "schema_version": "1.0", "runs": found})


def test_credentials_in_headers_are_not_written() -> None:
    kind = RequestClass(
        "short", 1, 1, 1, headers=(("Authorization", "Bearer hush"), ("x-api-key", "hush"), ("x-p", "a"))
    )
    result = gate_samples.passed()
    stage = result.runs[0].stages[0]
    plan = dataclasses.replace(stage.plan, classes=(kind,), extra_classes=(kind,))
    run = dataclasses.replace(result.runs[0], stages=(dataclasses.replace(stage, plan=plan),))
    text = document.dumps(dataclasses.replace(result, runs=(run,)))
    assert "hush" not in text
    read: StagePlan = document.loads(text).runs[0].stages[0].plan
    assert read.classes[0].headers == (("Authorization", "<hidden>"), ("x-api-key", "<hidden>"), ("x-p", "a"))


def test_what_no_document_holds_is_a_mistake_of_ours() -> None:
    with pytest.raises(TypeError):
        codec.encode(object())


def test_a_long_run_stays_small_and_keeps_every_count_and_percentile() -> None:
    """5 runs of 10 stages of 3 classes: 400 samples of 2,000 would be 16 MB."""
    run = gate_samples.rich().runs[0]
    stage = run.stages[0]
    assert stage.summary is not None
    seen = stage.summary
    sample = (*(index / 7 for index in range(1998)), math.inf, math.inf)
    names = ("short", "medium", "long", "all")
    kinds = {name: dataclasses.replace(seen.classes["short"], request_class=name) for name in names}
    long = dataclasses.replace(
        seen, classes=kinds, ttft_sample_seconds=dict.fromkeys(names, sample),
        e2e_sample_seconds=dict.fromkeys(names, sample), in_flight=tuple((index / 7, 30) for index in range(200)),
    )  # fmt: skip
    runs = tuple(
        dataclasses.replace(run, number=number, stages=(dataclasses.replace(stage, summary=long),) * 10)
        for number in range(5)
    )
    result = dataclasses.replace(gate_samples.rich(), runs=runs)
    text = document.dumps(result)
    assert len(text) < 2_000_000
    VALID.validate(json.loads(text))
    back = document.loads(text)
    again = back.runs[4].stages[9].summary
    assert again is not None
    assert again.classes == kinds
    kept = again.ttft_sample_seconds["long"]
    assert (kept[0], kept[-1], list(kept)) == (0.0, math.inf, sorted(kept))
    assert 100 <= len(kept) <= 125
    assert document.loads(document.dumps(back)) == back  # what is thin is not thinned again


def test_a_word_of_a_newer_release_is_not_called_damage() -> None:
    found = document.encode(gate_samples.passed())
    found["verdict"]["reasons"] = ["moon_phase"]
    with pytest.raises(StateError, match=r"moon_phase.*the file is damaged"):
        document.decode(found)
    found["schema_version"] = f"{document.MAJOR}.{document.MINOR + 1}"
    with pytest.raises(StateError, match=r"moon_phase.*a newer release wrote it"):
        document.decode(found)
