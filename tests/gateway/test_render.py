"""The documents: names, keys, and what Envoy itself says about them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.actions.types import EngineDesired, GatewayDesired, PoolDesired, RejectReason
from sre.adapters.clock import SystemClock
from sre.adapters.envoy import EnvoyGateway, find_envoy
from sre.adapters.envoy.addresses import engine_addresses
from sre.adapters.envoy.files import desired_from_document, desired_to_document, outcome_lua, read_document
from sre.adapters.envoy.prepare import prepare
from sre.errors import BinaryNotFound, ConfigError
from sre.settings.paths import StatePaths
from sre.settings.stack import EngineSettings, GatewaySettings, StackSettings
from sre.signals.types import QUEUE_FULL
from sre.stack.gateway import envoy_argv, render
from sre.stack.gateway_names import (
    EngineAddress,
    GatewayPlan,
    complete,
    concurrency_key,
    open_gateway,
    pool_cluster,
    reject_key,
    runtime_layer,
    slug,
)
from tests.conftest import unused_port
from tests.gateway.harness import RunningEnvoy, engine_settings

TWO = StackSettings(engines=engine_settings("a", "b"))


def plan(stack: StackSettings, desired: GatewayDesired | None = None) -> GatewayPlan:
    addresses = {e.name: EngineAddress("127.0.0.1", 9001 + i) for i, e in enumerate(stack.engines)}
    return GatewayPlan(stack, addresses, desired or open_gateway(stack), "-- lua")


@given(st.text(min_size=1), st.text(min_size=1))
def test_cluster_names_are_safe_and_differ_where_pools_differ(one: str, other: str) -> None:
    for name in (slug(one), slug(other)):
        assert name.isascii()
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
        assert len(name) <= 50
    assert (slug(one) == slug(other)) == (one == other)


def test_same_plan_gives_the_same_bytes() -> None:
    assert json.dumps(render(plan(TWO)).dynamic) == json.dumps(render(plan(TWO)).dynamic)
    assert json.dumps(render(plan(TWO)).fixed) == json.dumps(render(plan(TWO)).fixed)


def test_every_runtime_key_has_a_value_so_that_none_is_left_from_before() -> None:
    assert runtime_layer(TWO, open_gateway(TWO)) == {
        reject_key("m"): 0,
        concurrency_key("m"): 1024,
        "gw.shed.offline": 0,
        "gw.rl.enforced": 100,
    }
    desired = GatewayDesired((PoolDesired("m", 90, RejectReason.RAMP),), (), 50, 7, rate_limit_enforced=False)
    assert list(runtime_layer(TWO, desired).values()) == [90, 7, 50, 0]


def test_what_desired_does_not_mention_is_admitted_and_what_is_unknown_is_dropped() -> None:
    desired = GatewayDesired((PoolDesired("gone", 100),), (EngineDesired("b", draining=True), EngineDesired("gone")))
    found = complete(TWO, desired)
    assert [(p.pool, p.reject_percent) for p in found.pools] == [("m", 0)]
    assert [(e.engine, e.draining) for e in found.engines] == [("a", False), ("b", True)]


def test_admission_changes_only_runtime_and_routes_rotation_only_endpoints() -> None:
    def changed(desired: GatewayDesired) -> set[str]:
        old, new = render(plan(TWO)), render(plan(TWO, desired))
        assert old.fixed == new.fixed
        return {path for path in old.dynamic if old.dynamic[path] != new.dynamic[path]}

    base = open_gateway(TWO)
    refuse = replace(base, pools=(PoolDesired("m", 100, RejectReason.HANG),))
    assert changed(refuse) == {"dyn/rtds.json", "dyn/rds.json"}
    drain = replace(base, engines=(EngineDesired("a", draining=True), EngineDesired("b")))
    assert changed(drain) == {"dyn/eds_pool-m.json"}
    ramp = replace(base, engines=(EngineDesired("a", weight_percent=10), EngineDesired("b")))
    assert changed(ramp) == {"dyn/eds_pool-m.json"}


def test_weight_is_the_configured_one_times_the_percent() -> None:
    stack = StackSettings(engines=(*engine_settings("a", weight=3), *engine_settings("b")))
    desired = replace(open_gateway(stack), engines=(EngineDesired("a", 10), EngineDesired("b", 0)))
    endpoints = render(plan(stack, desired)).dynamic["dyn/eds_pool-m.json"]["resources"][0]["endpoints"][0]
    weights = [(e["load_balancing_weight"], e.get("health_status")) for e in endpoints["lb_endpoints"]]
    assert weights == [(30, None), (1, "DRAINING")]


def test_last_engine_of_a_pool_is_never_ejected() -> None:
    def percent(count: int) -> int | None:
        stack = StackSettings(engines=engine_settings(*(f"e{n}" for n in range(count))))
        cluster = render(plan(stack)).fixed["dyn/cds.json"]["resources"][0]
        found: int | None = cluster.get("outlier_detection", {}).get("max_ejection_percent")
        return found

    assert [percent(n) for n in (1, 2, 3, 4)] == [None, 50, 66, 75]


@given(
    st.builds(
        GatewayDesired,
        st.tuples(st.builds(PoolDesired, st.text(), st.integers(0, 100), st.none() | st.sampled_from(RejectReason))),
        st.tuples(st.builds(EngineDesired, st.text(), st.integers(0, 100), st.booleans())),
        st.integers(0, 100), st.none() | st.integers(1, 9999), st.booleans(),
    )
)  # fmt: skip
def test_desired_state_survives_the_disk(desired: GatewayDesired) -> None:
    assert desired_from_document(json.loads(json.dumps(desired_to_document(desired)))) == desired


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pools": [{}]}', '{"pools": 1, "engines": 2}', "\x00"])
def test_unreadable_desired_state_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "desired.json").write_text(text)
    assert desired_from_document(read_document(tmp_path / "desired.json")) is None


def test_prepare_keeps_an_open_breaker_and_drops_what_the_stack_lost(short_dir: Path) -> None:
    paths = StatePaths(short_dir)
    paths.create()
    managed = {"a": ("127.0.0.1", 9001), "b": ("127.0.0.1", 9002)}
    other = StackSettings(engines=(*TWO.engines, EngineSettings(name="c", model="other")))
    assert prepare(paths, other, managed | {"c": ("127.0.0.1", 9003)}) == []
    (paths.gateway / "desired.json").write_text(
        json.dumps(
            desired_to_document(
                GatewayDesired(
                    (PoolDesired("m", 100, RejectReason.HANG), PoolDesired("other", 100, RejectReason.MANUAL)), ()
                )
            )
        )
    )
    assert prepare(paths, TWO, managed) == []
    rtds = read_document(paths.gateway / "dyn/rtds.json")
    assert rtds is not None
    assert rtds["resources"][0]["layer"][reject_key("m")] == 100
    assert not (paths.gateway / f"dyn/eds_{pool_cluster('other')}.json").exists()
    before = {p: p.stat().st_mtime_ns for p in (paths.gateway / "dyn").iterdir()}
    prepare(paths, TWO, managed)
    assert {p: p.stat().st_mtime_ns for p in (paths.gateway / "dyn").iterdir()} == before


def test_engine_that_cannot_be_found_is_left_out_with_a_sentence() -> None:
    stack = StackSettings(
        engines=(
            *engine_settings("a"),
            EngineSettings(name="far", kind="external", model="m", url="http://no-such-host.invalid:8000"),
        )
    )
    addresses, problems = engine_addresses(stack, {})
    assert addresses == {}
    assert problems == [
        "engine a: has no port yet; it stays out of rotation",
        "engine far: host no-such-host.invalid is unknown; it stays out of rotation until the name resolves",
    ]


@pytest.mark.parametrize("url", ["https://h:1", "http://h:1/v1", "h:1", "http://h:notaport", "ftp://h"])
def test_external_url_that_cannot_be_used_says_what_to_write(url: str) -> None:
    stack = StackSettings(engines=(EngineSettings(name="far", kind="external", model="m", url=url),))
    with pytest.raises(ConfigError, match=r"stack.engines.far.url: .* write http://host:port"):
        engine_addresses(stack, {})


def test_missing_binary_names_the_setting() -> None:
    stack = TWO.model_copy(update={"gateway": GatewaySettings(envoy_binary="/no/such/envoy")})
    with pytest.raises(BinaryNotFound, match=r"stack.gateway.envoy_binary: /no/such/envoy is not an executable file"):
        find_envoy(stack)


ODD: dict[str, Any] = {
    "one-engine": (engine_settings("a"), {}),
    "sixteen-engines": (engine_settings(*(f"e{n}" for n in range(16))), {}),
    "pools-with-odd-names": (
        (
            EngineSettings(name="a", model="org/model-7B.v1"),
            EngineSettings(name="b", model="größe \"q'\\ 模型"),
            EngineSettings(name="c", model="x" * 200),
            EngineSettings(name="d", model="org/model-7B.v1", weight=128),
        ),
        {},
    ),
    "external-by-name": (
        (*engine_settings("a"), EngineSettings(name="far", kind="external", model="m", url="http://localhost:8000")),
        {},
    ),
    "external-ipv6": ((EngineSettings(name="far", kind="external", model="m", url="http://[::1]:8000"),), {}),
    "nowhere": ((EngineSettings(name="far", kind="external", model="m", url="http://nowhere.invalid:8000"),), {}),
    "all-knobs": (
        engine_settings("a", "b"),
        {
            "rate_limit_requests_per_second": 0.1, "rate_limit_burst": 1, "max_body_bytes": 1024, "retries": 0,
            "max_concurrent_requests": 1, "allowed_paths": ("/v1/completions",), "trust_client_priority": False,
            "connect_timeout_seconds": 0.001, "first_byte_timeout_seconds": 0.01,
        },
    ),
    "many-paths": (engine_settings("a"), {"allowed_paths": tuple(f"/v1/path-{n}.x+y" for n in range(200))}),
}  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize("name", ODD)
async def test_envoy_takes_every_document(short_dir: Path, name: str) -> None:
    engines, gateway = ODD[name]
    stack = StackSettings(engines=engines, gateway=GatewaySettings(port=unused_port(), **gateway))
    managed = {e.name: ("127.0.0.1", unused_port()) for e in engines if e.kind != "external"}
    envoy = RunningEnvoy(short_dir, stack, managed)
    validated = subprocess.run(  # noqa: ASYNC221 - nothing else runs in this loop
        [*envoy_argv(find_envoy(stack)), "--mode", "validate"], cwd=envoy.paths.gateway, capture_output=True, text=True
    )
    assert validated.returncode == 0, validated.stderr
    adapter = EnvoyGateway(envoy.paths, stack, SystemClock())
    try:
        await envoy.start()
        assert await adapter.apply(open_gateway(stack)) is False  # that is: every version is the one that we wrote
        seen = await adapter.observe()
        assert (seen.reachable, seen.update_rejections) == (True, 0)
    finally:
        await adapter.close()
        envoy.stop()


def test_outcome_filter_travels_with_the_package() -> None:
    assert "function envoy_on_response" in outcome_lua()
    assert f'"{QUEUE_FULL}"' in outcome_lua()
