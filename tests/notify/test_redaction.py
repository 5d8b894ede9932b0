"""Secrets never leave in text."""

from __future__ import annotations

import base64
from urllib.parse import quote

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


ALPHABET = st.sampled_from("abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789")
TOKENS = st.text(ALPHABET, min_size=7, max_size=40).map(lambda text: f"{text}7Q")
PLACES = [
    "mailtos://oncall:{}@smtp.example.com?to=oncall@example.com",
    "twilio://AC123:{}@15551234567/15557654321",
    "slack://T1JJ3T3L2/{}/QfFTWrXGWYsGwLPN",
    "jsons://hooks.example.com/services/{}",
    "jsons://hooks.example.com/in?token={}",
    "jsons://hooks.example.com/in?x={}",
    "tgram://123456789:{}/12315544",
    "pagerduty://{}@0123456789abcdef",
    "pagerduty://0123456789abcdef@{}",
    "dingtalk://{}@token0123456",
    "sns://AKIAIOSFODNN7EXAMPLE/a%2F{}/us-east-1/+15551234567",
    "alisms://key:{}@Sign/SMS_1234/+8613800000000",
]


@pytest.mark.parametrize("place", PLACES)
@given(token=TOKENS)
def test_a_token_is_hidden_wherever_it_stands_in_a_url(place: str, token: str) -> None:
    token = f"a/{token}" if "%2F" in place else token
    left = redact(f"401: {token} is unknown; {token}", secrets_of_url(place.format(token.removeprefix("a/"))))
    assert token not in left.replace(HIDDEN, "")


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=4, max_size=30))
def test_a_password_is_hidden_as_written_decoded_and_as_basic_auth(password: str) -> None:
    url = f"jsons://me:{quote(password, safe='')}@hooks.example.com/in"
    basic = base64.b64encode(f"me:{password}".encode()).decode()
    left = redact(f"{password} {quote(password, safe='')} {basic}", secrets_of_url(url)).replace(HIDDEN, "")
    assert password not in left
    assert basic not in left


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("ntfy://ntfy.sh/gpuoncall", "gpuoncall"),
        ("ntfys://ntfy.example.com/gpuops", "gpuops"),
        ("ntfy://gpuoncall", "gpuoncall"),
        ("ntfy://me:pw@ntfy.example.com/first/second-topic", "second-topic"),
        ("json://hooks.example.com/hook/mysecretpath", "mysecretpath"),
        ("jsons://hooks.example.com/services/secretly.example.com", "secretly.example.com"),
        ("discord://1234567890/abcdefghijklmno", "abcdefghijklmno"),
        ("gotify://push.example.com/abcdef", "abcdef"),
        ("slack://abcdefghijkl/B1H9RESGH/abcdefgh", "abcdefghijkl"),
    ],
)
def test_a_credential_of_lowercase_letters_alone_is_hidden(url: str, secret: str) -> None:
    left = redact(f"404: {secret} not found at {secret}", secrets_of_url(url))
    assert left == f"404: {HIDDEN} not found at {HIDDEN}"


@pytest.mark.parametrize(
    "url",
    [
        "jsons://hooks.example.com/api/v2/alerts/webhooks/services/notify/incidents",
        "ntfy://localhost/alerts",
        "ntfys://ntfy.example.com",
        "mailtos://me:Wint3r-is@smtp.example.com/oncall@example.com",
        "sns://AKIAIOSFODNN7EXAMPLE/S3cretT0ken/us-east-1",
    ],
)
def test_words_of_a_route_hosts_addresses_and_regions_stay(url: str) -> None:
    said = "api/v2/alerts/webhooks services notify incidents localhost ntfy.example.com oncall@example.com us-east-1"
    assert redact(said, secrets_of_url(url)) == said


@pytest.mark.parametrize(
    "place", [*PLACES, "mailto://127.0.0.1:25?from=sre@example.com&to=oncall@example.com&mode=ssl"]
)
def test_what_people_need_to_read_stays(place: str) -> None:
    said = (
        "550 <oncall@example.com>: no such user at smtp.example.com; POST hooks.example.com/services: incoming webhooks"
        " and notifications and alertmanager are unavailable, region us-east-1, request token or password is wrong"
    )
    assert redact(said, secrets_of_url(place.format("S3cretT0ken9876"))) == said


@given(st.text())
def test_any_url_yields_its_whole_as_a_secret(url: str) -> None:
    assert url in secrets_of_url(url)
