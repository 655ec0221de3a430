"""Wait in line for a lease, in whichever store."""

import secrets
from collections.abc import Callable
from contextlib import suppress

from hivemind_addon.plugins.fleets.leases.model import Lease, LeaseError, LeaseStore, NotGranted, Request, StoreGone
from hivemind_addon.proxy.system.clock import Clock

_TRY_AGAIN_S = 1.0


def wait_for_lease(
    store: LeaseStore,
    request: Request,
    *,
    clock: Clock,
    wait_s: float | None,
    pause: Callable[[float], bool],
    tell: Callable[[NotGranted], None] = lambda _: None,
    tell_gone: Callable[[StoreGone], None] = lambda _: None,
) -> Lease | NotGranted:
    """The lease, or why there was none in `wait_s`; None: as long as it takes. Blocks; raises LeaseError.

    `pause(seconds)` sleeps and says whether to give up, as `threading.Event().wait` does. `tell` hears of it once if
    there is something to wait for. A store that is gone meanwhile is waited for as well, which `tell_gone` hears of
    each time that it goes; one that is not there at the beginning is an error.
    """
    if wait_s is not None and wait_s <= 0:
        return store.acquire(request, store.instant(clock))
    until = float("inf") if wait_s is None else store.instant(clock) + wait_s
    waiter = secrets.token_hex(8)
    waiting: NotGranted | None = None
    is_gone = False
    try:
        while True:
            now = store.instant(clock)
            try:
                answer = store.acquire(request, now, waiter=waiter)
            except StoreGone as error:
                if waiting is None:
                    raise
                if not is_gone:
                    tell_gone(error)
                is_gone = True
                if now >= until or pause(min(_TRY_AGAIN_S, until - now)):
                    raise
                continue
            is_gone = False
            if isinstance(answer, Lease):
                return answer
            if waiting is None:
                tell(answer)
            waiting = answer
            left_s = until - now
            if left_s <= 0 or pause(min(answer.retry_in_s, left_s)):
                store.leave(waiter)
                return answer
    except BaseException:
        with suppress(LeaseError):
            store.leave(waiter)
        raise
