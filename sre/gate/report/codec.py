"""
Frozen dataclasses as JSON, and back, led by their type hints.

Numbers that JSON has no token for are the strings ``"inf"``, ``"-inf"`` and ``"nan"``: every strict parser can read
the document. What a reader does not know it ignores; a field that is missing takes its default, so that fields may be
added without breaking either side.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, Union

from sre.gate import (
    bottleneck,
    fingerprint,
    knee,
    latency_budget,
    long_tail,
    result,
    self_checks,
    stages,
    summary,
    verdict,
)

T = TypeVar("T")

ODD_NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
"""How they are written."""

_ROOMS = (bottleneck, fingerprint, knee, latency_budget, long_tail, result, self_checks, stages, summary, verdict)
_NAMES: dict[str, Any] = {
    name: value for room in _ROOMS for name, value in vars(room).items() if isinstance(value, type)
}
"""``result`` imports the types of its fields for type checkers only; they are resolved here."""


class Unreadable(Exception):
    """``path`` in the document, and what is wrong there."""

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{path}: {problem}" if path else problem)


def encode(value: Any) -> Any:
    """Return ``value`` made of what JSON has. TypeError for a value that no field of ours should hold."""
    if value is None or isinstance(value, (str, bool)):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else _odd(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, int):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (Sequence, frozenset)):
        return [encode(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no place in a document")


def decode(kind: type[T], document: Any, path: str = "") -> T:
    """
    Return the ``kind`` that ``document`` describes.

    Raises:
        Unreadable: with the path of the first thing that does not fit.
    """
    value: T = reader(typing.cast(Any, kind))(document, path)
    return value


@functools.cache
def hints(kind: type) -> dict[str, Any]:
    """Field name → resolved type."""
    return typing.get_type_hints(kind, localns=_NAMES)


Reader = Callable[[Any, str], Any]


@functools.cache
def reader(hint: Any) -> Reader:
    """The function that reads one type hint; built once, since a document holds many thousands of numbers."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _optional(reader(_only([argument for argument in arguments if argument is not types.NoneType])))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _fixed([reader(argument) for argument in arguments])
    if origin is tuple or (isinstance(origin, type) and issubclass(origin, Sequence)):
        return _sequence(reader(arguments[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(reader(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _choice(hint)
    if dataclasses.is_dataclass(hint):
        return _record(typing.cast(type, hint))
    return _SCALARS[hint]


def _only(found: list[Any]) -> Any:
    if len(found) != 1:
        raise TypeError(f"a document's field has one type, or that and None; not {found}")
    return found[0]


def _odd(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _float(value: Any, path: str) -> float:
    if isinstance(value, str) and value in ODD_NUMBERS:
        return ODD_NUMBERS[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Unreadable(path, f"{_shown(value)} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Unreadable(path, f'{_shown(value)} is too large; infinity is written "inf"')
    return number


def _int(value: Any, path: str) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unreadable(path, f"{_shown(value)} is not a whole number")
    return value


def _str(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise Unreadable(path, f"{_shown(value)} is not text")
    return value


def _bool(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise Unreadable(path, f"{_shown(value)} is neither true nor false")
    return value


_SCALARS: dict[Any, Reader] = {float: _float, int: _int, str: _str, bool: _bool}


def _optional(read: Reader) -> Reader:
    return lambda value, path: None if value is None else read(value, path)


def _list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise Unreadable(path, f"{_shown(value)} is not a list")
    return value


def _sequence(read: Reader) -> Reader:
    def items(value: Any, path: str) -> tuple[Any, ...]:
        return tuple([read(item, f"{path}[{index}]") for index, item in enumerate(_list(value, path))])

    return items


def _fixed(reads: list[Reader]) -> Reader:
    def items(value: Any, path: str) -> tuple[Any, ...]:
        found = _list(value, path)
        if len(found) != len(reads):
            raise Unreadable(path, f"{len(found)} values instead of {len(reads)}")
        return tuple(
            [read(item, f"{path}[{index}]") for index, (read, item) in enumerate(zip(reads, found, strict=True))]
        )

    return items


def _object(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Unreadable(path, f"{_shown(value)} is not an object")
    return value


def _mapping(read: Reader) -> Reader:
    return lambda value, path: {key: read(item, f"{path}.{key}") for key, item in _object(value, path).items()}


def _choice(kind: type[enum.Enum]) -> Reader:
    known = {member.value: member for member in kind}

    def member(value: Any, path: str) -> enum.Enum:
        found = known.get(value) if isinstance(value, (str, int)) else None
        if found is None:
            raise Unreadable(path, f"{_shown(value)} is none of {', '.join(map(str, known))}")
        return found

    return member


def _record(kind: type) -> Reader:
    known = hints(kind)
    fields = [field for field in dataclasses.fields(kind) if field.init]
    required = {
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    def record(value: Any, path: str) -> Any:
        found = _object(value, path)
        given: dict[str, Any] = {}
        for field in fields:
            place = f"{path}.{field.name}" if path else field.name
            if field.name in found:
                given[field.name] = reader(known[field.name])(found[field.name], place)
            elif field.name in required:
                raise Unreadable(place, "is missing")
        return kind(**given)

    return record
