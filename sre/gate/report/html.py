"""
A gate run as one page that needs nothing else: no script, no font, no picture from anywhere.

The page follows the reader's light or dark scheme. Whatever a server, a file or a person named is text, never markup.
"""

from __future__ import annotations

import html as escaping
from collections.abc import Callable, Mapping, Sequence

from sre.gate.report import layout, plots, tables
from sre.gate.result import GateResult
from sre.printable import one_line

Draw = Callable[[GateResult], Mapping[str, Sequence[tuple[str, str]]]]
"""Section name → (caption, SVG) of its pictures; ImportError where what draws is not installed."""

LONGEST_CELL = 1_000
MOST_ROWS = 2_000
LIMIT_BYTES = 1_500_000
"""Pictures that would make the page larger are left out, visibly."""

NO_PLOTS = (
    "This page has no plots: matplotlib is not installed where it was made. Install it from a checkout of sre: "
    "pip install -e '.[gate]'."
)

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1d2430; --dim: #5d6675; --line: #d7dce3; --head: #f3f5f8;
  --pass: #1f7a3a; --fail: #c22f2f; --inconclusive: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --page: #14181f; --ink: #e4e8ee; --dim: #9aa4b2; --line: #343b47;
  --head: #1d232c; --pass: #58c377; --fail: #ff7b72; --inconclusive: #e3b341; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 92rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif;
  overflow-wrap: break-word; }
header { border-left: .5rem solid var(--mark); padding: .25rem 0 .25rem 1rem; }
h1 { margin: 0; font-size: 1.7rem; color: var(--mark); }
h2 { margin: 2.2rem 0 .6rem; font-size: 1.2rem; border-bottom: 1px solid var(--line); padding-bottom: .25rem; }
p { margin: .4rem 0; max-width: 65rem; } .lead { font-size: 1.08rem; } .dim, figcaption { color: var(--dim); }
.banner { border: 1px solid var(--inconclusive); color: var(--inconclusive); padding: .4rem .8rem; }
.scroll { overflow-x: auto; margin: .6rem 0 1rem; }
table { border-collapse: collapse; font-size: .84rem; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .5rem; text-align: left; vertical-align: top; }
td { max-width: 26rem; overflow-wrap: break-word; } td.n { overflow-wrap: normal; }
th { background: var(--head); font-weight: 600; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.pass td:first-child { color: var(--pass); font-weight: 700; }
tr.fail td:first-child { color: var(--fail); font-weight: 700; }
tr.inconclusive td:first-child { color: var(--inconclusive); font-weight: 700; }
figure { margin: .8rem 0 1.4rem; } figure svg { width: 100%; max-width: 62rem; height: auto; color: var(--ink); }
figcaption { font-size: .86rem; }
@media print { body { max-width: none; } .scroll { overflow: visible; } }
""".strip()


def html(result: GateResult, draw: Draw = plots.draw) -> str:
    """The page; the same bytes for the same result (and the same release of matplotlib)."""
    pictures: Mapping[str, Sequence[tuple[str, str]]] = {}
    notes = []
    try:
        pictures = draw(result)
    except ImportError:
        notes.append(NO_PLOTS)
    size = sum(len(svg) for group in pictures.values() for _, svg in group)
    if size > LIMIT_BYTES // 2:
        pictures = {}
        notes.append(f"The plots are left out: they would take {size:,} bytes. The figures are in the tables.")
    mark = result.verdict.verdict.value
    lead, *rest = tables.opening(result)
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{_text(tables.headline(result))} – {_text(result.model)}</title>",
        f"<style>\n{STYLE}\n</style>",
        "</head>",
        "<body>",
        f'<header style="--mark: var(--{mark})">',
        f"<h1>{_text(tables.headline(result))}</h1>",
        f'<p class="lead">{_text(lead)}</p>',
        *(_paragraph(sentence) for sentence in rest),
        "</header>",
        *(f'<p class="dim">{_text(note)}</p>' for note in notes),
    ]
    for section in tables.sections(result):
        parts += _section(section, pictures.get(section.name, ()))
    parts += ["</body>", "</html>", ""]
    return "\n".join(parts)


def _section(section: layout.Section, pictures: Sequence[tuple[str, str]]) -> list[str]:
    parts = ["<section>", f"<h2>{_text(section.title)}</h2>"]
    parts += [f"<p>{_text(sentence)}</p>" for sentence in section.text]
    for table in section.tables:
        parts += _table(table)
    for caption, svg in pictures:
        parts += ["<figure>", svg, f"<figcaption>{_text(caption)}</figcaption>", "</figure>"]
    return [*parts, "</section>"]


def _table(table: layout.Table) -> list[str]:
    classes = ["n" if index in table.numeric else "" for index in range(len(table.heading))]
    parts = ['<div class="scroll"><table>', f"<thead>{_row('th', table.heading, classes)}</thead>", "<tbody>"]
    for index, row in enumerate(table.rows[:MOST_ROWS]):
        parts.append(_row("td", row, classes, table.marks[index] if table.marks else ""))
    parts += ["</tbody>", "</table></div>"]
    if len(table.rows) > MOST_ROWS:
        parts.append(f"<p>{len(table.rows) - MOST_ROWS:,} further rows are in gate.json.</p>")
    return parts


def _row(tag: str, cells: Sequence[str], classes: Sequence[str], mark: str = "") -> str:
    inner = "".join(
        f'<{tag} class="{kind}">{_text(cell)}</{tag}>' if kind else f"<{tag}>{_text(cell)}</{tag}>"
        for cell, kind in zip(cells, classes, strict=True)
    )
    return f'<tr class="{mark}">{inner}</tr>' if mark else f"<tr>{inner}</tr>"


def _paragraph(sentence: str) -> str:
    return f'<p class="{"banner" if sentence.startswith("Interrupted:") else "dim"}">{_text(sentence)}</p>'


def _text(text: str) -> str:
    text = one_line(text)
    return escaping.escape(text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…")
