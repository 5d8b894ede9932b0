"""A link that acknowledges: one incident, until a moment, signed."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.notify.ack_token import LONGEST_TOKEN, TokenVerdict, ack_token, verify_ack_token

SECRET = b"0123456789abcdef"
ID = "inc-20270115-080000-00a1"
EXPIRES = 1_800_000_900.0


def test_a_token_is_good_until_its_moment() -> None:
    token = ack_token(ID, EXPIRES, SECRET)
    assert verify_ack_token(token, ID, EXPIRES - 1, SECRET) is TokenVerdict.GOOD
    assert verify_ack_token(token, ID, EXPIRES, SECRET) is TokenVerdict.EXPIRED
    assert len(token) <= LONGEST_TOKEN
    assert token.replace(".", "").replace("-", "").replace("_", "").isalnum(), "needs no encoding in a URL"


def test_it_is_worth_nothing_for_anything_else() -> None:
    token = ack_token(ID, EXPIRES, SECRET)
    expires, signature = token.split(".")
    for other, incident, secret in (
        (token, "inc-20270115-080000-00a2", SECRET),
        (token, ID, b"another secret of 16"),
        (f"{int(expires) + 1}.{signature}", ID, SECRET),
        (f"{expires}.{signature[:-1]}", ID, SECRET),
        (f"0{expires}.{signature}x", ID, SECRET),
        (expires, ID, SECRET),
        ("", ID, SECRET),
        (token + "\n", ID, SECRET),
        ("9" * 10_000, ID, SECRET),
        (token.replace(expires, "\u0661" * len(expires)), ID, SECRET),
    ):
        assert verify_ack_token(other, incident, 0.0, secret) is TokenVerdict.BAD


@given(st.text(), st.floats(0, 9e11), st.binary(min_size=16, max_size=64), st.text())
def test_any_id_has_its_own_token(incident: str, expires: float, secret: bytes, other: str) -> None:
    token = ack_token(incident, expires, secret)
    assert verify_ack_token(token, incident, expires - 1.5, secret) is TokenVerdict.GOOD
    if other != incident:
        assert verify_ack_token(token, other, 0.0, secret) is TokenVerdict.BAD


@given(st.text())
def test_no_text_is_taken_for_a_token(text: str) -> None:
    assert verify_ack_token(text, ID, 0.0, SECRET) is TokenVerdict.BAD


def test_one_changed_bit_is_seen() -> None:
    token = ack_token(ID, EXPIRES, SECRET)
    for at in range(len(token)):
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        # The last character of Base64 holds bits that mean nothing; the text is compared, so it counts all the same.
        assert verify_ack_token(changed, ID, 0.0, SECRET) is TokenVerdict.BAD, at


def test_a_short_secret_is_refused() -> None:
    for use in (lambda: ack_token(ID, 1, b"short"), lambda: verify_ack_token("", ID, 1, b"")):
        with pytest.raises(ValueError, match="use at least 16"):
            use()


def test_signatures_are_compared_in_constant_time() -> None:
    source = inspect.getsource(verify_ack_token)
    assert "hmac.compare_digest" in source
    assert "==" not in source
