"""The JSON Schema of ``gate.json``, made from the dataclasses; its committed copy is ``gate.schema.json``."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import json
import types
import typing
from importlib import resources
from typing import Any, Union

from sre.gate.report import codec, document
from sre.gate.result import GateResult

FILE = "gate.schema.json"


def published() -> str:
    """The committed file's text."""
    return resources.files("sre.gate.report").joinpath(FILE).read_text(encoding="utf-8")


def render() -> str:
    """The file's text, from the dataclasses as they are now."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def schema() -> dict[str, Any]:
    """
    JSON Schema, draft 2020-12.

    What a reader needs is required; what has a default is not, so that a document of an earlier minor version is valid.
    Unknown keys are allowed: a later minor version adds some.
    """
    parts: dict[str, Any] = {"number": {"anyOf": [{"type": "number"}, {"enum": list(codec.ODD_NUMBERS)}]}}
    whole = _record(GateResult, parts)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{document.SCHEMA.replace('/', ':')}:{document.MAJOR}",
        "title": "Result of a gate run (gate.json)",
        "description": f"{whole['description']} Seconds and ratios (0..1) throughout; failures are infinitely slow, "
        'which is written "inf".',
        "type": "object",
        "properties": {
            "schema": {"const": document.SCHEMA},
            "schema_version": {"type": "string", "pattern": rf"^{document.MAJOR}\.[0-9]+$"},
            **whole["properties"],
        },
        "required": ["schema", "schema_version", *whole["required"]],
        "$defs": dict(sorted(parts.items())),
    }


def _of(hint: Any, parts: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not types.NoneType)
        return {"anyOf": [_of(inner, parts), {"type": "null"}]}
    if origin is tuple and arguments[-1] is not Ellipsis:
        items = [_of(argument, parts) for argument in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin in (tuple, collections.abc.Sequence):
        return {"type": "array", "items": _of(arguments[0], parts)}
    if origin is collections.abc.Mapping:
        return {"type": "object", "additionalProperties": _of(arguments[1], parts)}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        parts.setdefault(hint.__name__, {"description": _first_line(hint), "enum": [member.value for member in hint]})
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if dataclasses.is_dataclass(hint):
        kind = typing.cast(type, hint)
        if kind.__name__ not in parts:
            parts[kind.__name__] = {}  # taken, in case it holds its like
            parts[kind.__name__] = _record(kind, parts)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if hint is float:
        return {"$ref": "#/$defs/number"}
    return {"type": {int: "integer", str: "string", bool: "boolean"}[hint]}


def _record(kind: type, parts: dict[str, Any]) -> dict[str, Any]:
    known = codec.hints(kind)
    fields = dataclasses.fields(kind)
    return {
        "description": _first_line(kind),
        "type": "object",
        "properties": {field.name: _of(known[field.name], parts) for field in fields},
        "required": [
            field.name
            for field in fields
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        ],
    }


def _first_line(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").split("\n", 1)[0]
