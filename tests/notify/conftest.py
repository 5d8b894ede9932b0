"""Certificates for servers that speak TLS."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

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
