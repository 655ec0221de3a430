"""Who coordinates, as the engine told last, and until when it is this node.

A node counts its lease by its own clock, from before it asked, and a little less than the engine does: it stops before
another one can begin.
"""

from collections.abc import Callable, Container
from enum import Enum

from hivemind_addon.plugins.cluster.messages import Leased, TakeLease

_NEVER = float("inf")
_MARGIN_S = 0.1


class Heard(Enum):
    """What an answer of the engine means for a node."""

    STALE = "stale"
    """It was long on its way, or the engine has lost its count: it is asked again."""
    HELD = "held"
    """The node's own lease goes on."""
    UNWANTED = "unwanted"
    """The node has a lease for which it has no use: to be given back."""
    GIVEN = "given"
    """A new epoch is the node's."""
    ANOTHER = "another"
    """The lease is `holder`'s, or nobody's."""


class LeaseWatch:
    """Of one node. `ask` is due at each tick; `hear` its answer, or that it `failed`."""

    def __init__(self, *, me: str, lease_s: float, ask_s: float) -> None:
        self.epoch = 0
        """The newest that is known."""
        self.holder = ""
        """Empty: nobody, or nobody known."""
        self.until = -_NEVER
        """The end of the node's own lease."""
        self.remembers: bool | None = None
        """The engine knew of epochs at the last look; None: it was not looked at."""
        self._forgot_at = 0.0
        """When it was first seen not to."""
        self._me = me
        self._lease_s = lease_s
        self._ask_s = ask_s
        self._ask_at = -_NEVER
        self._is_asking = False
        self._did_want = False

    def __repr__(self) -> str:
        return f"<LeaseWatch, epoch {self.epoch} of {self.holder or 'nobody'}>"

    @property
    def others_until(self) -> float:
        """An engine that has forgotten may have given the lease to another one, which ends it by its own clock."""
        return self._forgot_at + self._lease_s

    def ask_at(self, now: float) -> None:
        """Look at it again then, or earlier."""
        self._ask_at = min(self._ask_at, now)

    def ask(self, now: float, *, wants: bool, renews: bool) -> TakeLease | None:
        """As `TakeLease` has it; None: not yet."""
        if now < self._ask_at or self._is_asking:
            return None
        self._is_asking, self._did_want = True, wants
        return TakeLease(epoch=self.epoch, renews=renews, wants=wants, ttl_s=self._lease_s, asked_at=now)

    def failed(self, now: float) -> None:
        """No answer came."""
        self._is_asking = False
        self._ask_at = now + self._ask_s

    def hear(self, answer: Leased, now: float, *, wants: Callable[[], bool], held: Container[int | None]) -> Heard:
        """The answer.

        `wants`: whether the node would coordinate, for all that is known by then. `held`: the epochs in which it does,
        or is about to.
        """
        self._is_asking = False
        self._ask_at = answer.asked_at + self._ask_s
        if answer.forgot and self.remembers is not False:
            self._forgot_at = now
        self.remembers = not answer.forgot
        if answer.epoch < self.epoch:
            return Heard.STALE
        is_known, self.epoch = answer.epoch == self.epoch, answer.epoch
        if answer.holder == self._me:
            is_wanted = not is_known and wants()
            self.holder = answer.holder
            until = answer.asked_at + self._lease_s - _MARGIN_S
            if answer.epoch in held:
                self.until = max(self.until, until)
                return Heard.HELD
            if not is_wanted:
                return Heard.UNWANTED  # what was in this epoch is thrown away
            if now >= until:
                return Heard.STALE
            self.until = until
            return Heard.GIVEN
        if answer.holder or not answer.forgot:
            self.holder = answer.holder
        if not answer.holder and not answer.forgot and not self._did_want:
            self._ask_at = now
        return Heard.ANOTHER

    def drop(self) -> None:
        """The node coordinates no more, whatever the engine thinks."""
        self.until = -_NEVER
