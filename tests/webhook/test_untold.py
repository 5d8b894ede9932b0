"""Who is not told, and who is told only once: routes that only list, and what a limit kept back and others told."""

from __future__ import annotations

from pathlib import Path

from sre.notify.alert_records import Verdict
from sre.settings.webhook import ActionSettings, RouteSettings, WebhookSettings
from tests.webhook.scenes import one
from tests.webhook.test_limits import catch_up, desk_of, limited


def test_a_route_that_only_opens_incidents_tells_nobody_of_beginning_worsening_or_end(tmp_path: Path) -> None:
    listing = WebhookSettings(routes=(RouteSettings(name="list", actions=(ActionSettings(do="incident"),)),))
    with desk_of(tmp_path, listing) as desk:
        assert desk.take(one(node="n1", severity="ticket")) == [Verdict.OPENED]
        assert desk.take(one(node="n1", severity="page", gpu="1")) == [Verdict.JOINED]
        assert desk.open_incidents() == 1
        for gpu in ({}, {"gpu": "1"}):
            desk.take(one(node="n1", severity="page" if gpu else "ticket", status="resolved", **gpu))
        assert desk.open_incidents() == 0
        assert desk.messages() == []
        assert desk.book.left_out(10) == {}


def test_what_a_limit_kept_back_and_another_alert_told_since_is_not_told_again(tmp_path: Path) -> None:
    with desk_of(tmp_path, limited(notices=1)) as desk:
        assert desk.take(one(node="n1"), one(node="n2")) == [Verdict.OPENED] * 2
        assert desk.events() == ["open", "blind"], "the limit is told in the place of n2"
        assert len(desk.book.left_out(10)["few"][0]) == 1
        desk.clock.advance(3601)
        assert desk.take(one(node="n2", gpu="1")) == [Verdict.JOINED]
        assert desk.events() == ["open", "blind", "open"], "the window is open again: n2 is told by its second alert"
        assert not catch_up(desk)
        assert desk.book.left_out(10) == {}, "nothing waits any more"
        assert desk.open_incidents() == 2


def test_what_was_kept_back_late_is_told_when_the_window_opens_and_not_an_hour_later(tmp_path: Path) -> None:
    with desk_of(tmp_path, limited(incidents=1, notices=1)) as desk:
        desk.take(one(node="n1"))
        desk.clock.advance(1800)
        assert desk.take(one(node="n2")) == [Verdict.OVER_LIMIT]
        desk.clock.advance(1790)
        assert not catch_up(desk)
        desk.clock.advance(20)
        assert catch_up(desk)
