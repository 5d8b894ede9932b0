"""
``gate.json``: a gate run's whole result, as a versioned document.

Its JSON Schema is ``gate.schema.json`` beside this file. Within a major version fields, and words of a choice, are only
added: readers ignore fields that they do not know, and refuse a word (a new reason, say) with the release as the cause.
Header values that look like credentials are not written.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sre.errors import StateError
from sre.gate.percentiles import thinned
from sre.gate.report import codec
from sre.gate.result import GateResult, StageResult
from sre.gate.summary import StageSummary
from sre.redaction import HIDDEN

SCHEMA = "sre/gate-result"
MAJOR, MINOR = 1, 1
VERSION = f"{MAJOR}.{MINOR}"

MOST_SAMPLES = 50_000
"""Values kept of all samples together, about 0.4 MB: a document is read back for every report, and uploaded by CI."""
LEAST_OF_A_SAMPLE = 50

_SECRET_WORDS = ("authorization", "cookie", "key", "token", "secret", "password")


def encode(result: GateResult) -> dict[str, Any]:
    """
    The document, made of what JSON has.

    Samples are for curves. Of a long run they are thinned, evenly by rank, and rounded to a microsecond; counts and
    percentiles, which verdicts rest on, stay as they are.
    """
    return {"schema": SCHEMA, "schema_version": VERSION, **hide_headers(codec.encode(_slim(result)))}


def _slim(result: GateResult) -> GateResult:
    stages = [*(stage for run in result.runs for stage in run.stages), *result.knee_stages]
    samples = [sample for stage in stages if stage.summary is not None for sample in _samples(stage.summary)]
    if sum(map(len, samples)) <= MOST_SAMPLES:
        return result
    most = max(LEAST_OF_A_SAMPLE, MOST_SAMPLES // len(samples))
    runs = [
        dataclasses.replace(run, stages=tuple(_slim_stage(stage, most) for stage in run.stages)) for run in result.runs
    ]
    knee_stages = tuple(_slim_stage(stage, most) for stage in result.knee_stages)
    return dataclasses.replace(result, runs=tuple(runs), knee_stages=knee_stages)


def _samples(summary: StageSummary) -> list[Sequence[float]]:
    return [*summary.ttft_sample_seconds.values(), *summary.e2e_sample_seconds.values()]


def _slim_stage(stage: StageResult, most: int) -> StageResult:
    def few(samples: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
        return {name: tuple(round(value, 6) for value in thinned(sample, most)) for name, sample in samples.items()}

    if (seen := stage.summary) is None:
        return stage
    seen = dataclasses.replace(
        seen, ttft_sample_seconds=few(seen.ttft_sample_seconds), e2e_sample_seconds=few(seen.e2e_sample_seconds)
    )
    return dataclasses.replace(stage, summary=seen)


def decode(document: Any, where: str = "gate.json") -> GateResult:
    """
    Return the result that ``document`` holds.

    Args:
        where: Name of the file, for the message.

    Raises:
        StateError: another document, a newer major version, or damaged; the sentence names the place.
    """
    check_version(document, SCHEMA, MAJOR, where, "the result of a gate run (gate.json)")
    try:
        return codec.decode(GateResult, document)
    except codec.Unreadable as problem:
        newer = int(document["schema_version"].split(".")[1]) > MINOR
        why = "a newer release wrote it; use that one" if newer else "the file is damaged, or another program wrote it"
        raise StateError(f"{where}: {problem}; {why}") from None


def dumps(result: GateResult) -> str:
    """The file's text: valid for every strict JSON parser, the same bytes for the same result."""
    return json.dumps(encode(result), allow_nan=False, separators=(",", ":")) + "\n"


def loads(text: str, where: str = "gate.json") -> GateResult:
    """Read a file's text. Raises StateError, see ``decode``."""
    return decode(parse(text, where), where)


def parse(text: str, where: str) -> Any:
    """JSON, strictly. Raises StateError with line and column."""
    if not text.strip():
        raise StateError(f"{where}: the file is empty; the run that wrote it did not get to its end")
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        place = f"{where}: line {error.lineno}, column {error.colno}"
        raise StateError(f"{place}: not JSON ({error.msg}); the file is damaged or cut off") from None
    except (ValueError, RecursionError) as error:
        raise StateError(f"{where}: not JSON that can be read ({type(error).__name__}); the file is damaged") from None


def check_version(document: Any, schema: str, major: int, where: str, expected: str) -> None:
    """Refuse what is another kind of document, or of a later major version. Raises StateError."""
    if not isinstance(document, dict) or document.get("schema") != schema:
        found = document.get("schema") if isinstance(document, dict) else None
        named = f"its schema is {found!r}" if isinstance(found, str) else "it names no schema"
        raise StateError(f"{where}: {named}, not {schema!r}; give {expected}")
    version = document.get("schema_version")
    parts = version.split(".") if isinstance(version, str) else []
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts):
        raise StateError(f"{where}: schema_version: {version!r} is no version such as {major}.0; the file is damaged")
    if int(parts[0]) != major:
        older = "a newer" if int(parts[0]) > major else "an older"
        raise StateError(
            f"{where}: schema version {version} is of {older} release, this one reads {major}.x;"
            " use the release that wrote it"
        )


def shown_header(name: str, value: str) -> str:
    """The header's value, or a mark in its place where the name says that it is a credential."""
    return HIDDEN if any(word in name.lower() for word in _SECRET_WORDS) else value


def hide_headers(document: Any) -> Any:
    """``document``, and in every request class of it the values of headers that carry credentials replaced."""
    if isinstance(document, dict):
        hidden = {key: hide_headers(item) for key, item in document.items()}
        headers = hidden.get("headers")
        if isinstance(headers, list):
            hidden["headers"] = [[name, shown_header(str(name), value)] for name, value in headers]
        return hidden
    if isinstance(document, list) and document and isinstance(document[0], (dict, list)):
        return [hide_headers(item) for item in document]
    return document


def _no_constant(token: str) -> float:
    raise ValueError(token)
