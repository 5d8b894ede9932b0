"""Where a value may stand in the user's HTML: in text and in quoted attributes, never where it could act."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser

Line = tuple[str, ...]
"""Texts and placeholder names in turn, text first."""

ACTIVE_ELEMENTS = frozenset({"script", "style", "iframe", "object", "embed", "svg", "math", "template", "base", "link"})
LINK_ATTRIBUTES = frozenset({"href", "src", "action", "background", "cite", "poster", "formaction"})
ADDRESSES = frozenset({"runbook_url", "dashboard_url"})

_OPEN, _CLOSE = "\ue000", "\ue001"
"""Stand around a placeholder's index while the markup is read; private characters, refused in the text itself."""


class _Reader(HTMLParser):
    def __init__(self, names: Sequence[str], where: str) -> None:
        super().__init__(convert_charrefs=True)
        self.names, self.where = names, where
        self.problems: list[str] = []
        self.in_text: set[int] = set()
        self.in_links: set[int] = set()
        self.elements = 0

    def _say(self, sentence: str) -> None:
        line, column = self.getpos()
        self.problems.append(f"{self.where}:{line}:{column + 1}: {sentence}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements += 1
        if tag in ACTIVE_ELEMENTS:
            self._say(f"<{tag}> is not for an e-mail; remove it")
        if _held(tag):
            self._say("a placeholder cannot name an element; write it in the text")
        raw = self.get_starttag_text() or ""
        for name, value in attrs:
            if _held(name):
                self._say(f'a placeholder must stand in quotes: {name.split(_OPEN)[0] or "attribute"}="${{…}}"')
            elif name.startswith("on") or (name in LINK_ATTRIBUTES and _scheme_acts(value or "")):
                self._say(f"{name} would carry something out; remove it")
            elif value is not None and _held(value):
                self._attribute(name, value, raw)

    handle_startendtag = handle_starttag

    def _attribute(self, name: str, value: str, raw: str) -> None:
        if f'"{value}"' not in raw and f"'{value}'" not in raw:
            self._say(f"{name}: write the value in quotes, a placeholder's value may hold spaces")
        if name in ("style", "srcdoc"):
            self._say(f"{name}: no placeholder may stand here; write it in the text")
        elif name in LINK_ATTRIBUTES:
            held = _held(value)
            if value != f"{_OPEN}{held[0]}{_CLOSE}" or self.names[held[0]] not in ADDRESSES:
                self._say(f"{name}: only ${{runbook_url}} or ${{dashboard_url}} alone may stand here")
            self.in_links.update(held)
        else:
            self.in_text.update(_held(value))

    def handle_data(self, data: str) -> None:
        self.in_text.update(_held(data))

    def handle_comment(self, data: str) -> None:
        if _held(data):
            self._say("a placeholder in a comment; remove it")

    def handle_decl(self, decl: str) -> None:
        if _held(decl):
            self._say("a placeholder in a declaration; remove it")


def html_problems(lines: Sequence[Line], where: str) -> tuple[list[str], list[Line]]:
    """
    Return what is wrong with the HTML that ``lines`` make, and the lines with the placeholders that stand for a link's
    address named ``href:NAME``.
    """
    if any(_OPEN in text or _CLOSE in text for line in lines for text in line[::2]):
        return [f"{where}: holds characters of the private use area; remove them"], list(lines)
    names = [name for line in lines for name in line[1::2]]
    counter = iter(range(len(names)))
    marked = "\n".join(
        "".join(part if index % 2 == 0 else f"{_OPEN}{next(counter)}{_CLOSE}" for index, part in enumerate(line))
        for line in lines
    )
    reader = _Reader(names, where)
    reader.feed(marked)
    if "<" in reader.rawdata:
        reader.problems.append(f"{where}: ends inside a tag; close it with >, or write &lt; for the sign")
    reader.close()
    problems = reader.problems
    if not problems and reader.elements == 0:
        problems.append(f"{where}: holds no HTML element; write <p>…</p>, or use the form text")
    lost = set(range(len(names))) - reader.in_text - reader.in_links
    if not problems and lost:
        problems.append(f"{where}: ${{{names[min(lost)]}}} stands where no text is; is a tag not closed?")
    done, position = [], 0
    for line in lines:
        parts = list(line)
        for index in range(1, len(parts), 2):
            if position in reader.in_links:
                parts[index] = f"href:{parts[index]}"
            position += 1
        done.append(tuple(parts))
    return problems, done


def _held(text: str) -> list[int]:
    """Return the indices of the placeholders in ``text``."""
    return [int(piece.partition(_CLOSE)[0]) for piece in text.split(_OPEN)[1:]]


def _scheme_acts(value: str) -> bool:
    scheme = "".join(c for c in value.partition(":")[0] if c.isalnum()).lower() if ":" in value else ""
    return scheme in {"javascript", "vbscript", "data"}
