"""Whether what the gateway reports can be relied on: errors of the outcome filter, a log that is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sre.adapters.envoy import EnvoyGateway
from sre.adapters.envoy.files import read_document, write_document
from sre.adapters.envoy.trust import LOG_SILENT_SECONDS, FilterTrust, LogWatch
from sre.settings.stack import StackSettings
from sre.stack.gateway_names import LDS_PATH
from tests.gateway.harness import engine_settings, running


class TestFilterTrust:
    def test_only_new_errors_count(self) -> None:
        trust = FilterTrust()
        assert [trust.works("1", errors) for errors in (0, 1, 1, 1, 3, 3)] == [True, False, True, True, False, True]

    def test_errors_before_the_first_look_are_history(self) -> None:
        trust = FilterTrust()
        assert [trust.works("1", errors) for errors in (7, 7, 8)] == [True, True, False]

    def test_another_envoy_counts_from_zero(self) -> None:
        trust = FilterTrust()
        assert trust.works("1", 7)
        assert [trust.works("2", errors) for errors in (2, 2)] == [False, True]
        assert [trust.works("3", errors) for errors in (0, 1)] == [True, False]


class TestLogWatch:
    def test_idle_gateway_owes_no_lines(self) -> None:
        watch = LogWatch()
        assert watch.seen
        watch.counted(0, 1000.0)
        watch.read(0, 1000.0)
        assert watch.seen

    def test_missing_after_five_seconds_without_a_line_while_requests_are_open(self) -> None:
        watch = LogWatch()
        watch.read(3, 10.0)
        watch.counted(1, 1000.0)
        watch.read(0, 1000.0 + LOG_SILENT_SECONDS - 0.1)
        assert watch.seen
        watch.counted(1, 1000.0 + LOG_SILENT_SECONDS)
        watch.read(0, 1000.0 + LOG_SILENT_SECONDS)
        assert not watch.seen
        watch.read(1, 1010.0)
        assert watch.seen

    def test_guard_that_was_paused_does_not_blame_the_log(self) -> None:
        watch = LogWatch()
        watch.counted(1, 1000.0)
        watch.read(1, 1000.0)
        watch.counted(1, 1060.0)  # one minute later the log was not read yet
        assert watch.seen

    @pytest.mark.parametrize("how", ["no_requests", "restart"])
    def test_requests_that_are_gone_owe_no_lines(self, how: str) -> None:
        watch = LogWatch()
        watch.counted(2, 1000.0)
        watch.read(0, 1010.0)
        assert not watch.seen
        if how == "restart":
            watch.restarted()
        else:
            watch.counted(0, 1010.0)
        assert watch.seen


@pytest.mark.integration
async def test_one_error_of_the_filter_does_not_bias_the_accounts_for_good(short_dir: Path) -> None:
    async with running(short_dir, start=False) as bench:
        path = bench.envoy.paths.gateway / LDS_PATH
        document = read_document(path)
        assert document is not None
        for listener in document["resources"]:
            filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
            lua = next(f for f in filters if f["name"] == "outcome")["typed_config"]["default_source_code"]
            head = "function envoy_on_response(h)\n"
            assert head in lua["inline_string"]
            lua["inline_string"] = lua["inline_string"].replace(
                head, head + 'if h:headers():get(":status") == "418" then error("as told") end\n'
            )
        write_document(path, document)
        await bench.envoy.start()
        await bench.gateway.observe()

        async def details(*modes: str) -> list[str]:
            await bench.gateway.observe()
            for mode in modes:
                await bench.ask(user=mode)
            return [r.detail for r in await bench.finished(len(modes))]

        assert await details("ok", "500", "418") == ["ok", "http_500", "http_418"]
        assert await details("ok", "500", "abort") == ["unjudged"] * 3
        assert await details("ok", "500", "abort") == ["ok", "http_500", "finish_abort"]
        counts = bench.gateway.outcomes()["a"]
        assert (counts.success, counts.failure, counts.neutral) == (2, 3, 4)


@pytest.mark.integration
async def test_engine_without_an_address_has_an_entry_too(short_dir: Path) -> None:
    async with running(short_dir, engines=engine_settings("a", "b"), start=False) as bench:
        write_document(bench.envoy.paths.gateway / "engines.json", {})
        gateway = EnvoyGateway(bench.envoy.paths, StackSettings(engines=engine_settings("a", "b")), bench.clock)
        try:
            assert set(gateway.outcomes()) == set(gateway.sent_bytes()) == {"a", "b"}
        finally:
            await gateway.close()
