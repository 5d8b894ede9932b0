"""Addresses as they are written: what is one, and what of it is never shown or sent in the clear."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.errors import ConfigError
from sre.settings.addresses import checked_url, exposes_secrets


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:9090", "is no URL"),
        ("ftp://host/metrics", "is no URL"),
        ("http://", "is no URL"),
        ("http://host:99999", "is no URL"),
        ("http://host:x", "is no URL"),
        ("http://host:0", "is no URL"),
        ("http://ho st/", "is no URL"),
        ("http://[::1/", "is no URL"),
        ("http://host/\x1b", "is no URL"),
        ("http://me:secret@host/", "never written here"),
        ("http://me:secret@host:99999/", "is no URL"),
        ("http://me:se/cret@host:99999/", "is no URL"),
        ("http://host/#x", "leave out what follows #"),
        ("http://host?orgId=1", "leave out what follows ?"),
        ("", "is no URL"),
    ],
)
def test_what_is_no_address_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_url(url, "--there", example="http://host:3000")
    assert words in str(caught.value)
    assert str(caught.value).startswith("--there: ")
    assert "secret" not in str(caught.value).replace("a secret is", "")
    assert "cret@" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_slashes_at_the_end_and_blanks_around_do_not_matter() -> None:
    assert checked_url(" https://host.example/sub/ ") == "https://host.example/sub"
    assert checked_url("http://host/federate?match[]=up", query=True) == "http://host/federate?match[]=up"


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        url = checked_url(text)
    except ConfigError:
        return
    assert url.lower().startswith("http")
    assert url.isprintable()


@pytest.mark.parametrize(
    ("url", "exposed"),
    [
        ("http://grafana", True), ("http://10.0.0.1:9090", True), ("https://grafana", False),
        ("http://127.0.0.1:3000", False), ("http://127.8.0.1", False), ("http://[::1]:3000", False),
        ("http://localhost", False), ("http://localhost.example", True),
    ],
)  # fmt: skip
def test_a_secret_in_the_clear_is_known(url: str, exposed: bool) -> None:
    assert exposes_secrets(url) is exposed
