"""To wait for a lease: ask again and again, in one place of the line."""

import secrets
from collections.abc import Callable
from contextlib import suppress

from hivemind_addon.system.clock import Clock
from hivemind_addon.tools.lease.model import Lease, LeaseError, LeaseStore, NotGranted, Request


def wait_for_lease(
    store: LeaseStore,
    request: Request,
    *,
    clock: Clock,
    wait_s: float | None,
    pause: Callable[[float], bool],
    tell: Callable[[NotGranted], None] = lambda _: None,
) -> Lease | NotGranted:
    """The lease, or why there was none in `wait_s`; None: as long as it takes. Blocks; raises LeaseError.

    `pause(seconds)` sleeps and says whether to give up, as `threading.Event().wait` does. `tell` hears of it once if
    there is something to wait for.
    """
    if wait_s is not None and wait_s <= 0:
        return store.acquire(request, clock.monotonic())
    until = float("inf") if wait_s is None else clock.monotonic() + wait_s
    waiter, told = secrets.token_hex(8), False
    try:
        while True:
            answer = store.acquire(request, now := clock.monotonic(), waiter=waiter)
            if isinstance(answer, Lease):
                return answer
            if not told:
                told = True
                tell(answer)
            left_s = until - now
            if left_s <= 0 or pause(min(answer.retry_in_s, left_s)):
                store.leave(waiter)
                return answer
    except BaseException:
        with suppress(LeaseError):
            store.leave(waiter)
        raise
