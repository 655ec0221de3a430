"""The account block of a pool: the provider refuses the account for hours or days.

    OPEN     ── hit: a refusal that ends with a window, not with a pause ──► STANDING
    STANDING ── the end has come, or five minutes have passed ──► PROBING: a request goes first
    PROBING  ── that request is answered, or a person lifts the block ──► OPEN
    PROBING  ── that request is refused again ──► STANDING
    PROBING  ── that request ends in any other way ──► PROBING: the next request goes first

A ticket is held if its client will still wait at the block's stated end. All other clients get the end at once: a
client held for hours only times out. The stated end may be wrong, or the reason may go earlier (somebody buys credit):
so a request tests the block every five minutes. Requests in flight at the hit prove nothing.

A refusal with a long wait that does not name the account may concern its request alone. It begins a block when another
request meets the same. If a test then passes before the end, such waits are no longer believed.
"""

import math

from hivemind_addon.kernel.values.decision import ActiveBlock
from hivemind_addon.kernel.values.snapshot import AccountBlockView
from hivemind_addon.kernel.values.ticket import Attempt

_NEVER = float("inf")
_SHORTEST_S = 1.0
_LONGEST_S = 32 * 86_400.0
_SAME_S = 2.0
"""Ends that differ by less are equal: each answer rounds them anew."""
_LOOK_S = 300.0
"""Interval of the requests that test the block."""
_LOOK_SOON_S = 60.0
"""The same for a block that two refusals show, and no words."""


class AccountBlock:
    """Account block of a pool."""

    def __init__(self) -> None:
        self.closure: ActiveBlock | None = None
        """The block, until a request sent after the end is answered; None: all may go. Changed by this class only."""
        self._looks_at = _NEVER
        """When the next request tests the block, at the latest at the end."""
        self._look_s = _LOOK_S
        self._probe: str | None = None
        """The ticket that goes first."""
        self.suspected_by: tuple[str, float] | None = None
        """Request and instant of a refusal with a long wait that does not name the account; None: another request has
        passed since."""
        self.is_believed = True
        """Whether long waits that do not name the account have proved true, as far as is known."""

    def stands(self, now: float) -> ActiveBlock | None:
        """The block's reason and end; None if no block stands, as far as is known."""
        return self.closure if self.closure is not None and now < self.closure.until else None

    @property
    def passes_at(self) -> float:
        """When the block lets an attempt go: always, at the next test, or not before the test is answered."""
        if self.closure is None:
            return -_NEVER
        return self._looks_at if self._probe is None else _NEVER

    def ends_at(self, now: float) -> float:
        """When the block lets all attempts go, as stated; infinite: when the request that goes first is answered."""
        if self.closure is None:
            return -_NEVER
        return self.closure.until if self._probe is None or now < self.closure.until else _NEVER

    def is_confirmed_by(self, attempt: Attempt, now: float) -> bool:
        """Whether a refusal with a long wait concerns the account: it met another request too, sent after the first."""
        ticket, before = attempt.ticket, self.suspected_by
        request = ticket.request_hash or ticket.id
        if before is None or self.closure is not None:
            self.suspected_by = request, now
            return self.closure is not None
        return before[0] != request and attempt.admitted_at >= before[1]

    def passed(self, attempt: Attempt) -> None:
        """Note an accepted attempt: a long wait reported before concerned its request alone."""
        if self.suspected_by is not None and attempt.admitted_at >= self.suspected_by[1]:
            self.suspected_by = None

    def hit(self, reason: str, account_block_s: float, now: float, *, is_named: bool = True) -> float | None:
        """Note that the provider refuses the account for so many seconds; 0: no end stated. Returns an end if new.

        `is_named`: the refusal names the account.
        """
        self._look_s = _LOOK_S if is_named else _LOOK_SOON_S
        has_end = account_block_s != 0
        lasts_s = min(max(account_block_s, _SHORTEST_S), _LONGEST_S) if math.isfinite(account_block_s) else _SHORTEST_S
        until = now + (lasts_s if has_end else _LOOK_S)
        known = self.stands(now)
        if known is not None and (not has_end or (known.is_end_told and until <= known.until + _SAME_S)):
            self._looks_at = min(known.until, now + self._look_s)
            return None
        self.closure, self._probe = ActiveBlock(reason, until, is_end_told=has_end, of_account=is_named), None
        self._looks_at = min(until, now + self._look_s)
        return until

    def lift(self) -> bool:
        """End the block at a person's command. True if there was a block."""
        was_blocked = self.closure is not None
        self.closure = self._probe = None
        return was_blocked

    def sent(self, ticket_id: str) -> None:
        """Let an admitted attempt test the block, if there is a block."""
        if self.closure is not None:
            self._probe = ticket_id

    def answered(self, ticket_id: str, now: float) -> bool:
        """Note an answer that is no refusal. True if the answer ends the block."""
        if self.closure is None or self._probe != ticket_id:
            return False
        self.is_believed &= self._look_s == _LOOK_S or now >= self.closure.until
        self.closure = self._probe = None
        return True

    def ended(self, ticket_id: str) -> None:
        """Note an attempt's end; if a test proved nothing, the next attempt tests."""
        if self._probe == ticket_id:
            self._probe = None

    def view(self, now: float) -> AccountBlockView | None:
        """The block for views; None if there is none."""
        if self.closure is None:
            return None
        closure = self.closure
        return AccountBlockView(closure.reason, max(0.0, closure.until - now), of_account=closure.of_account)
