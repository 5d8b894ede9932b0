"""Which card an index means: UUIDs that outlive the card's answers."""

from __future__ import annotations

from collections.abc import Mapping


class CardNames:
    """
    The UUID last seen at each index. A lost card no longer tells it, and is the same card.

    Indices move when a card is gone and NVML counts anew; a UUID is then forgotten where it was before.
    """

    def __init__(self) -> None:
        self._uuids: dict[int, str] = {}

    def seen(self, uuids: Mapping[int, str]) -> None:
        """Indices that answered now, with their UUID; "" where only that was not told."""
        told = {index: uuid for index, uuid in uuids.items() if uuid}
        here = set(told.values())
        kept = {index: uuid for index, uuid in self._uuids.items() if uuid not in here}
        self._uuids = kept | told

    def of(self, index: int) -> str:
        """UUID of the card; "" while it was never told."""
        return self._uuids.get(index, "")

    def card(self, index: int) -> str:
        """What the card's counts are kept under: its UUID, else its index."""
        return self.of(index) or f"#{index}"
