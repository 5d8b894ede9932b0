"""Text to documents: YAML and JSON trees that know where each value stands, and what each document is."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]  # C-accelerated; absent from the type stubs

import yaml

from sre.monitoring.lint.findings import NotRules

MAX_CHARACTERS = 16 * 1024 * 1024
"""A larger text is refused: 50,000 lines of rules have about three million characters."""
MAX_JSON_DEPTH = 200
MAX_DOCUMENTS = 10_000
MAX_EMBEDDED = 1_000
MAX_MERGED = 100
"""Keys, and mappings, that one merge key ``<<`` brings in."""
_STR, _INT, _FLOAT, _BOOL, _NULL = (f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null"))


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a text, counted from 0."""

    index: int
    line: int
    column: int


class TreeError(ValueError):
    """The text is neither YAML nor JSON. ``line`` and ``column`` count from 0."""

    def __init__(self, problem: str, line: int, column: int) -> None:
        self.problem, self.line, self.column = problem, line, column
        super().__init__(problem)


class Kind(enum.Enum):
    """What a document is."""

    RULES = "rule file"
    PROMETHEUS_RULE = "PrometheusRule"
    DASHBOARD = "dashboard"


@dataclass(frozen=True, slots=True)
class Source:
    """
    A text and where it stands: at the top of the file, or inside a scalar of another document (ConfigMap).

    Attributes:
        first_line, indent: Of an embedded block literal, in the file; lines count from 0.
        exact: Places inside can be told; otherwise all is reported at the scalar's begin.
        column: Of the scalar's begin, where places inside cannot be told.
    """

    text: str
    first_line: int = 0
    indent: int = 0
    exact: bool = True
    column: int = 0

    def place(self, line: int, column: int) -> tuple[int, int]:
        """Line and column in the file, from 1."""
        if not self.exact:
            return self.first_line + 1, self.column + 1
        return self.first_line + line + 1, self.indent + column + 1


@dataclass(frozen=True, slots=True)
class Document:
    """One rule set or dashboard. ``node`` is the mapping that holds ``groups`` or ``panels``."""

    kind: Kind
    node: yaml.MappingNode
    source: Source
    name: str = field(default="")


# ---- YAML nodes -----------------------------------------------------------------------------------------------------


def pairs(node: yaml.Node | None, depth: int = 0) -> list[tuple[yaml.Node, yaml.Node]]:
    """Keys and values of a mapping, those merged by ``<<`` included (its own win); none for anything else."""
    if not isinstance(node, yaml.MappingNode):
        return []
    if depth > 4 or all(key.value != "<<" for key, _ in node.value):
        return list(node.value)
    own = [pair for pair in node.value if pair[0].value != "<<"]
    names = {text_of(key) for key, _ in own}
    for key, value in node.value:
        if key.value == "<<":
            for source in items(value)[:MAX_MERGED] or [value]:
                merged = [pair for pair in pairs(source, depth + 1)[:MAX_MERGED] if text_of(pair[0]) not in names]
                own += merged
                names.update(text_of(pair[0]) for pair in merged)
    return own


def get(node: yaml.Node | None, key: str) -> yaml.Node | None:
    """Value of a mapping's key; None without one, or where ``node`` is no mapping."""
    if isinstance(node, yaml.MappingNode):
        for name, value in pairs(node):
            if name.value == key:
                return value
    return None


def text_of(node: yaml.Node | None) -> str:
    """A scalar's text; "" for anything else."""
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def items(node: yaml.Node | None) -> list[yaml.Node]:
    """A sequence's items; none for anything else."""
    return node.value if isinstance(node, yaml.SequenceNode) else []


