"""YAML text to plain data, safely: bounded, no surprises, every value's line remembered."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from sre.errors import ConfigError

MAX_BYTES = 256 * 1024
"""More is no configuration written by people; the parser takes about 3 s for this much."""
MAX_NODES = 20_000
"""Values in the document, aliases expanded: bounds "billion laughs"."""
MAX_DEPTH = 32
MAX_DIGITS = 30

Location = tuple[str | int, ...]

_CORE_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """
    YAML with the scalar rules of YAML 1.2's core schema.

    PyYAML's own (1.1) read ``no`` as false, ``8:30`` as 510 and ``2026-01-01`` as a date; here those are text.
    """


_Loader.yaml_implicit_resolvers = {}
for _kind, _pattern in (
    ("null", r"(?:~|null|Null|NULL|)$"),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)$"),
    ("int", r"(?:[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+)$"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"),
    ("float", r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"),
    ("merge", r"<<$"),
):  # fmt: skip
    _Loader.add_implicit_resolver(_CORE_TAG + _kind, re.compile(_pattern), None)


@dataclass(slots=True)
class Document:
    """Plain data of one YAML document, and the line (1-based) on which each location begins."""

    data: Any
    lines: dict[Location, int] = field(default_factory=dict)
    nulls: frozenset[Location] = frozenset()
    """Where null (or ~) is written out. Elsewhere None is nothing written: a key whose value is commented out."""

    def line_of(self, location: Location) -> int | None:
        """Line of the value at ``location``, or of the nearest thing around it."""
        for length in range(len(location), 0, -1):
            line = self.lines.get(location[:length])
            if line is not None:
                return line
        return None


def shown(text: object, limit: int = 60) -> str:
    """``text`` fit for one line of a terminal: quoted, control characters and surrogates escaped, shortened."""
    raw = str(text)
    if len(raw) > limit:
        raw = raw[: limit - 1] + "…"
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in raw)
    return f'"{safe}"'


def parse_document(raw: bytes, name: str) -> Document:
    """
    Parse one YAML document (UTF-8; JSON is YAML, too). An empty document has data None.

    Args:
        raw: The file's bytes.
        name: How messages call the file.

    Raises:
        ConfigError: Whatever ``raw`` is, no other exception leaves. No message repeats a value of the file.
    """
    if len(raw) > MAX_BYTES:
        raise ConfigError([f"{name}: larger than {MAX_BYTES // 1024} KiB; this is not a configuration file of sre"])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{name}: not UTF-8 text; save the file as UTF-8 (line {line})"]) from None
    try:
        _refuse_deep_nesting(text, name)
        root = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError([_syntax_problem(error, text, name)]) from None
    except (ValueError, OverflowError):  # \U escapes beyond Unicode
        raise ConfigError([f"{name}: an escape in a quoted text names no character; check \\x, \\u and \\U"]) from None
    walker = _Walker(name)
    data = None if root is None else walker.value(root, ())
    if walker.problems:
        raise ConfigError(walker.problems)
    return Document(data, walker.lines, frozenset(walker.nulls))


def _refuse_deep_nesting(text: str, name: str) -> None:
    """The composer is recursive, the event stream is not: look at the depth before composing."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                line = event.start_mark.line + 1 if event.start_mark else 1
                raise ConfigError([f"{name}: nested deeper than {MAX_DEPTH} levels; sre.yaml never is (line {line})"])
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _syntax_problem(error: yaml.YAMLError, text: str, name: str) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        return f"{name}: a character that YAML does not allow (U+{_code(error.character):04X}); remove it (line {line})"
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
    problem = str(getattr(error, "problem", None) or "not YAML").removeprefix("but ")
    if not isinstance(error, yaml.parser.ParserError):
        # Names of aliases, anchors and tags come from the file, where they may be a misplaced secret: not repeated.
        problem = re.sub(r"(['\"])(?!\\?.\1).+\1", "…", problem)
    hints = {
        "cannot start any token": "; quote the text, or indent with spaces, not tabs",
        "mapping values are not allowed": "; is a line indented too far, or a text with a colon not quoted?",
        "expected <block end>": "; is a line indented differently from its neighbours?",
        "could not find expected": '; write "key: value", with a space after the colon',
        "found undefined alias": "; quote a text that begins with *",
        "found another document": "; remove the line ---",
        "',' or ": "; close the bracket",
        "unexpected end of stream": "; close the quote",
    }
    hint = next((h for fragment, h in hints.items() if fragment in problem), "; check quotes, colons and indentation")
    return f"{name}: not valid YAML: {problem}{hint}{where}"


def _code(character: object) -> int:
    return ord(character) if isinstance(character, str) else int(character) if isinstance(character, int) else 0


class _Walker:
    """Nodes to data. Collects problems instead of stopping at the first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[str] = []
        self.lines: dict[Location, int] = {}
        self.nulls: set[Location] = set()
        self._nodes = 0

    def value(self, node: yaml.Node, location: Location) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise ConfigError([f"{self.name}: more than {MAX_NODES} values, aliases counted; this is no sre.yaml"])
        if len(location) > MAX_DEPTH:
            raise ConfigError([f"{self.name}: nested deeper than {MAX_DEPTH} levels; does an alias contain itself?"])
        self.lines.setdefault(location, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            self._tag_is(node, "map")
            return self._mapping(node, location)
        if isinstance(node, yaml.SequenceNode):
            self._tag_is(node, "seq")
            return [self.value(child, (*location, index)) for index, child in enumerate(node.value)]
        found = self._scalar(node)
        if found is None and node.value:
            self.nulls.add(location)
        return found

    def _mapping(self, node: yaml.MappingNode, location: Location) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(f"{self.name}: a key must be a single word (line {line})")
                continue
            key = str(key_node.value)
            if key_node.tag == _CORE_TAG + "merge":
                self.problems.append(f'{self.name}: merge keys ("<<") are not supported; repeat the keys (line {line})')
                continue
            if key in out:
                first = self.lines[(*location, key)]
                where = path_text((*location, key))
                self.problems.append(
                    f"{self.name}: {where}: written twice; remove one of them (lines {first} and {line})"
                )
                continue
            self.lines[(*location, key)] = line
            out[key] = self.value(value_node, (*location, key))
        return out

    def _scalar(self, node: yaml.Node) -> Any:
        text = str(node.value)
        kind = node.tag.removeprefix(_CORE_TAG)
        if kind == "str" or kind == "merge":
            return text
        if kind == "null":
            return None
        if kind == "bool" and text.lower() in {"true", "false"}:
            return text.lower() == "true"
        try:
            if kind == "int" and len(text) <= MAX_DIGITS:
                return int(text, 0) if text[:2] in {"0x", "0o"} else int(text)
            if kind == "float":
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            pass
        if kind == "int" and text.lstrip("+-").isdigit():
            return text  # absurdly long: the field's own check refuses it as text
        line = node.start_mark.line + 1
        self.problems.append(f"{self.name}: YAML tags (!…) are not supported; write the plain value (line {line})")
        return None

    def _tag_is(self, node: yaml.Node, kind: str) -> None:
        if node.tag != _CORE_TAG + kind:
            line = node.start_mark.line + 1
            self.problems.append(f"{self.name}: YAML tags (!…) are not supported; write the plain value (line {line})")


def path_text(location: Location) -> str:
    """``("stack", "engines", 0, "kind")`` as ``stack.engines[0].kind``; odd keys are quoted."""
    out = ""
    for part in location:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            word = part if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", part) else shown(part)
            out += f".{word}" if out else word
    return out
