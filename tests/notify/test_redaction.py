"""Secrets never leave in text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.redaction import HIDDEN, redact, secrets_of_url

SECRET = "S3cretT0ken9876"


@pytest.mark.parametrize(
    "url",
    [
        f"mailto://user:{SECRET}@mail.example.org?to=a@b.org",
        f"mailto://{SECRET}:password@mail.example.org",
        f"slack://{SECRET}/B1H9RESGH/QfFTWrXGWYsGwLPN",
        f"json://host/path/{SECRET}",
        f"json://host/?token={SECRET}",
        f"twilio://AC123:{SECRET}@15551234567",
    ],
)
def test_no_credential_of_a_url_survives(url: str) -> None:
    said = f"could not send to {url}: 535 login {SECRET} refused, also {SECRET}@"
    assert SECRET not in redact(said, secrets_of_url(url))


def test_an_encoded_credential_is_hidden_in_both_spellings() -> None:
    secrets = secrets_of_url(f"mailto://user:{SECRET}%40@mail.example.org")
    assert redact(f"login {SECRET}@ and {SECRET}%40", secrets) == f"login {HIDDEN} and {HIDDEN}"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Authorization: Bearer abc.def-ghi", f"Authorization: {HIDDEN}"),
        ('"authorization": "Basic Zm9vOmJhcg=="', f'"authorization": "{HIDDEN}"'),
        ("GET /v1/models?api_key=abcd1234&x=1", f"GET /v1/models?api_key={HIDDEN}&x=1"),
        ("HF_TOKEN=hf_abcdefgh python", f"HF_TOKEN={HIDDEN} python"),
        ("postgres://me:pw@db/x", f"postgres://{HIDDEN}@db/x"),
        ("max_tokens=4096 tokens: 4096", "max_tokens=4096 tokens: 4096"),
        ("INFO engine step 12 in 0.3 s", "INFO engine step 12 in 0.3 s"),
    ],
)
def test_what_looks_like_a_credential_is_hidden(line: str, shown: str) -> None:
    assert redact(line) == shown


@given(st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=4, max_size=40), st.text())
def test_a_secret_of_four_characters_or_more_is_gone(secret: str, around: str) -> None:
    left = redact(around + secret + around, [secret])
    assert secret not in left.replace(HIDDEN, "")


@pytest.mark.parametrize("unit", ["a", "token", "://", "authorization ", "bearer ", 'api_key="'])
@pytest.mark.timeout(20)
def test_a_long_log_takes_no_longer_than_its_length_asks_for(unit: str) -> None:
    redact(unit * (1_000_000 // len(unit)))


@given(st.text())
def test_any_url_yields_its_whole_as_a_secret(url: str) -> None:
    assert url in secrets_of_url(url)
