"""Certificates for servers that speak TLS; a store, a clock and a provider for the sender."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sre.adapters.store import GuardStore
from sre.testing.clock import ManualClock
from tests.notify.sending import Provider
from tests.store.hanging import HangingDisk
from tests.support.providers import HOSTS, Certificate, make_certificate


@pytest.fixture(scope="session")
def certificate_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="sre-tls-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def certificate(certificate_folder: Path) -> Certificate:
    """Of all providers, and of this machine."""
    names = [f"DNS:{host}" for host in (*HOSTS, "localhost")]
    return make_certificate(certificate_folder, "good", *names, "IP:127.0.0.1")


@pytest.fixture(scope="session")
def certificate_of_another(certificate_folder: Path) -> Certificate:
    """Of a host that nobody here asks for."""
    return make_certificate(certificate_folder, "another", "DNS:mail.example.org")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> HangingDisk:
    return HangingDisk()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock, disk: HangingDisk) -> Iterator[GuardStore]:
    with GuardStore.open(tmp_path / "guard.db", clock=clock, boot_id="boot-1", trace=disk) as opened:
        yield opened


@pytest.fixture
def provider() -> Provider:
    return Provider()
