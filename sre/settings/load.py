"""Read sre.yaml: bounded, typed, every problem at once. Whatever the bytes, only ConfigError leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_origin

from pydantic import BaseModel, ValidationError

from sre.errors import ConfigError
from sre.settings import checks
from sre.settings.document import MAX_BYTES, Document, Location, parse_document, path_text
from sre.settings.explain import annotation_at, explain, may_be_null
from sre.settings.models import Root

DEFAULT_PATH = Path("sre.yaml")


def load_settings(path: Path | None) -> Root:
    """
    Settings from ``path``; None: from ./sre.yaml if it exists, else every default. Relative paths in it begin at its
    folder, also where ``path`` is a link to elsewhere.

    Raises:
        ConfigError: With one sentence per problem; nothing is started with a file that has one.
    """
    if path is None:
        if not _exists(DEFAULT_PATH):
            return Root()
        path = DEFAULT_PATH
    return parse_settings(_read(path), str(path), path.absolute().parent)


def parse_settings(raw: bytes, name: str = "sre.yaml", folder: Path | None = None) -> Root:
    """
    Settings from the bytes of a file called ``name`` in messages. Empty, or only comments: every default.

    Args:
        folder: Absolute folder at which its relative paths begin; None: they stay as they are written.

    Raises:
        ConfigError: Whatever the bytes are, no other exception leaves.
    """
    document = parse_document(raw, name)
    data = {} if document.data is None else document.data
    if not isinstance(data, dict):
        sections = ", ".join(Root.model_fields)
        raise ConfigError([f"{name}: is not a group of sections; write {sections} as top-level keys"])
    wrong_booleans: list[Location] = []
    data = _prepared(data, (), document, wrong_booleans)
    problems = [
        _with_line(document, name, where, "true/false is not a number; write a number") for where in wrong_booleans
    ]
    try:
        root = Root.model_validate(data, context=None if folder is None else {"folder": str(folder)})
    except ValidationError as error:
        found = [problem for problem in error.errors(include_url=False) if not _is_echo(problem)]
        found.sort(key=lambda problem: document.line_of(problem["loc"]) or 0)
        problems += [explain(problem, Root, document, name) for problem in found]
        raise ConfigError(problems) from None
    problems += [_with_line(document, name, where, sentence) for where, sentence in checks.errors(root)]
    if problems:
        raise ConfigError(problems)
    return root


def setting_warnings(root: Root) -> tuple[str, ...]:
    """What works but is likely not meant: ``stack.gateway.host: opens the gateway …``."""
    return tuple(f"{path_text(where)}: {sentence}" for where, sentence in checks.warnings(root))


def _is_echo(problem: Any) -> bool:
    """pydantic calls a list too short when its entries were refused: those are reported already."""
    return problem["type"] == "too_short" and bool(problem["input"])


def _with_line(document: Document, name: str, where: Location, sentence: str) -> str:
    line = document.line_of(where)
    return f"{name}: {path_text(where)}: {sentence}{f' (line {line})' if line else ''}"


def _prepared(value: Any, location: Location, document: Document, wrong_booleans: list[Location]) -> Any:
    """
    ``value`` for pydantic: a section whose keys are all commented out is left to its defaults, also as null unless that
    means something there, and booleans that stand for numbers are noted (pydantic would read true as 1).
    """
    if isinstance(value, dict):
        out = {}
        for key, child in value.items():
            here = (*location, key)
            if child is None and _is_section(here) and not (here in document.nulls and may_be_null(Root, here)):
                continue
            out[key] = _prepared(child, here, document, wrong_booleans)
        return out
    if isinstance(value, list):
        return [_prepared(child, (*location, index), document, wrong_booleans) for index, child in enumerate(value)]
    if isinstance(value, bool) and annotation_at(Root, location) in (int, float):
        wrong_booleans.append(location)
    return value


def _is_section(location: Location) -> bool:
    """Whether keys or entries are expected there."""
    expected = annotation_at(Root, location)
    if isinstance(expected, type) and issubclass(expected, BaseModel):
        return True
    return get_origin(expected) in (tuple, dict) and len(location) > 1


def _exists(path: Path) -> bool:
    """True also when looking is forbidden: reading then says so."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError([f"{path}: no such file; write one with: sre config init {path}"]) from None
    except IsADirectoryError:
        raise ConfigError([f"{path}: is a folder; name the file in it"]) from None
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}; check its permissions"]) from None
    except ValueError:
        raise ConfigError(["--config: not a possible file name; write a path"]) from None
