"""A channel that takes no message anywhere is found before anybody counts on it."""

from __future__ import annotations

import pytest

from sre.settings.models import Root
from sre.settings.notify import ChannelSettings, NotifySettings
from sre.wiring.channel_checks import ChannelProblems, channel_problems, checked_channels, missing_channel_secrets

pytestmark = pytest.mark.integration

ENVIRON = {"GOOD": "json://127.0.0.1:9/x", "SCHEME": "nosuch://x", "NUMBER": "twilio://AC1:token@+15550100/12"}
UNKNOWN_SCHEME = "notify.channels[1].url: there is no service nosuch://; see Apprise's list of services"


def root_of(**urls: str) -> Root:
    channels = [
        ChannelSettings(name=name, kind="sms" if name == "number" else "webhook", url=f"env:{variable}")
        for name, variable in urls.items()
    ]
    return Root(notify=NotifySettings(channels=tuple(channels)))


def test_each_channel_is_checked_as_by_notify_check_and_what_may_come_is_told_apart() -> None:
    found = channel_problems(root_of(good="GOOD", scheme="SCHEME", number="NUMBER", late="NOT_THERE"), ENVIRON)
    assert found.unusable[0] == UNKNOWN_SCHEME
    assert {one.partition(".url:")[0] for one in found.unusable} == {"notify.channels[1]", "notify.channels[2]"}
    assert found.missing == (
        "notify.channels[3].url: environment variable NOT_THERE is not set; export it before running sre",
    )
    assert found.unchecked == ()
    assert "token" not in "".join(found.unusable)


async def test_it_can_be_asked_inside_an_event_loop() -> None:
    assert channel_problems(root_of(good="GOOD"), ENVIRON) == ChannelProblems()


async def test_without_a_secret_that_is_there_no_process_is_started() -> None:
    root = root_of(late="NOT_THERE")
    assert (await checked_channels(root, ENVIRON, seconds=0.0)).missing == tuple(missing_channel_secrets(root, ENVIRON))


async def test_what_was_not_found_out_in_time_is_neither_good_nor_bad() -> None:
    found = await checked_channels(root_of(scheme="SCHEME"), ENVIRON, seconds=0.0)
    assert found == ChannelProblems(unchecked=("notify.channels[0].url",))
