"""How bad each cause is, and what a person can do about it."""

from __future__ import annotations

from sre.notify.outcomes import REMEDIES, VERDICTS, Cause, Outcome, Verdict


def test_every_cause_has_a_verdict_and_a_remedy() -> None:
    assert set(VERDICTS) == set(REMEDIES) == set(Cause)
    assert Verdict.DELIVERED not in VERDICTS.values()
    assert all("\n" not in remedy and not remedy.endswith(".") for remedy in REMEDIES.values())
    assert Outcome(Cause.TLS).verdict is Verdict.REFUSED_NOW


def test_only_what_is_about_this_message_or_this_recipient_is_given_up_at_once() -> None:
    assert {cause for cause, verdict in VERDICTS.items() if verdict is Verdict.REJECTED} == {
        Cause.RECIPIENT,
        Cause.REFUSED,
    }
