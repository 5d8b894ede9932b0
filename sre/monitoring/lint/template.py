"""Go templates as Prometheus reads them in labels and annotations: what is wrong with one, and what it uses."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

MAX_CHARACTERS = 32_768

FUNCTIONS = frozenset(
    {
        # Prometheus
        "query", "first", "label", "value", "strvalue", "args", "reReplaceAll", "safeHtml", "match", "title",
        "toUpper", "toLower", "graphLink", "tableLink", "sortByLabel", "stripPort", "stripDomain", "humanize",
        "humanize1024", "humanizeDuration", "humanizePercentage", "humanizeTimestamp", "toTime", "pathPrefix",
        "externalURL", "parseDuration",
        # Go's text/template
        "and", "or", "not", "len", "index", "slice", "print", "printf", "println", "html", "js", "urlquery", "call",
        "eq", "ne", "lt", "le", "gt", "ge",
        # Newer releases of Prometheus
        "toDuration", "now", "urlQueryEscape",
    }
)  # fmt: skip
"""Names that stand at the head of a command."""
NEWER_FUNCTIONS = {"toDuration": "3.4", "now": "3.4", "urlQueryEscape": "3.6"}
HUMAN = frozenset(
    {
        "humanize", "humanize1024", "humanizeDuration", "humanizePercentage", "humanizeTimestamp", "printf", "toTime",
        "reReplaceAll", "title", "query", "parseDuration",
    }
)  # fmt: skip
_OPENERS = frozenset({"if", "range", "with", "block", "define"})
_DOT_CHANGERS = frozenset({"range", "with", "define", "block"})
_VARIABLES = frozenset({"$labels", "$value", "$externalLabels", "$externalURL", "$"})
_LEXEME = re.compile(
    r"""(?P<space>\s+)
      |(?P<string>"(?:\\.|[^"\\\n])*"|`[^`]*`|'(?:\\.|[^'\\\n])')
      |(?P<variable>\$\w*)
      |(?P<field>(?:\.[A-Za-z_]\w*)+)
      |(?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+))
      |(?P<word>[A-Za-z_]\w*)
      |(?P<sign>:=|[|(),=.])
      |(?P<comment>/\*.*?\*/)""",
    re.VERBOSE | re.DOTALL,
)
_ACTION = re.compile(
    # Each character belongs to one alternative only: no text makes this backtrack.
    r"""\{\{(?:-(?=\s))?(?P<body>(?:"(?:\\.|[^"\\\n])*"|`[^`]*`|/\*(?:[^*]|\*(?!/))*\*/|(?!/\*)[^}"`]|\}(?!\}))*)\}\}""",
    re.DOTALL,
)
_LABELS_FIELD = "Labels"


@dataclass(frozen=True, slots=True)
class Template:
    """
    A template, read.

    Attributes:
        problems: What Prometheus would refuse, one sentence each.
        labels: Labels of the alert's series that it uses.
        uses_value: ``$value`` (or ``.Value``) occurs.
        raw_value: It is printed as it is, without a function that rounds it.
        newer: Functions that Prometheus 2.42 lacks, with the release that has them.
    """

    problems: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    uses_value: bool = False
    raw_value: bool = False
    newer: tuple[tuple[str, str], ...] = ()


EMPTY = Template()


class _Reader:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.labels: list[str] = []
        self.newer: list[tuple[str, str]] = []
        self.uses_value = self.raw_value = False
        self.blocks: list[str] = []
        self.declared: set[str] = set()

    def action(self, body: str) -> None:
        lexemes = self._lexemes(body)
        if lexemes is None:
            return
        if not lexemes:
            if not body.strip().startswith("/*"):
                self.problems.append("an action {{ }} is empty")
            return
        head = lexemes[0][1] if lexemes[0][0] == "word" else ""
        if head == "end":
            if not self.blocks:
                self.problems.append("{{ end }} closes nothing")
            else:
                self.blocks.pop()
            return
        if head == "else":
            if not self.blocks:
                self.problems.append("{{ else }} stands outside if, range or with")
            rest = lexemes[1:]
            if rest and rest[0][1] in ("if", "with"):
                rest = rest[1:]
                self._pipeline(rest)
            return
        if head in _OPENERS:
            self._pipeline(lexemes[1:] if head not in ("define", "block") else [])
            self.blocks.append(head)
            return
        if head in ("template", "break", "continue"):
            return
        self._pipeline(lexemes)
        self._value_printed(lexemes)

    def _lexemes(self, body: str) -> list[tuple[str, str]] | None:
        found: list[tuple[str, str]] = []
        index = 0
        while index < len(body):
            match = _LEXEME.match(body, index)
            if match is None:
                self.problems.append(f"{{{{{body}}}}}: {body[index : index + 10]!r} is no part of a template")
                return None
            if match.lastgroup not in ("space", "comment"):
                found.append((match.lastgroup or "", match[0]))
            index = match.end()
        return found

    def _pipeline(self, lexemes: list[tuple[str, str]]) -> None:
        depth = 0
        commands = 0
        fresh = True  # at the head of a command
        for position, (kind, text) in enumerate(lexemes):
            following = lexemes[position + 1] if position + 1 < len(lexemes) else ("", "")
            if kind == "word":
                self._word(text, fresh)
            elif kind == "variable":
                self._variable(text, following)
            elif kind == "field":
                before = lexemes[position - 1] if position else ("", "")
                self._field(text, before)
            elif text == "(":
                depth += 1
            elif text == ")":
                depth -= 1
                if depth < 0:
                    break
            if text in ("|", "(", ":=", "="):
                fresh = True
                if text == "|" and following[0] not in ("word", "variable", "field") and following[1] != "(":
                    self.problems.append("a pipe is followed by no function")
            else:
                fresh = text == "," and fresh
            commands += 1
        if depth:
            self.problems.append("parentheses are not balanced")
        if not commands:
            self.problems.append("an action has nothing to print or test")
        self._indexed_labels(lexemes)

    def _word(self, word: str, head: bool) -> None:
        if word in ("true", "false", "nil"):
            return
        if word not in FUNCTIONS:
            near = difflib.get_close_matches(word, FUNCTIONS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            if word in ("labels", "value", "externalLabels", "externalURL"):
                hint = f"; write ${word}"
            self.problems.append(f"there is no function {word}{hint}")
        elif word in NEWER_FUNCTIONS and head:
            self.newer.append((word, NEWER_FUNCTIONS[word]))

    def _variable(self, variable: str, following: tuple[str, str]) -> None:
        if following[1] in (":=", ",") and variable not in _VARIABLES:
            self.declared.add(variable)
        elif variable == "$value":
            self.uses_value = True
        elif variable == "$labels" and following[0] == "field":
            self.labels.append(following[1].split(".")[1])
        elif variable not in _VARIABLES and variable not in self.declared:
            near = difflib.get_close_matches(variable, _VARIABLES, n=1)
            self.problems.append(f"variable {variable} is not defined" + (f"; did you mean {near[0]}?" if near else ""))

    def _field(self, field: str, before: tuple[str, str]) -> None:
        parts = field.split(".")[1:]
        if before[0] == "variable" or before[1] == ")":
            return
        if any(block in _DOT_CHANGERS for block in self.blocks):
            return  # the dot is a query's result here
        if parts[0] == _LABELS_FIELD and len(parts) > 1:
            self.labels.append(parts[1])
        elif parts[0] == "Value":
            self.uses_value = True
        elif parts[0] not in (_LABELS_FIELD, "ExternalLabels", "ExternalURL", "Value"):
            self.problems.append(f"there is no {field}; a template has $labels, $value and $externalLabels")

    def _indexed_labels(self, lexemes: list[tuple[str, str]]) -> None:
        for first, second, third in zip(lexemes, lexemes[1:], lexemes[2:], strict=False):
            if first[1] == "index" and second[1] in ("$labels", ".Labels") and third[0] == "string":
                self.labels.append(third[1][1:-1])

    def _value_printed(self, lexemes: list[tuple[str, str]]) -> None:
        has_value = any(text == "$value" for kind, text in lexemes if kind == "variable") or any(
            kind == "field" and text == ".Value" and not any(block in _DOT_CHANGERS for block in self.blocks)
            for kind, text in lexemes
        )
        declares = any(text == ":=" for _, text in lexemes)
        if has_value and not declares and not any(kind == "word" and text in HUMAN for kind, text in lexemes):
            self.raw_value = True


def read(text: str) -> Template:
    """What the template uses and what is wrong with it. Never raises."""
    if "{{" not in text and "}}" not in text:
        return EMPTY
    if len(text) > MAX_CHARACTERS:
        return Template((f"has more than {MAX_CHARACTERS:,} characters",))
    reader = _Reader()
    index = 0
    while True:
        opened = text.find("{{", index)
        if opened < 0:
            break
        match = _ACTION.match(text, opened)
        if match is None:
            reader.problems.append("an action is opened with {{ and not closed")
            break
        body = match["body"]
        reader.action(body[:-1] if body.endswith((" -", "\n-", "\t-")) else body)
        index = match.end()
    if reader.blocks and not reader.problems:
        reader.problems.append(f"{{{{ {reader.blocks[-1]} }}}} is not closed with {{{{ end }}}}")
    return Template(
        tuple(dict.fromkeys(reader.problems)),
        tuple(dict.fromkeys(reader.labels)),
        reader.uses_value,
        reader.raw_value,
        tuple(dict.fromkeys(reader.newer)),
    )
