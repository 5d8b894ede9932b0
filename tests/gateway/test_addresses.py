"""Where engines are: external ones by name, looked up again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sre.adapters.clock import SystemClock
from sre.adapters.envoy import EnvoyGateway
from sre.adapters.envoy.addresses import LOOKUP_SECONDS, AddressBook, engine_addresses
from sre.adapters.envoy.files import ADDRESSES, addresses_to_document, write_document
from sre.settings.stack import EngineSettings, GatewaySettings, StackSettings
from sre.stack.gateway_names import EngineAddress, open_gateway
from sre.testing.clock import ManualClock
from tests.conftest import unused_port
from tests.gateway.harness import RunningEnvoy
from tests.gateway.stub import StubEngine


def external(port: int, host: str = "localhost") -> StackSettings:
    engine = EngineSettings(name="far", kind="external", model="m", url=f"http://{host}:{port}")
    return StackSettings(engines=(engine,), gateway=GatewaySettings(port=unused_port()))


def test_name_is_kept_beside_the_address_and_ip_has_none() -> None:
    assert engine_addresses(external(8000), {}) == ({"far": EngineAddress("127.0.0.1", 8000, "localhost:8000")}, [])
    assert engine_addresses(external(80), {})[0]["far"].hostname == "localhost"
    assert engine_addresses(external(80, "127.0.0.1"), {})[0]["far"].hostname is None
    assert engine_addresses(external(80, "[::1]"), {})[0]["far"].key == "[::1]:80"


async def test_name_is_looked_up_again_and_a_new_address_goes_to_disk(tmp_path: Path) -> None:
    clock = ManualClock()
    path = tmp_path / ADDRESSES
    write_document(path, addresses_to_document({"far": EngineAddress("192.0.2.1", 8000, "localhost:8000")}))
    book = AddressBook(tmp_path, external(8000), clock)
    assert book.reload() is True
    book.look_up_when_due()
    assert book._lookup is None
    clock.advance(LOOKUP_SECONDS)
    book.look_up_when_due()
    assert book._lookup is not None
    await book._lookup
    assert book.reload() is True
    assert book.current == {"far": EngineAddress("127.0.0.1", 8000, "localhost:8000")}
    assert book.reload() is False
    await book.close()


async def test_look_up_changes_only_the_names_it_asked_for(tmp_path: Path) -> None:
    """While DNS is asked, the supervisor gives another engine a new port."""
    clock = ManualClock()
    path = tmp_path / ADDRESSES
    far = EngineAddress("192.0.2.1", 8000, "localhost:8000")
    write_document(path, addresses_to_document({"far": far, "near": EngineAddress("127.0.0.1", 9001)}))
    book = AddressBook(tmp_path, external(8000), clock)
    book.reload()
    clock.advance(LOOKUP_SECONDS)
    book.look_up_when_due()
    assert book._lookup is not None
    write_document(path, addresses_to_document({"far": far, "near": EngineAddress("127.0.0.1", 9002)}))
    await book._lookup
    book.reload()
    assert book.current == {
        "far": EngineAddress("127.0.0.1", 8000, "localhost:8000"),
        "near": EngineAddress("127.0.0.1", 9002),
    }
    await book.close()


async def test_failed_look_up_keeps_the_old_address(tmp_path: Path) -> None:
    clock = ManualClock()
    path = tmp_path / ADDRESSES
    old = {"far": EngineAddress("192.0.2.1", 8000, "gone.invalid:8000")}
    write_document(path, addresses_to_document(old))
    book = AddressBook(tmp_path, external(8000, "gone.invalid"), clock)
    book.reload()
    clock.advance(LOOKUP_SECONDS)
    book.look_up_when_due()
    assert book._lookup is not None
    await book._lookup
    book.reload()
    assert book.current == old
    await book.close()


@pytest.mark.integration
async def test_external_engine_is_reached_by_its_own_host_name(short_dir: Path) -> None:
    stub = StubEngine(unused_port())
    await stub.start()
    stack = external(stub.port)
    envoy = RunningEnvoy(short_dir, stack, {})
    gateway = EnvoyGateway(envoy.paths, stack, SystemClock(), lambda engine: f"token-of-{engine}")
    try:
        await envoy.start()
        await gateway.apply(open_gateway(stack))
        result = await gateway.probe("far", 1, first_token_timeout_seconds=2, timeout_seconds=2)
        assert result.detail == "ok"
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.gateway.port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: public.example\r\ncontent-type: application/json\r\n"
            b"content-length: 13\r\n\r\n" + b'{"model":"m"}'
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        assert [headers["host"] for _, headers, _ in stub.seen] == [f"localhost:{stub.port}"] * 2
        assert stub.seen[0][1]["authorization"] == "Bearer token-of-far"
        assert "x-sre-engine" not in stub.seen[0][1]
    finally:
        await gateway.close()
        envoy.stop()
        await stub.stop()
