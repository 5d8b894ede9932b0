"""Runbooks: one for each alert, true in what can be held against the code, and safe to fill in."""

from __future__ import annotations

import re
import shutil
import subprocess
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sre.errors import ConfigError
from sre.monitoring.render import runbook_url
from sre.monitoring.runbook_check import Problem, check
from sre.monitoring.runbooks import (
    HEADINGS,
    PACKAGED,
    anchor,
    fill,
    fill_promql,
    fill_shell,
    find_runbook,
    load_runbooks,
    parse,
    pieces,
    unfit,
)
from tests.conftest import require_binary
from tests.monitoring.runbook_checks import (
    LATER,
    MACHINE_PATH,
    SETTINGS,
    alerts,
    in_words,
    labels,
    series,
    sre_commands,
    wrong_call,
    wrong_duration,
    wrong_settings,
)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "runbooks"
NAMES = sorted(page.stem for page in FOLDER.glob("*.md"))
PAGES = {name: (FOLDER / f"{name}.md").read_text("utf-8") for name in NAMES}

GOOD = """\
# NodeDiskSlow

## Meaning
Reads took long for 10 minutes. See `monitoring.retention_days` (default 15).

**False alarms:** none.

## Impact
Late starts.

## Diagnosis
1. Look:

   ```promql
   instance_device:disk_await:seconds_rate5m{instance="$instance",device="$device"}
   ```

2. On `$node`:

   ```sh
   iostat -dx "$device" 1 5 | awk '{print $NF}'
   sre status -o json | grep -F "$instance"
   ```

## Mitigation
1. `sre breaker trip ENGINE --reason "slow disk"`.

## Escalation
Storage team.
"""
LABELS = frozenset({"node", "instance", "device"})


# ---- The project's pages --------------------------------------------------------------------------------------------


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert set(NAMES) == set(alerts())
    assert len(NAMES) > 40


