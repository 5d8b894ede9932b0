"""Which card an index means, while cards are lost and indices move."""

from __future__ import annotations

from sre.adapters.gpu.card_names import CardNames


def named(*reads: dict[int, str]) -> CardNames:
    names = CardNames()
    for uuids in reads:
        names.seen(uuids)
    return names


def test_a_card_that_no_longer_tells_its_uuid_keeps_it() -> None:
    names = named({0: "A", 1: "B"}, {1: "B"}, {0: "", 1: "B"})
    assert [names.of(index) for index in (0, 1, 2)] == ["A", "B", ""]
    assert [names.card(index) for index in (0, 1, 2)] == ["A", "B", "#2"]


def test_a_card_is_at_one_index() -> None:
    names = named({0: "A", 1: "B", 2: "C"}, {0: "A", 1: "C"})
    assert [names.of(index) for index in (0, 1, 2)] == ["A", "C", ""]


def test_another_card_at_an_index_is_another_card() -> None:
    assert named({0: "A"}, {0: "B"}).of(0) == "B"
