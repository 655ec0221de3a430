"""The scheduler: the only writer of core state. Pure: takes `now` and an rng, answers values and events.

    submit ──► queued ──poll──► Admitted ──settle──► Finished | GiveUp          (the ticket ends)
                 ▲                             └───► Backoff ──┐
                 └──────────── same place ─────────────────────┘
    queued ──poll, at shed_at or when stopping──► Shed                          (the ticket ends)
    queued ──cancel──►                                                          (the ticket ends)

Call `poll(now)` after anything that changed state, then arm one timer at `next_wakeup()`.
"""

import random
from collections.abc import Mapping

from hivemind_addon.core.decision import Admitted, Shed, Verdict
from hivemind_addon.core.events import Event
from hivemind_addon.core.pool import PoolSettings
from hivemind_addon.core.snapshot import Snapshot
from hivemind_addon.core.ticket import Demand, Hints, Outcome, PoolKey, Reservation, Ticket, Usage


class Scheduler:
    """Admits tickets of many pools. O(log n) per call in the number of queued tickets of one pool."""

    def __init__(self, *, rng: random.Random) -> None: ...

    def account_of(self, credential: str) -> str:
        """The account to use for a credential's hash: itself, or the first one that the same organisation used."""

    def submit(self, ticket: Ticket, settings: PoolSettings, now: float) -> None:
        """Queue a ticket. `settings` count when its pool is new. Raises ContractError when its id is known."""

    def poll(self, now: float) -> list[Admitted | Shed]:
        """Admit and shed what is due. Calling it twice at one `now` changes nothing the second time."""

    def next_wakeup(self) -> float | None:
        """The next instant at which `poll` could do something if nothing else happens; later than the last poll."""

    def observe(self, reservation: Reservation, hints: Hints, now: float) -> None:
        """A response's head arrived: meters learn."""

    def settle(
        self,
        reservation: Reservation,
        outcome: Outcome,
        now: float,
        *,
        usage: Usage | None = None,
        charged: Demand | None = None,
        client_saw_bytes: bool = False,
    ) -> Verdict:
        """End an attempt, exactly once (ContractError on the second time), and judge what follows.

        `charged` is what the provider really takes for it (None: what was reserved). SUCCESS and CANCELLED
        finish the ticket. Anything else is Backoff where it is retryable, the client saw nothing, and the
        policy and the deadline allow; else GiveUp.
        """

    def cancel(self, ticket_id: str, now: float) -> bool:
        """The client of a queued ticket went. False when it is unknown, in flight or ended (settle that one)."""

    def expedite(self, ticket_id: str, now: float) -> bool:
        """Move a queued ticket to the front of its pool, without breaking any limit."""

    def close(self, now: float) -> None:
        """Stop: admit nothing more; the next polls shed what is queued, and what is submitted later, at once."""

    def bypass(self, key: PoolKey, change: int) -> None:
        """Attempts that go past the scheduler (guard trips) begin (+1) or end (-1); they count as in flight."""

    def limit_of(self, key: PoolKey) -> int:
        """The pool's last concurrency limit; 1 when the pool is unknown."""

    def note(self, event: Event) -> None:
        """Put an event of the outside (a guard trip, an oddity) into the same list, in order."""

    def drain_events(self) -> list[Event]:
        """Events since the last call, oldest first. The caller owns the list."""

    def snapshot(self, now: float) -> Snapshot:
        """Everything at `now`."""
