"""
The user's own forms: text with ``${placeholders}``, and nothing else that is carried out.

``$$`` is a dollar sign. A line whose placeholders are all empty is left out. In HTML every value is escaped.
"""

from __future__ import annotations

import difflib
import html as html_module
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from sre.notify.gsm7 import SAFE
from sre.notify.links import is_web_address
from sre.notify.markup import html_problems
from sre.notify.view import View, cut

Form = Literal["sms", "title", "text", "html"]
FORMS: tuple[Form, ...] = get_args(Form)

PLACEHOLDERS: Mapping[str, str] = {
    "severity": "page, ticket or info",
    "event": "OPEN, ESCALATED, RESOLVED …",
    "scope": "what is affected",
    "reason": "named reason, e.g. hang",
    "rule": "the rule or alert, else the reason",
    "value": "the measured value",
    "id": "incident id",
    "summary": "one sentence",
    "title": "the subject",
    "at": "when the message was written",
    "since": "since when it is so",
    "seen": "what was measured",
    "done": "what was done automatically",
    "next": "what to do next",
    "runbook_url": "address of the runbook, or the command that shows it",
    "dashboard_url": "address of the dashboard",
    "timeline": "one line for each thing that happened",
    "details": "one line for each further fact",
    "late": "the beginning that was never told",
}
"""Names and what they stand for; every one may be empty but severity, event, scope, rule, id, summary and at."""

MOST_CHARACTERS = 64 * 1024
_TOKEN = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<name>[^{}$\n]*)\}|(?P<odd>))")

SHRINKS = ("timeline", "details", "late", "next", "done", "seen", "summary", "value", "scope", "rule", "event")
"""In this order values give way where an SMS is too long; severity and id never do."""


@dataclass(frozen=True, slots=True)
class Template:
    """A form of the user's that was found good. ``lines`` hold texts and placeholder names in turn, text first."""

    form: Form
    lines: tuple[tuple[str, ...], ...]

    def render(self, values: Mapping[str, str]) -> str:
        """Return the form with ``values``; never longer than the template and its values."""
        shown = {name: html_module.escape(value) for name, value in values.items()} if self.form == "html" else values
        if self.form == "html":
            shown = {name: value.replace("\n", "<br>\n") for name, value in shown.items()}
            for name in ("runbook_url", "dashboard_url"):
                # In href="…" only a web address may stand; a command that shows the runbook is no link.
                if values.get(name) and not is_web_address(values[name]):
                    shown = {**shown, f"href:{name}": "#"}
        done = []
        for line in self.lines:
            names = [name.removeprefix("href:") for name in line[1::2]]
            if names and not any(values.get(name) for name in names):
                continue
            done.append(
                "".join(
                    part if index % 2 == 0 else shown.get(part, shown.get(part.removeprefix("href:"), ""))
                    for index, part in enumerate(line)
                )
            )
        return "\n".join(done)

    def render_within(self, values: Mapping[str, str], longest: int, spell: Callable[[str], str]) -> str:
        """Return the form on one line, spelt by ``spell``, at most ``longest`` characters: values give way in order."""
        left = {name: spell(value) for name, value in values.items()}
        line = spell(self.render(left))
        for name in SHRINKS:
            if len(line) <= longest:
                break
            if left.get(name):
                left[name] = cut(left[name], max(len(left[name]) - (len(line) - longest), 0))
                line = spell(self.render(left))
        return cut(line, longest)


def values_of(seen: View, title: str) -> Mapping[str, str]:
    """Return the value of every placeholder."""
    return {
        "severity": seen.severity,
        "event": seen.event,
        "scope": seen.scope,
        "reason": seen.reason,
        "rule": seen.rule,
        "value": seen.value,
        "id": seen.id,
        "summary": seen.summary,
        "title": title,
        "at": seen.at,
        "since": seen.since,
        "seen": seen.seen,
        "done": seen.done,
        "next": seen.next,
        "runbook_url": seen.runbook_url,
        "dashboard_url": seen.dashboard_url,
        "timeline": "\n".join(seen.timeline),
        "details": "\n".join(f"{name}: {value}" for name, value in seen.details),
        "late": f"{seen.told_late} {seen.late_summary}".strip(),
    }


def parse(text: str, form: Form, where: str, *, ucs2: bool = False) -> tuple[Template | None, Sequence[str]]:
    """
    Return the template that ``text`` is, and what is wrong with it, one sentence each; with a problem it is None.

    Args:
        where: The file, for the sentences.
        ucs2: An SMS may hold any character: the channel's language needs UCS-2.
    """
    if len(text) > MOST_CHARACTERS:
        return None, [f"{where}: longer than {MOST_CHARACTERS} characters; a message is never that long"]
    if not text.strip():
        return None, [f"{where}: empty; write the text, with placeholders such as ${{summary}}"]
    problems: list[str] = []
    lines = []
    for number, raw in enumerate(text.rstrip("\n").split("\n"), start=1):
        lines.append(_parse_line(raw.rstrip("\r"), form, f"{where}:{number}", problems, ucs2=ucs2))
    names = [part for line in lines for part in line[1::2]]
    if form == "sms" and "id" not in names:
        problems.append(f"{where}: has no ${{id}}; without it nobody knows which incident it is, or that it came twice")
    if form in ("sms", "title") and sum(bool(line[0].strip() or line[1:]) for line in lines) > 1:
        problems.append(f"{where}: has more than one line; write a single one")
    if form == "html":
        found, lines = html_problems(lines, where)
        problems += found
    return (None, problems) if problems else (Template(form, tuple(lines)), ())


def _parse_line(raw: str, form: Form, where: str, problems: list[str], *, ucs2: bool) -> tuple[str, ...]:
    parts = [""]
    position = 0
    for match in _TOKEN.finditer(raw):
        parts[-1] += raw[position : match.start()]
        position = match.end()
        place = f"{where}:{match.start() + 1}"
        name = match["name"]
        if match["escaped"]:
            parts[-1] += "$"
        elif name is None:
            problems.append(f"{place}: a lone dollar sign; write $$ for one, or ${{name}} for a placeholder")
        elif name not in PLACEHOLDERS:
            problems.append(f"{place}: no placeholder ${{{name[:40]}}}; {_nearest(name)}")
        else:
            parts += [name, ""]
    parts[-1] += raw[position:]
    if form == "sms":
        odd = next((c for part in parts[::2] for c in part if (ord(c) > 0xFFFF if ucs2 else c not in SAFE)), None)
        if odd is not None:
            remedy = "it is no character of UCS-2" if ucs2 else "it would make the SMS one of 70 characters; use ASCII"
            column = raw.find(odd) + 1
            problems.append(f"{where}:{column}: {odd!r} cannot stand in this SMS: {remedy}, or set language: zh")
    return tuple(parts)


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, PLACEHOLDERS, n=1)
    return f"did you mean ${{{near[0]}}}?" if near else f"known: {', '.join(PLACEHOLDERS)}"
