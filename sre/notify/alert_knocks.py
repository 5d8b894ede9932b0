"""
Who came to the webhook with credentials that open nothing, and whether that is to be told. Pure.

Alertmanager with an old token is turned away at each post, and no alert can say so: it would come the same way. But
anybody may knock, and must not be able to call people at will: it is told only while nobody else comes in, where no
heartbeat is asked for (with one, its silence pages, and says this), once, until somebody is let in.
"""

from __future__ import annotations

from dataclasses import dataclass

LOCKED_OUT_SECONDS = 300.0
"""As long as a heartbeat may stay away."""
LOCKED_OUT_POSTS = 2
"""One post alone may be anybody's mistake."""


@dataclass(frozen=True, slots=True)
class Knocks:
    """Since somebody was last let in."""

    turned_away: int = 0
    first: float = 0.0
    """Monotonic time of the first that was turned away."""

    def more(self, at: float) -> Knocks:
        """One more was turned away."""
        return Knocks(self.turned_away + 1, self.first if self.turned_away else at)

    def locked_out(self, at: float) -> bool:
        """Whether it goes on for so long that a person must know."""
        return self.turned_away >= LOCKED_OUT_POSTS and at - self.first >= LOCKED_OUT_SECONDS


NOBODY = Knocks()