def parse_yaml(text: str) -> list[yaml.Node]:
    """
    Every document of the text. libyaml bounds the nesting (1000); aliases stay references to one node.

    Raises:
        TreeError: It is not YAML.
    """
    loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    documents: list[yaml.Node] = []
    try:
        for node in yaml.compose_all(text, Loader=loader):
            documents.append(node)
            if len(documents) > MAX_DOCUMENTS:
                raise TreeError(f"more than {MAX_DOCUMENTS} documents", 0, 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "cannot be read"
        raise TreeError(problem, mark.line if mark else 0, mark.column if mark else 0) from error
    except yaml.reader.ReaderError as error:
        before = text[: int(error.position)]
        line = before.count("\n")
        raise TreeError(str(error.reason), line, len(before) - before.rfind("\n") - 1) from error
    except (yaml.YAMLError, UnicodeEncodeError, RecursionError) as error:
        raise TreeError("cannot be read: " + str(error).splitlines()[0], 0, 0) from error
    return documents


# ---- JSON with places -----------------------------------------------------------------------------------------------


class _JsonReader:
    """Reads one JSON text into YAML nodes, so that all that follows knows one kind of tree."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0]
        for index, character in enumerate(text):
            if character == "\n":
                self.starts.append(index + 1)
        self.line = 0

    def mark(self, index: int) -> Mark:
        """Places are asked for in rising order, nearly always."""
        while self.line + 1 < len(self.starts) and self.starts[self.line + 1] <= index:
            self.line += 1
        while self.starts[self.line] > index:
            self.line -= 1
        return Mark(index, self.line, index - self.starts[self.line])

    def fail(self, problem: str, index: int) -> TreeError:
        mark = self.mark(min(index, len(self.text)))
        return TreeError(problem, mark.line, mark.column)

    def blank(self, index: int) -> int:
        text, end = self.text, len(self.text)
        while index < end and text[index] in " \t\r\n":
            index += 1
        return index

    def scalar(self, tag: str, value: str, start: int, end: int) -> yaml.ScalarNode:
        style = '"' if tag == _STR else None
        return yaml.ScalarNode(tag, value, self.mark(start), self.mark(end), style)  # type: ignore[arg-type]

    def string(self, index: int) -> tuple[str, int]:
        if index >= len(self.text) or self.text[index] != '"':
            raise self.fail("expected a string in double quotes", index)
        try:
            value, end = scanstring(self.text, index + 1, True)
        except json.JSONDecodeError as error:
            raise self.fail(error.msg, error.pos) from error
        return value, end

    def value(self, index: int, depth: int) -> tuple[yaml.Node, int]:
        if depth > MAX_JSON_DEPTH:
            raise self.fail(f"nested deeper than {MAX_JSON_DEPTH} levels", index)
        index = self.blank(index)
        first = self.text[index : index + 1]
        if first == "{":
            return self.container(index, depth, "}")
        if first == "[":
            return self.container(index, depth, "]")
        if first == '"':
            value, end = self.string(index)
            return self.scalar(_STR, value, index, end), end
        for word, tag in (("true", _BOOL), ("false", _BOOL), ("null", _NULL)):
            if self.text.startswith(word, index):
                return self.scalar(tag, word, index, index + len(word)), index + len(word)
        end = index
        while self.text[end : end + 1] in set("+-0123456789.eE"):
            end += 1
        word = self.text[index:end]
        try:
            float(word)
        except ValueError:
            raise self.fail("expected a value", index) from None
        tag = _INT if word.lstrip("-").isdigit() else _FLOAT
        return self.scalar(tag, word, index, end), end

    def container(self, start: int, depth: int, closing: str) -> tuple[yaml.Node, int]:
        values: list[object] = []
        begins = self.mark(start)
        index = self.blank(start + 1)
        while self.text[index : index + 1] != closing:
            if values:
                if self.text[index : index + 1] != ",":
                    raise self.fail(f"expected ',' or '{closing}'", index)
                index = self.blank(index + 1)
            if closing == "}":
                name, end = self.string(index)
                key = self.scalar(_STR, name, index, end)
                index = self.blank(end)
                if self.text[index : index + 1] != ":":
                    raise self.fail("expected ':'", index)
                value, index = self.value(index + 1, depth + 1)
                values.append((key, value))
            else:
                value, index = self.value(index, depth + 1)
                values.append(value)
            index = self.blank(index)
        kind, tag = (yaml.MappingNode, "map") if closing == "}" else (yaml.SequenceNode, "seq")
        node = kind(f"tag:yaml.org,2002:{tag}", values, begins, self.mark(index + 1))  # type: ignore[arg-type]
        return node, index + 1


def parse_json(text: str) -> yaml.Node:
    """
    The text's one value, as YAML nodes.

    Raises:
        TreeError: It is not JSON.
    """
    reader = _JsonReader(text)
    node, index = reader.value(0, 0)
    index = reader.blank(index)
    if index < len(text):
        raise reader.fail("text after the end of the JSON value", index)
    return node


def parse_tree(text: str) -> list[yaml.Node]:
    """Documents of a text that is JSON or YAML. Raises TreeError."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [parse_json(text)]
        except TreeError as json_error:
            try:
                documents = parse_yaml(text)
            except TreeError:
                raise json_error from None
            # Braces that YAML takes for a mapping, such as an unfinished JSON object, are JSON with an error.
            if any(isinstance(node, yaml.MappingNode) and not node.value for node in documents):
                raise
            return documents
    return parse_yaml(text)


# ---- What a document is ---------------------------------------------------------------------------------------------


def documents(text: str, path: str) -> list[Document]:
    """
    Every rule set and dashboard of a file; Kubernetes objects of other kinds beside them are passed over.

    Raises:
        NotRules: There is none.
        TreeError: It is neither YAML nor JSON.
    """
    if len(text) > MAX_CHARACTERS:
        raise NotRules(
            path, f"has {len(text):,} characters, more than {MAX_CHARACTERS:,}; split it, or lint what it is made of"
        )
    if "\x00" in text:
        raise NotRules(path, "is binary; give a rule file (YAML), a PrometheusRule or a dashboard (JSON)")
    text = text.removeprefix("\ufeff")
    found: list[Document] = []
    for node in parse_tree(text):
        found += _classify(node, Source(text), depth=0)
        if len(found) > MAX_DOCUMENTS:
            raise NotRules(path, f"holds more than {MAX_DOCUMENTS:,} documents; split it")
    if not found:
        raise NotRules(
            path,
            "holds no rules and no dashboard: a rule file has the key groups, a PrometheusRule the kind of that name, "
            "a dashboard the key panels",
        )
    return found


def _classify(node: yaml.Node | None, source: Source, depth: int) -> Iterator[Document]:
    if not isinstance(node, yaml.MappingNode) or depth > 3:
        return
    kind = text_of(get(node, "kind"))
    name = text_of(get(get(node, "metadata"), "name")) or text_of(get(node, "title"))
    spec = get(node, "spec")
    if kind == "PrometheusRule":
        yield Document(Kind.PROMETHEUS_RULE, spec if isinstance(spec, yaml.MappingNode) else node, source, name)
    elif kind == "ConfigMap":
        data = get(node, "data")
        pairs = data.value[:MAX_EMBEDDED] if isinstance(data, yaml.MappingNode) else []
        for _, value in pairs:
            yield from _embedded(value, source, depth)
    elif kind == "GrafanaDashboard":
        json_text = get(spec, "json")
        if json_text is not None:
            yield from _embedded(json_text, source, depth)
    elif kind.endswith("List") and get(node, "items") is not None:
        for item in items(get(node, "items"))[:MAX_DOCUMENTS]:
            yield from _classify(item, source, depth + 1)
    elif isinstance(get(node, "dashboard"), yaml.MappingNode):
        yield from _classify(get(node, "dashboard"), source, depth + 1)
    elif get(node, "panels") is not None or get(node, "rows") is not None or get(node, "templating") is not None:
        yield Document(Kind.DASHBOARD, node, source, name)
    elif get(node, "groups") is not None and not kind:
        yield Document(Kind.RULES, node, source, name)


def _embedded(node: yaml.Node, source: Source, depth: int) -> Iterator[Document]:
    """Documents in a scalar's text; a text that is neither is another program's business."""
    text = text_of(node)
    if len(text) < 2 or not isinstance(node, yaml.ScalarNode):
        return
    start = node.start_mark
    line, column = source.place(start.line, start.column)
    inner = Source(text, line - 1, exact=False, column=column - 1)
    if node.style == "|" and source.exact:
        raw = source.text[start.index : node.end_mark.index].split("\n")
        body = next((one for one in raw[1:] if one.strip()), "")
        first = text.split("\n")[0]
        if first.strip() and body.strip() == first.strip():
            inner = Source(text, line, indent=len(body) - len(first) + source.indent)
    try:
        nodes = parse_tree(text)
    except TreeError:
        return
    for value in nodes:
        yield from _classify(value, inner, depth + 1)
