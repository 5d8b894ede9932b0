"""The HTML form of an e-mail: no scripts, no pictures, no style sheet; everything said by others is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sre.notify.links import is_web_address
from sre.notify.view import View

_CELL = 'style="text-align:left;vertical-align:top;padding:2px 12px 2px 0"'


def html_form(seen: View, title: str) -> str:
    """Return a whole HTML document that says what ``seen`` says."""
    words = seen.words
    parts = [
        "<!DOCTYPE html>",
        f'<html lang="{words.language}"><head><meta charset="utf-8"/><title>{escape(title)}</title></head>',
        '<body style="font-family:sans-serif;font-size:14px;color:#222222">',
        f'<h1 style="font-size:18px">{escape(title)}</h1>',
        f"<p><strong>{escape(seen.summary)}</strong></p>",
    ]
    if seen.told_late:
        parts.append(f"<p>{escape(seen.told_late)}<br/>{escape(seen.late_summary)}</p>")
    parts += _table(
        (
            (words.since, seen.since),
            (words.done, seen.done),
            (words.next, seen.next),
            (words.runbook, seen.runbook_url),
            (words.dashboard, seen.dashboard_url),
        )
    )
    parts += _section(
        words.details,
        _table(
            (
                (words.incident, seen.id),
                (words.event, seen.event),
                (words.severity, seen.severity),
                (words.scope, seen.scope),
                (words.reason, seen.reason),
                (words.rule, "" if seen.rule == seen.reason else seen.rule),
                (words.value, seen.value),
                (words.at, seen.at),
                *seen.details,
            )
        ),
    )
    lines = [f"<li>{escape(line)}</li>" for line in seen.timeline]
    parts += _section(words.timeline, ["<ul>", *lines, "</ul>"] if lines else [])
    parts.append(f'<p style="color:#666666">{escape(seen.more + " " if seen.more else "")}{escape(words.signed)}</p>')
    return "\n".join([*parts, "</body></html>", ""])


def _section(name: str, content: Sequence[str]) -> list[str]:
    return [f'<h2 style="font-size:15px">{escape(name)}</h2>', *content] if content else []


def _table(pairs: Sequence[tuple[str, str]]) -> list[str]:
    rows = [
        f'<tr><th {_CELL} scope="row">{escape(name)}</th><td {_CELL}>{_linked(value)}</td></tr>'
        for name, value in pairs
        if value
    ]
    return ["<table>", "<tbody>", *rows, "</tbody>", "</table>"] if rows else []


def _linked(value: str) -> str:
    shown = escape(value)
    return f'<a href="{shown}">{shown}</a>' if is_web_address(value) else shown
