"""The simulated KV cache: blocks in use, and a prefix cache of blocks that nobody uses now."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BLOCK_TOKENS = 16
"""Tokens per block (vLLM's default on GPUs)."""


def blocks_for(tokens: int) -> int:
    """Blocks that hold ``tokens``."""
    return -(-tokens // BLOCK_TOKENS)


class KvCache:
    """
    Counts blocks; knows the full blocks of prompts by a hash that covers all tokens up to their end.

    A block is in use (counts as usage), or idle: kept for a later prompt with the same beginning, evicted oldest first
    when room is needed. Blocks of generated tokens are not kept, unlike vLLM's.
    """

    def __init__(self, tokens: int, *, keep_prefixes: bool = True) -> None:
        self.total = max(1, tokens // BLOCK_TOKENS)
        self._keep = keep_prefixes
        self._in_use = 0
        self._users: dict[int, int] = {}  # hash -> requests that use the block
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def usage_ratio(self) -> float:
        """Share of blocks in use, 0..1."""
        return self._in_use / self.total

    @property
    def idle(self) -> int:
        """Blocks kept for later prompts; never more than are not in use."""
        return len(self._idle)

    def cached_blocks(self, hashes: Sequence[int]) -> int:
        """How many leading blocks of a prompt are there."""
        found = 0
        for value in hashes:
            if value not in self._users and value not in self._idle:
                break
            found += 1
        return found

    def take(self, cached: Sequence[int], fresh: int) -> bool:
        """Use the blocks ``cached`` (they are there) and ``fresh`` empty ones; False and no change without room."""
        reused = sum(1 for value in cached if value in self._idle)
        if self._in_use + reused + fresh > self.total:
            return False
        for value in cached:
            if value in self._idle:
                del self._idle[value]
                self._users[value] = 1
                self._in_use += 1
            else:
                self._users[value] += 1
        self._in_use += fresh
        while self._in_use + len(self._idle) > self.total:
            self._idle.popitem(last=False)
        return True

    def share(self, value: int) -> bool:
        """Make a computed block of the caller findable; False when another one with that content is already."""
        if not self._keep or value in self._users or value in self._idle:
            return False
        self._users[value] = 1
        return True

    def release(self, shared: Sequence[int], private: int) -> None:
        """Stop using blocks: findable ones become idle, the last of a prompt to be evicted first; others are freed."""
        self._in_use -= private
        for value in reversed(shared):
            users = self._users[value] - 1
            if users:
                self._users[value] = users
            else:
                del self._users[value]
                self._in_use -= 1
                self._idle[value] = None

    def forget(self) -> None:
        """Drop all idle blocks (``/reset_prefix_cache``)."""
        self._idle.clear()
