"""Turns go to who waits longest."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from sre.adapters.store.turns import Turns


def test_who_waits_longest_is_next_and_never_two_at_once(wait_until: Callable[..., object]) -> None:
    turns = Turns()
    order: list[int] = []
    inside: list[int] = []

    def work(name: int) -> None:
        with turns:
            inside.append(name)
            assert len(inside) == 1
            order.append(name)
            inside.remove(name)

    threads = []
    with turns:
        for name in range(5):
            threads.append(threading.Thread(target=work, args=(name,)))
            threads[-1].start()
            wait_until(lambda n=name: len(turns._waiting) == n + 1)
    # Whoever comes now comes last.
    work(99)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4, 99]


def test_an_error_inside_gives_the_turn_back() -> None:
    turns = Turns()
    for _ in range(2):
        with contextlib.suppress(ValueError), turns:
            raise ValueError
    with turns:
        pass
