"""pydantic's findings as sentences an operator can act on."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from sre.settings.base import SECRET_REFERENCE
from sre.settings.document import Document, Location, path_text, shown

SECRET_FIELDS = frozenset({"api_key", "url", "env", "args", "token", "basic_password", "ack_secret"})
"""Keys under which a wrongly written plain secret may stand: their values are never repeated in a message."""

_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}

_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "path": "a path",
}


def unwrapped(annotation: Any) -> Any:
    """The type inside Annotated and Optional."""
    while True:
        origin = get_origin(annotation)
        if origin is typing.Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, types.UnionType):
            inner = [a for a in get_args(annotation) if a is not type(None)]
            if len(inner) != 1:
                return annotation
            annotation = inner[0]
        else:
            return annotation


def annotation_at(model: type[BaseModel], location: Sequence[str | int]) -> Any:
    """Type expected at ``location`` under ``model``, inside Optional; None where there is no such place."""
    return unwrapped(_declared_at(model, location))


def may_be_null(model: type[BaseModel], location: Sequence[str | int]) -> bool:
    """Whether null is a value at ``location`` under ``model``."""
    return type(None) in get_args(_declared_at(model, location))


def _declared_at(model: type[BaseModel], location: Sequence[str | int]) -> Any:
    here: Any = model
    for part in location:
        here = unwrapped(here)
        if isinstance(here, type) and issubclass(here, BaseModel):
            field = here.model_fields.get(str(part))
            if field is None:
                return None
            here = field.annotation
        elif get_origin(here) in (tuple, list):
            here = get_args(here)[0]
        elif get_origin(here) is dict:
            here = get_args(here)[1]
        else:
            return None
    return here


def known_keys(model: type[BaseModel], location: Sequence[str | int]) -> tuple[str, ...]:
    """Keys that may be written at ``location``, in the order of the schema."""
    here = annotation_at(model, location)
    if isinstance(here, type) and issubclass(here, BaseModel):
        return tuple(here.model_fields)
    return ()


def nearest(word: str, choices: Sequence[str]) -> str | None:
    """The choice an operator most likely meant, or None."""
    simple = {c.replace("_", "").lower(): c for c in choices}
    plain = word.replace("-", "").replace("_", "").replace(" ", "").lower()
    if plain in simple:
        return simple[plain]
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.55)
    return near[0] if near else None


def explain(error: Mapping[str, Any], model: type[BaseModel], document: Document, name: str) -> str:
    """
    One sentence for one of pydantic's errors: ``sre.yaml: stack.engines[0].kind: "vlm" is not one of sim, vllm,
    external; did you mean vllm? (line 4)``. Values under secret keys are left out.
    """
    location: Location = tuple(error["loc"])
    line = document.line_of(location)
    where = path_text(location)
    text = _sentence(error, model, location)
    return f"{name}: {where + ': ' if where else ''}{text}{f' (line {line})' if line else ''}"


def _sentence(error: Mapping[str, Any], model: type[BaseModel], location: Location) -> str:
    kind = str(error["type"])
    context: Mapping[str, Any] = error.get("ctx") or {}
    value = _value(error.get("input"), location)
    if kind == "extra_forbidden":
        return _unknown_key(model, location)
    if kind == "missing":
        return "is missing; add it"
    if kind == "literal_error":
        return _not_one_of(error, context, value, location)
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        limit = context[key]
        return f"{value} is out of range; write {words} {_number(limit)}{_ratio_hint(error.get('input'), kind, limit)}"
    if kind == "string_pattern_mismatch":
        return f"{value} is not a name; use a-z, 0-9 and inner hyphens, at most 40 characters"
    if kind == "value_error":
        return str(context.get("error") or error["msg"]).replace("\n", " ")
    if kind == "finite_number":
        return f"{value} is not a finite number; write a plain number"
    if kind == "too_short":
        return f"is empty; write at least {context.get('min_length', 1)} entry"
    if kind == "int_from_float":
        return f"{value} is not a whole number; write one without a fraction"
    if kind in {"tuple_type", "list_type"}:
        return 'is not a list; write one entry per line, each beginning with "- "'
    if kind in {"model_type", "model_attributes_type", "dict_type"}:
        return 'is not a group of keys; write "key: value" lines below it'
    family = re.match(r"[a-z]+", kind)
    wanted = _TYPES.get(family[0] if family else "")
    if wanted == "text" and isinstance(error.get("input"), int | float):
        return f"{value} is not text; put it in quotes"
    if wanted:
        return f"{value} is not {wanted}; write {wanted}"
    return f"{str(error['msg']).splitlines()[0]}; correct it"


def _unknown_key(model: type[BaseModel], location: Location) -> str:
    keys = known_keys(model, location[:-1])
    near = nearest(str(location[-1]), keys)
    return f"unknown key; did you mean {near}?" if near else f"unknown key; known here: {', '.join(keys)}"


def _not_one_of(error: Mapping[str, Any], context: Mapping[str, Any], value: str, location: Location) -> str:
    choices = re.findall(r"'([^']*)'", str(context.get("expected", "")))
    near = nearest(str(error.get("input")), choices) if isinstance(error.get("input"), str) else None
    return f"{value} is not one of {', '.join(choices)}{f'; did you mean {near}?' if near else '; write one of them'}"


def _value(value: Any, location: Location) -> str:
    if any(part in SECRET_FIELDS for part in location):
        return "this value"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, str):
        secret_like = "://" in value or SECRET_REFERENCE.match(value)
        return "this value" if secret_like else shown(value)
    return "a list" if isinstance(value, list) else "a group of keys"


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)


def _ratio_hint(value: Any, kind: str, limit: Any) -> str:
    if kind in {"less_than", "less_than_equal"} and limit == 1 and isinstance(value, int | float) and 1 < value <= 100:
        return f": a ratio, {value / 100:g} for {value:g} %"
    return ""
