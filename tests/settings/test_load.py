"""Loading: where settings come from, and that no text whatever raises anything but ConfigError."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sre.errors import ConfigError
from sre.settings.document import MAX_BYTES
from sre.settings.load import load_settings, parse_settings, setting_warnings
from sre.settings.models import Root


def problems_of(raw: bytes) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_settings(raw)
    return list(caught.value.problems)


@pytest.mark.parametrize("raw", [b"", b"# only a comment\n", b"---\n", b"stack:\n", b"\xef\xbb\xbfguard:\n", b"{}"])
def test_empty_file_and_empty_sections_mean_the_defaults(raw: bytes) -> None:
    assert parse_settings(raw) == Root()


@pytest.mark.parametrize(
    ("raw", "limited"),
    [
        (b"notify: {storm: null}", False),
        (b"notify:\n  storm: ~\n", False),
        (b'{"notify": {"storm": null}}', False),
        (b"notify:\n  storm:\n    # max_messages: 5\n", True),  # its keys are commented out
        (b"notify: null", True),  # null means nothing there
    ],
)
def test_null_is_taken_where_it_means_something(raw: bytes, limited: bool) -> None:
    storm = parse_settings(raw).notify.storm
    assert storm == (Root().notify.storm if limited else None)


def test_without_a_file_the_defaults_apply_and_with_one_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings(None) == Root()
    Path("sre.yaml").write_text("stack: {name: other}")
    assert load_settings(None).stack.name == "other"


def test_json_is_yaml_too() -> None:
    assert parse_settings(b'{"stack": {"name": "j", "gateway": {"port": 81}}}').stack.gateway.port == 81


def test_words_that_yaml_1_1_takes_for_booleans_and_dates_stay_text() -> None:
    root = parse_settings(b"stack:\n  engines:\n  - {name: no, model: 2026-01-01, served_model_name: 12:30}\n")
    engine = root.stack.engines[0]
    assert (engine.name, engine.model, engine.served_model_name) == ("no", "2026-01-01", "12:30")


def test_anchors_and_aliases_work() -> None:
    root = parse_settings(b"stack:\n  engines:\n  - {name: a, sim: &s {seed: 7}}\n  - {name: b, sim: *s}\n")
    assert [e.sim.seed for e in root.stack.engines] == [7, 7]


def test_all_problems_are_reported_at_once_in_the_order_of_the_file() -> None:
    found = problems_of(
        b"guard: {mode: x}\nstack:\n  nam: a\n  gateway: {port: 0, retries: 9}\nnotify: {max_attempts: 0}\n"
    )
    assert [p.rsplit("(line ", 1)[1] for p in found] == ["1)", "3)", "4)", "4)", "5)"]


def test_missing_file_says_how_to_write_one(tmp_path: Path) -> None:
    path = tmp_path / "sre.yaml"
    with pytest.raises(ConfigError, match=f"^{path}: no such file; write one with: sre config init {path}$"):
        load_settings(path)


def test_folder_unreadable_file_and_impossible_names_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder; name the file in it"):
        load_settings(tmp_path)
    with pytest.raises(ConfigError, match="not a possible file name"):
        load_settings(Path("a\0b"))
    with pytest.raises(ConfigError, match="cannot be read: File name too long"):
        load_settings(tmp_path / ("x" * 300))
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    with pytest.raises(ConfigError, match="cannot be read: Too many levels"):
        load_settings(loop)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_names_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "sre.yaml"
    path.write_text("{}")
    path.chmod(0)
    with pytest.raises(ConfigError, match="Permission denied; check its permissions"):
        load_settings(path)


def test_a_file_of_endless_size_is_read_only_up_to_the_bound() -> None:
    with pytest.raises(ConfigError, match="larger than"):
        load_settings(Path("/dev/zero"))
    assert "larger than" in problems_of(b"#" * (MAX_BYTES + 1))[0]


def test_warnings_name_what_is_likely_not_meant() -> None:
    root = parse_settings(
        b"stack:\n  gateway: {host: 0.0.0.0}\n  engines: [{name: a, gpus: [3], args: [--x]}]\n"
        b"guard: {metrics_host: example.org, rules: []}\n"
    )
    assert setting_warnings(root) == (
        "stack.gateway.host: opens the gateway to the network; keep 127.0.0.1 unless that is meant",
        "guard.metrics_host: opens the guard's metrics to the network; keep 127.0.0.1 unless that is meant",
        "notify.channels: none: nobody will be told; add an e-mail and an sms channel",
        "stack.engines[0].gpus: only GPUs below 1 are simulated; raise stack.sim_gpu.count",
        "stack.engines[0]: args and python are for kind vllm; kind sim ignores them",
        "guard.rules: no rule is enabled; only hangs and dead engines trip the breaker",
    )


# --- any text raises only ConfigError ------------------------------------------------------------------------------

KEYS = st.sampled_from(
    ["stack", "guard", "notify", "chaos", "engines", "gateway", "name", "port", "rules", "hang", "url", "channels",
     "kind", "threshold", "env", "args", "sim", "gpus", "ramp_percents", "mode", "<<", ""]
) | st.text(max_size=8)  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["env:X", "sim", "vllm", "10e400", "0x", "0o9", "1_000", "!!int", "*a", "&a", "a" * 500])
)  # fmt: skip
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=25
)


def only_config_errors(raw: bytes) -> None:
    try:
        root = parse_settings(raw)
    except ConfigError as error:
        problems = error.problems
    else:
        setting_warnings(root)
        return
    assert problems
    for problem in problems:
        assert problem.startswith("sre.yaml: ")
        assert problem.isprintable(), problem
        problem.encode("utf-8")


@given(st.binary(max_size=300))
@example(b"\xff\xfes\x00")
@example(b'a: "\\UFFFFFFFF"')
@example(b'"\\ud800": "\\ud800"')
@example(b"? - a\n: b")
@example(b"!!int x")
@example(b"!!bool maybe")
@example(b"!!float x")
@example(b"a: !<tag:yaml.org,2002:null> x")
@example(b"%YAML 9.9\n---\na")
@example(b"a: 0x")
@example(b"guard: {tick_seconds: 99999999999999999999999999999}")
@example(b"stack: {engines: [{name: a, kind: external, url: 'http://[::1'}]}")
@example(b"stack: {engines: [{name: a, kind: external, url: 'http://h:99999'}]}")
@example(b"stack: {engines: [{name: a, gpus: [" + b"9" * 5000 + b"]}]}")
@example(b"stack: {engines: [{name: a, gpus: [" + b"9" * 29 + b"]}]}")
@example(b'stack: {state_dir: "a\\0b"}')
def test_any_bytes_raise_only_config_error(raw: bytes) -> None:
    only_config_errors(raw)


@given(st.text(alphabet=st.sampled_from("abc:- \n\t{}[]&*!|>'\"%@#?,0.~<\\"), max_size=60))
def test_any_text_of_yaml_signs_raises_only_config_error(text: str) -> None:
    only_config_errors(text.encode())


@given(TREES)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_tree_raises_only_config_error(tree: object) -> None:
    only_config_errors(yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "replace"))


@given(
    st.dictionaries(st.sampled_from(["stack", "guard", "notify", "chaos"]), st.dictionaries(KEYS, TREES, max_size=4))
)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_sections_raise_only_config_error(sections: object) -> None:
    only_config_errors(yaml.safe_dump(sections, allow_unicode=True).encode("utf-8", "replace"))


@given(secret=st.text(alphabet="abcdefghijklmnop0123456789!#%*&@/:-", min_size=10, max_size=40))
@pytest.mark.parametrize(
    "where",
    [
        "notify: {{channels: [{{name: a, kind: sms, url: {}}}]}}",
        "notify: {{channels: [{{name: a, kind: sms, url: 'env:A', password: {}}}]}}",
        "stack: {{engines: [{{name: a, api_key: {}}}]}}",
        "stack: {{engines: [{{name: a, kind: vllm, args: [--api-key, {}], env: {{HF_TOKEN: {}}}}}]}}",
        "stack: {{engines: [{{name: a, kind: external, url: {}}}]}}",
        "notify: {}",
        "notify: {{channels: {}}}",
    ],
)
def test_a_secret_written_by_mistake_is_never_repeated(where: str, secret: str) -> None:
    message = ""
    try:
        parse_settings(where.format(*[secret] * where.count("{}")).encode())
    except ConfigError as error:
        message = str(error)
    assert secret not in message


def test_reserved_names_are_those_of_the_processes() -> None:
    from sre.settings.checks import RESERVED_NAMES
    from sre.stack import processes

    assert {processes.GATEWAY_NAME, processes.GUARD_NAME, "supervisor"} == RESERVED_NAMES
