"""The user's own forms: what is refused at load, and that nothing in a message acts through them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.actions import facts
from sre.actions.types import Message
from sre.adapters.notifiers.templates import load_templates
from sre.cli.main import run
from sre.errors import ConfigError
from sre.notify.forms import SMS_LIMITS, Style, render
from sre.notify.gsm7 import SAFE, SINGLE_SMS, UCS2_SMS
from sre.notify.languages import LANGUAGES
from sre.notify.renderer import Renderer
from sre.notify.samples import ALERT, HANG, sms_problem
from sre.notify.templates import PLACEHOLDERS, Form, Template, parse
from sre.settings.notify import ChannelSettings, Language, NotifySettings, TemplateSettings
from tests.notify.test_forms import messages


def good(text: str, form: Form, *, ucs2: bool = False) -> Template:
    template, problems = parse(text, form, "t", ucs2=ucs2)
    assert problems == ()
    assert template is not None
    return template


def test_a_template_is_filled() -> None:
    style = Style(templates={"sms": good("ACME ${severity} ${scope} ${rule} ${value} ${id}", "sms")})
    assert render(HANG, "sms", style=style).body == (
        "ACME page engine vllm-0 (pool qwen-7b) hang 3.1 s inc-20270115-080000-0001"
    )
    style = Style(
        templates={
            "title": good("${event} $$ ${scope}", "title"),
            "text": good("${summary}\nDo: ${next}\nRunbook: ${runbook_url}\nDashboard: ${dashboard_url}\n", "text"),
            "html": good('<p title="${id}">${summary}</p>\n<a href="${runbook_url}">runbook</a>', "html"),
        }
    )
    rendered = render(HANG, "email", style=style)
    assert rendered.title == "OPEN $ engine vllm-0 (pool qwen-7b)"
    # There is no dashboard: its line is left out.
    assert rendered.body == (
        "vllm-0 tripped: hang\nDo: sre breaker explain vllm-0\nRunbook: sre runbook show VllmEngineHung"
    )
    # The runbook is a command here, which is no link.
    assert rendered.html == '<p title="inc-20270115-080000-0001">vllm-0 tripped: hang</p>\n<a href="#">runbook</a>'


@pytest.mark.parametrize(
    ("form", "text", "problem"),
    [
        ("text", "a\n b ${sumary} c", "t:2:4: no placeholder ${sumary}; did you mean ${summary}?"),
        ("text", "${}", "t:1:1: no placeholder ${}; known: severity,"),
        ("text", "${summary.__class__}", "t:1:1: no placeholder ${summary.__class__}; known: "),
        ("text", "costs 5$", "t:1:8: a lone dollar sign; write $$ for one"),
        ("text", "$summary", "t:1:1: a lone dollar sign"),
        ("text", "  \n", "t: empty; write the text"),
        ("text", "x" * 70_000, "t: longer than 65536 characters"),
        ("title", "a\nb", "t: has more than one line"),
        ("sms", "${severity} ${scope}", "t: has no ${id}"),
        ("sms", "${id} → ${scope}", "t:1:7: '→' cannot stand in this SMS: it would make the SMS one of 70"),
        ("sms", "${id}\n${scope}", "t: has more than one line"),
        ("html", "${summary}", "t: holds no HTML element"),
        ("html", "<p>\n<script>${summary}</script>", "t:2:1: <script> is not for an e-mail"),
        ("html", "<style>p {}</style><p>${id}</p>", "t:1:1: <style> is not for an e-mail"),
        ("html", "<b class=${id}>x</b>", "t:1:1: class: write the value in quotes"),
        ("html", "<b ${id}>x</b>", "t:1:1: a placeholder must stand in quotes"),
        ("html", '<b style="${id}">x</b>', "t:1:1: style: no placeholder may stand here"),
        ("html", '<a href="${summary}">x</a>', "t:1:1: href: only ${runbook_url} or ${dashboard_url} alone"),
        ("html", '<a href="https://x/${runbook_url}">x</a>', "t:1:1: href: only ${runbook_url}"),
        ("html", '<a href="javascript:alert(1)">x</a>', "t:1:1: href would carry something out"),
        ("html", "<b onclick=\"x('${id}')\">x</b>", "t:1:1: onclick would carry something out"),
        ("html", "<p>x</p><!-- ${id} -->", "t:1:9: a placeholder in a comment"),
        ("html", "<p>x</p><${id}>x</${id}>", "t:1:15: a placeholder in a comment"),
        ("html", "<p>x</p><b class='${id}", "t: ends inside a tag; close it with >"),
        ("html", "<p>x</p></p ${id}>", "t: ${id} stands where no text is"),
        ("html", "<p>\ue000${id}</p>", "t: holds characters of the private use area"),
    ],
)
def test_a_bad_template_is_refused_with_place_and_remedy(form: Form, text: str, problem: str) -> None:
    template, problems = parse(text, form, "t")
    assert template is None
    assert any(sentence.startswith(problem) for sentence in problems), problems


def test_all_problems_are_told_at_once() -> None:
    _, problems = parse("${scop} $ ${sumary}", "text", "t")
    assert len(problems) == 3


def test_chinese_needs_a_channel_in_chinese() -> None:
    text = "【SRE】${id} ${rule}"
    _, problems = parse(text, "sms", "t")
    assert "or set language: zh" in problems[0]
    assert good(text, "sms", ucs2=True)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_template_that_overflows_an_sms_is_refused_with_the_sample_that_shows_it(language: Language) -> None:
    longest = SMS_LIMITS[language].whole
    assert sms_problem(good("${id} ${rule}", "sms"), language, longest, "t") is None
    problem = sms_problem(good("${id} ${rule} ${summary} ${details} ${at}", "sms"), language, longest, "t")
    assert problem is not None
    assert problem.startswith(f"t: an SMS in language {language} holds {longest} characters, with the sample 'hang'")


@given(messages, st.sampled_from(LANGUAGES), st.booleans())
def test_an_sms_of_the_users_own_never_overflows_and_keeps_its_id(
    message: Message, language: Language, real: bool
) -> None:
    message = replace(message, incident_id=ALERT.incident_id if real else message.incident_id)
    text = "ACME ${scope} ${summary} ${details} ${id}" if language == "en" else "${scope}${summary}${rule} ${id}"
    body = render(message, "sms", None, Style(language, templates={"sms": good(text, "sms", ucs2=True)})).body
    assert body.strip()
    if language == "en":
        assert len(body) <= SINGLE_SMS
        assert set(body) <= SAFE
    else:
        assert len(body) <= UCS2_SMS
    if real:
        assert ALERT.incident_id in body


@given(messages)
def test_a_value_never_becomes_markup_or_a_placeholder(message: Message) -> None:
    html = good(
        '<p>${summary}</p>\n<ul title="${scope}"><li>${timeline}</li></ul>\n<a href="${runbook_url}">r</a>', "html"
    )
    shown = render(message, "email", None, Style(templates={"html": html})).html
    assert set(re.findall(r"<(/?\w+)", shown)) <= {"p", "/p", "ul", "/ul", "li", "/li", "a", "/a", "br"}
    text = render(
        replace(message, summary="${id}$$"), "email", None, Style(templates={"text": good("${summary}", "text")})
    )
    assert text.body == "${id}$$"


def test_a_link_of_an_alert_must_be_a_web_address() -> None:
    html = good('<a href="${runbook_url}">r</a>', "html")
    bad = replace(HANG, facts=((facts.RUNBOOK, "javascript:alert(1)"),))
    assert render(bad, "email", None, Style(templates={"html": html})).html == '<a href="#">r</a>'
    fine = replace(HANG, facts=((facts.RUNBOOK, "https://x.example.org/?a=1&b=2"),))
    assert (
        render(fine, "email", None, Style(templates={"html": html})).html
        == '<a href="https://x.example.org/?a=1&amp;b=2">r</a>'
    )


@given(st.text(alphabet="<>&\"'/=!- abp${}id\n", max_size=60))
def test_any_text_is_a_template_or_a_sentence(text: str) -> None:
    for form in ("sms", "title", "text", "html"):
        template, problems = parse(text, form, "t")  # type: ignore[arg-type]
        assert (template is None) == bool(problems)
        assert all("\n" not in sentence for sentence in problems)
        if template is not None:
            template.render(dict.fromkeys(PLACEHOLDERS, "x"))


def settings(folder: Path, **forms: str) -> NotifySettings:
    for form, text in forms.items():
        (folder / form).write_text(text)
    return NotifySettings(
        channels=(
            ChannelSettings(name="mail", kind="email", url="env:X"),
            ChannelSettings(
                name="sms", kind="sms", url="env:X", language="zh", template=TemplateSettings(sms=str(folder / "own"))
            ),
        ),
        templates=TemplateSettings(**{form: str(folder / form) for form in forms if form != "own"}),
    )


def test_files_are_loaded_per_channel(tmp_path: Path) -> None:
    found = settings(tmp_path, title="T ${id}", own="测试 ${id}", sms="S ${id}")
    render = Renderer(found, load_templates(found))
    mail, sms = found.channels
    assert render(HANG, mail).title == "T inc-20270115-080000-0001"
    assert render(HANG, sms).body == "测试 inc-20270115-080000-0001"


def test_every_problem_of_every_file_is_told_with_setting_file_and_line(tmp_path: Path) -> None:
    found = settings(tmp_path, title="${id} ${scop}", own="${rule}", html="<p>${x}</p>")
    (tmp_path / "html").write_bytes(b"\xff")
    with pytest.raises(ConfigError) as caught:
        load_templates(found)
    assert [problem.replace(f"{tmp_path}/", "") for problem in caught.value.problems] == [
        "notify.templates.title: title:1:7: no placeholder ${scop}; did you mean ${scope}?",
        "notify.templates.html: html: not UTF-8 text; check path and permissions",
        "notify.channels[1].template.sms: own: has no ${id}; without it nobody knows which incident it is, or that it"
        " came twice",
    ]


def test_a_bad_template_stops_every_command_that_reads_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "sre.yaml"
    config.write_text(f"notify: {{templates: {{text: {tmp_path / 'gone'}}}}}\n")
    for command in (["config", "validate"], ["notify", "check"], ["status"]):
        assert run(["--config", str(config), *command]) == 2
        assert "gone: No such file or directory; check path and permissions" in capsys.readouterr().err


def test_every_placeholder_has_a_value() -> None:
    shown = render(HANG, "email").parameters
    assert set(shown) == set(PLACEHOLDERS)