def test_the_committed_rules_point_at_these_pages() -> None:
    rules = [
        rule
        for file in (ROOT / "alerts").glob("*.yml")
        for group in yaml.safe_load(file.read_text("utf-8"))["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    links = {rule["alert"]: rule["annotations"]["runbook_url"].rsplit("/", 1)[-1] for rule in rules}
    assert links == {name: f"{name}.md#{anchor(parse(PAGES[name]).headings[0][0])}" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_page_is_complete_and_its_commands_use_labels_and_metrics_that_exist(name: str) -> None:
    assert check(PAGES[name], name, labels(alerts()[name]), series) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_sre_command_of_a_page_would_run(name: str) -> None:
    calls = list(sre_commands(parse(PAGES[name])))
    assert calls, "names no sre command"
    assert [f"{name}:{line}: {call}: {why}" for line, call in calls if (why := wrong_call(call))] == []


@pytest.mark.parametrize("name", NAMES)
def test_page_says_when_the_alert_fires_and_when_it_is_wrong(name: str) -> None:
    page = parse(PAGES[name])
    assert wrong_duration(page, alerts()[name]) is None
    assert wrong_settings(page.text) == []
    assert "**False alarms:**" in page.sections["Meaning"]


@pytest.mark.parametrize("name", NAMES)
def test_page_is_short_and_names_no_place_of_one_machine_and_nothing_planned(name: str) -> None:
    assert 20 <= len(PAGES[name].splitlines()) <= 75
    assert MACHINE_PATH.search(PAGES[name]) is None
    assert LATER.search(PAGES[name]) is None
    blocks = {line for code in parse(PAGES[name]).code if code.language for line in code.text.splitlines()}
    assert [line for line in PAGES[name].splitlines() if len(line) > 120 and line not in blocks] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_link_of_the_alert_leads_to_the_title_of_its_page(name: str) -> None:
    path, _, fragment = runbook_url(name, SETTINGS).partition("#")
    page = parse((ROOT / path).read_text("utf-8"))
    assert fragment == anchor(page.headings[0][0])


def test_alerts_that_a_page_sends_the_reader_to_exist() -> None:
    prefixes = re.compile(r"(?<![\w:/$-])(?:Gpu|Node|Vllm|Slo|Sre)[A-Z][A-Za-z0-9]+\b")
    stems = {re.sub(r"(?:1h|6h|1d|3d)$", "", name) for name in NAMES}
    for name, text in PAGES.items():
        for match in prefixes.finditer(text):
            assert match[0] in NAMES or match[0] in stems, f"{name}: no alert {match[0]}"


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("Slo")])
def test_page_of_an_objective_names_the_threshold_of_its_rule(name: str) -> None:
    shares = {Decimal(share) for share in re.findall(r"> (0\.\d+)", alerts()[name].expr.text)}
    assert len(shares) == 1
    meaning = " ".join(parse(PAGES[name]).sections["Meaning"].split())
    assert f"more than {(shares.pop() * 100).normalize():f} % of the" in meaning


def test_nobody_is_told_to_lower_gpu_memory_utilization_without_its_price() -> None:
    """Wrong advice that is often given against preemptions: the KV cache is what shrinks."""
    told = [text for text in PAGES.values() if "--gpu-memory-utilization" in text]
    assert len(told) > 3
    for text in told:
        assert "KV cache" in text
        assert "shrink" in text


def test_the_windows_of_one_objective_share_their_advice() -> None:
    """Sixteen files by hand, four texts: what differs is how fast the budget goes and who is called."""
    for objective in ("Availability", "Ttft", "Itl", "E2e"):
        pages = [parse(PAGES[name]) for name in NAMES if name.startswith(f"Slo{objective}Burn")]
        assert len(pages) == 4
        for section in ("Impact", "Diagnosis", "Mitigation"):
            assert len({page.sections[section] for page in pages}) == 1, f"{objective}: {section}"


def test_shell_commands_of_the_pages_are_shell() -> None:
    bash = shutil.which("bash")
    assert bash is not None
    blocks = [code.text for text in PAGES.values() for code in parse(text).code if code.language == "sh"]
    done = subprocess.run([bash, "-n"], input="\n".join(blocks), text=True, capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_prometheus_accepts_every_query_of_the_pages(tmp_path: Path) -> None:
    promtool = require_binary("promtool", "apt-get install prometheus brings it")
    queries = [
        line.strip()
        for text in PAGES.values()
        for code in parse(text).code
        if code.language == "promql"
        for line in code.text.splitlines()
        if line.strip()
    ]
    rules = [{"record": f"q:q:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "q", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_installed_package_finds_the_pages_where_the_wheel_puts_them() -> None:
    build = (ROOT / "pyproject.toml").read_text("utf-8")
    assert f'"runbooks" = "sre/monitoring/{PACKAGED}"' in build
    assert set(load_runbooks()) == set(NAMES)


# ---- Every check can fail -------------------------------------------------------------------------------------------


def test_a_good_page_has_no_problems() -> None:
    assert check(GOOD, "NodeDiskSlow", LABELS, series) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("# NodeDiskSlow", "# NodeDisk", "headings are NodeDisk, Meaning"),
        ("## Impact\n", "## Effect\n", "they must be NodeDiskSlow, Meaning, Impact, Diagnosis, Mitigation, Escalation"),
        ("## Escalation\nStorage team.\n", "", "headings are"),
        ("Late starts.", "", "section Impact is empty"),
        ("1. Look:", "- Look:", "Diagnosis is not a numbered list"),
        ("`sre breaker trip", "`breaker trip", "Mitigation names no sre command"),
        ("```sh", "```bash", "code block in 'bash'"),
        ('iostat -dx "$device"', 'iostat -dx "$disk"', "$disk is no label of this alert (device, instance, node)"),
        ('device="$device"}', 'device="$disk"}', "$disk is no label of this alert (device, instance, node)"),
        ("On `$node`", "On $node", "$node stands outside of code"),
        ("On `$node`", "On `$UUID`", "$UUID is no label of this alert"),
        ('grep -F "$instance"', "grep -F '$instance'", "$instance in single quotes: no shell replaces it"),
        ('grep -F "$instance"', 'grep -F "$(hostname)"', "command substitution or ${…}"),
        ('grep -F "$instance"', 'grep -F "${instance}"', "command substitution or ${…}"),
        ('grep -F "$instance"', 'grep -F "$instance', "quotes that do not close"),
        ("disk_await:seconds_rate5m{", "disk_await:milliseconds{", "no metric or record instance_device:disk_await:m"),
        ('{instance="$instance",dev', '{gpu="$instance",dev', "disk_await:seconds_rate5m has no label gpu (device"),
        ("Late starts.", "See `sre_guard_tocks_total`.", "no metric or record sre_guard_tocks_total"),
        ("Late starts.", "See `vllm:num_request_running`.", "no metric or record vllm:num_request_running"),
        ('{instance="$instance",device="$device"}', '{instance="$instance"', "no PromQL"),
        ('instance="$instance"', 'instance=~"$instance"', "a label within a regular expression"),
        ("Late starts.", 'See `up{instance="$instance"}`.', "a query with a label stands in a sentence"),
    ],
)  # fmt: skip
def test_a_planted_mistake_is_found(old: str, new: str, problem: str) -> None:
    assert old in GOOD
    found = check(GOOD.replace(old, new, 1), "NodeDiskSlow", LABELS, series)
    assert any(problem in one.text for one in found), found


def test_a_problem_has_its_line() -> None:
    text = GOOD.replace('iostat -dx "$device"', 'iostat -dx "$disk"')
    assert check(text, "NodeDiskSlow", LABELS, series) == [
        Problem(text.splitlines().index("   iostat -dx \"$disk\" 1 5 | awk '{print $NF}'") + 1,
                "$disk is no label of this alert (device, instance, node)")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("sre breaker trip ENGINE --reason slow", None),
        ("sre breaker", None),
        ("sre breaker force ENGINE open --for 4h --reason x", None),
        ("sre breaker break ENGINE", "no command 'break'"),
        ("sre breakers status", "no command 'breakers'"),
        ("sre breaker trip", "Missing argument 'TARGET'."),
        ("sre breaker trip ENGINE --because x", "No such option '--because'."),
        ("sre breaker force ENGINE shut --reason x", "Invalid value for '{open|disabled|auto}'"),
        ("sre guard pause --for soon --reason x", "Invalid value for '--for'"),
    ],
)
def test_a_command_that_would_not_run_is_found(call: str, why: str | None) -> None:
    found = wrong_call(call)
    assert found is None if why is None else (found or "").startswith(why), found


def test_a_setting_that_does_not_exist_or_another_default_is_found() -> None:
    assert wrong_settings("`monitoring.thresholds.gpu_temperature` and `guard.tick_seconds` (default 2)") == [
        "no setting monitoring.thresholds.gpu_temperature",
        "guard.tick_seconds has the default 1.0, not 2",
    ]
    assert wrong_settings("`stack.engines[].args`, `guard.tick_seconds`, default 1") == []


def test_durations_are_said_as_people_say_them() -> None:
    assert [in_words(text) for text in ("0s", "30s", "1m", "15m", "1h", "3h")] == [
        "at once", "30 seconds", "1 minute", "15 minutes", "1 hour", "3 hours",
    ]  # fmt: skip


# ---- Reading --------------------------------------------------------------------------------------------------------


@given(st.text(alphabet="ab$`\n# \"'~1.", max_size=200))
def test_pieces_are_the_page(text: str) -> None:
    assert "".join(piece.text for piece in pieces(text)) == text
    assert fill(text, {}) == text
    parse(text)
    check(text, "A", (), lambda name: None)


def test_reading_finds_sections_code_and_labels() -> None:
    page = parse(GOOD)
    assert page.alert == "NodeDiskSlow"
    assert tuple(page.sections) == HEADINGS
    assert page.labels == ("instance", "device", "node")
    assert [(code.language, code.section) for code in page.code if code.language] == [
        ("promql", "Diagnosis"), ("sh", "Diagnosis"),
    ]  # fmt: skip


def test_a_heading_within_a_code_block_is_none() -> None:
    assert parse("# A\n\n```sh\n# comment\n```\n").headings == (("A", 1),)


def test_a_page_is_found_whatever_the_case_and_the_nearest_is_named() -> None:
    pages = load_runbooks()
    assert find_runbook(pages, "sreguarddown").alert == "SreGuardDown"
    with pytest.raises(ConfigError, match="no runbook for 'SreGuardDwn'; did you mean SreGuardDown"):
        find_runbook(pages, "SreGuardDwn")
    with pytest.raises(ConfigError, match="see sre runbook list"):
        find_runbook(pages, "zzz")


def test_a_folder_without_pages_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no runbooks"):
        load_runbooks(tmp_path)


# ---- Filling in: a label's value is data ----------------------------------------------------------------------------

VALUES = st.text(alphabet=st.characters(codec="utf-8"), max_size=40).filter(lambda text: unfit(text) is None)


def words(command: str) -> list[str]:
    """The words that a real shell makes of the command line."""
    done = subprocess.run(
        ["sh", "-c", f"printf '%s\\0' {command}"], capture_output=True, text=True, timeout=30, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[:-1]


HOSTILE = [
    "$(touch /tmp/x)", "; rm -rf ~", "a b", "it's", 'say "hi"', "$HOME", "*", "~", "a\\", "#x", "!!", "&", "|cat", "<x",
    "=ls", "", "a'\"'b", "[::1]:8000", "{a,b}", "%", "\\$x", "'; id; '", "ü", "><", "$node",
]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_stays_one_word_of_a_real_shell(value: str) -> None:
    given = {"node": value}
    assert words(fill_shell('"$node" $node "http://$node/m" http://$node/m "a $node b"', given)) == [
        value, value, f"http://{value}/m", f"http://{value}/m", f"a {value} b",
    ]  # fmt: skip


def test_any_value_stays_one_word_of_a_real_shell() -> None:
    """Many values through one shell: the property, without a process per example."""
    commands: list[str] = []
    expected: list[str] = []

    @given(VALUES)
    def collect(value: str) -> None:
        commands.append(fill_shell('"x$node" $node', {"node": value}))
        expected.extend((f"x{value}", value))

    collect()
    assert words(" ".join(commands)) == expected


def test_within_single_quotes_nothing_is_filled_in() -> None:
    assert fill_shell("awk '{print $node}' $node", {"node": "a"}) == "awk '{print $node}' a"
    assert fill_shell('echo \\$node "\\"$node"', {"node": "a b"}) == 'echo \\$node "\\""\'a b\'""'


def test_a_label_that_is_not_given_stays_and_names_are_matched_whole() -> None:
    assert fill_shell('ssh "$node" $nodes', {"node": "a"}) == "ssh a $nodes"


def test_in_promql_a_value_stays_inside_its_string() -> None:
    query = fill_promql('up{node="$node"}', {"node": 'a"} or vector(1) or up{x="\\'})
    assert query == 'up{node="a\\"} or vector(1) or up{x=\\"\\\\"}'
    import promql_parser

    parsed = promql_parser.parse(query)
    assert parsed.matchers.matchers[0].value == 'a"} or vector(1) or up{x="\\'


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("-oProxyCommand=id", "begins with '-'"),
        ("a\nrm -rf ~", "cannot be seen"),
        ("\x1b]0;owned\x07", "cannot be seen"),
        ("a\u202eb", "cannot be seen"),
        ("a\u200bb", "cannot be seen"),
        ("a`id`", "backtick"),
        ("\udcff", "cannot be seen"),
    ],
)
def test_a_value_that_cannot_be_made_harmless_is_refused(value: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        fill(GOOD, {"node": value})
    assert str(refused.value).isprintable()


def test_filling_a_page_changes_commands_and_nothing_else() -> None:
    filled = fill(GOOD, {"node": "gpu-1", "instance": "gpu-1:8000", "device": "dm 0"})
    assert "2. On `gpu-1`:" in filled
    assert 'disk_await:seconds_rate5m{instance="gpu-1:8000",device="dm 0"}' in filled
    assert "iostat -dx 'dm 0' 1 5 | awk '{print $NF}'" in filled
    assert "grep -F gpu-1:8000" in filled
    assert parse(filled).labels == ()
