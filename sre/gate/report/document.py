"""
``gate.json``: a gate run's whole result, as a versioned document.

Its JSON Schema is ``gate.schema.json`` beside this file. Within a major version fields are only added: readers ignore
what they do not know. Header values that look like credentials are not written.
"""

from __future__ import annotations

import json
from typing import Any

from sre.errors import StateError
from sre.gate.report import codec
from sre.gate.result import GateResult
from sre.redaction import HIDDEN

SCHEMA = "sre/gate-result"
MAJOR, MINOR = 1, 0
VERSION = f"{MAJOR}.{MINOR}"

_SECRET_WORDS = ("authorization", "cookie", "key", "token", "secret", "password")


def encode(result: GateResult) -> dict[str, Any]:
    """The document, made of what JSON has."""
    return {"schema": SCHEMA, "schema_version": VERSION, **hide_headers(codec.encode(result))}


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
        raise StateError(f"{where}: {problem}; the file is damaged, or another program wrote it") from None


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


def hide_headers(document: Any) -> Any:
    """``document``, and in every request class of it the values of headers that carry credentials replaced."""
    if isinstance(document, dict):
        hidden = {key: hide_headers(item) for key, item in document.items()}
        headers = hidden.get("headers")
        if isinstance(headers, list):
            hidden["headers"] = [
                [name, HIDDEN if any(word in str(name).lower() for word in _SECRET_WORDS) else value]
                for name, value in headers
            ]
        return hidden
    if isinstance(document, list) and document and isinstance(document[0], (dict, list)):
        return [hide_headers(item) for item in document]
    return document


def _no_constant(token: str) -> float:
    raise ValueError(token)
