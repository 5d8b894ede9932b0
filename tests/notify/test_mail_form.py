"""The HTML form: well formed, and nothing in it that an alert could have put there."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from sre.actions import facts
from sre.actions.types import Message
from sre.notify.forms import Style, render
from sre.notify.languages import LANGUAGES
from sre.notify.links import Links, is_web_address
from sre.notify.samples import HANG
from sre.settings.notify import Language
from tests.notify.test_forms import messages

MAY_HOLD = {
    "html": {"head", "body"}, "head": {"meta", "title"}, "meta": set(), "title": set(),
    "body": {"h1", "h2", "p", "table", "ul"}, "h1": set(), "h2": set(), "p": {"strong", "br"}, "strong": set(),
    "br": set(), "table": {"tbody"}, "tbody": {"tr"}, "tr": {"th", "td"}, "th": set(), "td": {"a"}, "a": set(),
    "ul": {"li"}, "li": set(),
}  # fmt: skip
"""Element → elements it may hold here; all of it is HTML's own content model."""
ATTRIBUTES = {"lang", "charset", "style", "scope", "href"}


class Strict(HTMLParser):
    """Refuses what a browser would have to guess."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self.open:
            assert tag in MAY_HOLD[self.open[-1]], f"<{tag}> in <{self.open[-1]}>"
        else:
            assert tag == "html"
        assert {name for name, _ in attrs} <= ATTRIBUTES
        self.links += [value or "" for name, value in attrs if name == "href"]
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("meta", "br")
        assert tag in MAY_HOLD[self.open[-1]]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            assert self.open
            assert self.open[-1] not in ("html", "head", "body", "table", "tbody", "tr", "ul")
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError("a comment")


def check(document: str) -> Strict:
    assert document.startswith("<!DOCTYPE html>\n")
    ElementTree.fromstring(document)  # every element closed, every attribute quoted, every sign escaped
    reader = Strict()
    reader.feed(document)
    reader.close()
    assert reader.open == []
    assert all(is_web_address(link) for link in reader.links)
    return reader


@given(messages, st.none() | messages, st.sampled_from(LANGUAGES))
def test_whatever_an_alert_says_the_mail_is_valid_html(
    message: Message, opened: Message | None, language: Language
) -> None:
    check(render(message, "email", opened, Style(language)).html)


def test_a_hostile_alert_is_shown_and_does_nothing() -> None:
    hostile = Message(
        incident_id='x" onmouseover="alert(1)',
        event="open",
        severity="page",
        scope="<script>alert(1)</script>",
        reason="</title><img src=x onerror=alert(1)>",
        summary="<b>bold</b> & &lt;",
        at_wall=1e9,
        facts=(
            (facts.RUNBOOK, "javascript:alert(1)"),
            (facts.DASHBOARD, 'https://x/"><script>'),
            ("<td>", "</td></tr></table>"),
        ),
    )
    reader = check(render(hostile, "email").html)
    assert reader.links == []
    text = "".join(reader.text)
    assert "<script>alert(1)</script>" in text
    assert "<b>bold</b> & &lt;" in text
    assert "javascript:alert(1)" in text


def test_the_mail_says_all_a_person_needs() -> None:
    style = Style("en", Links("https://runbooks.example.org", "https://grafana.example.org"))
    reader = check(render(HANG, "email", style=style).html)
    text = "\n".join(reader.text)
    for part in (
        "vllm-0 tripped: hang",
        "2027-01-15 07:59:56 UTC",
        "new requests are refused, running streams go on",
        "sre breaker explain vllm-0",
        "no engine step for 3.1 s, 4 requests in flight",
        "timeline",
        "inc-20270115-080000-0001",
    ):
        assert part in text
    assert reader.links == [
        "https://runbooks.example.org/VllmEngineHung.md#vllmenginehung",
        "https://grafana.example.org/d/sre-breaker",
    ]
