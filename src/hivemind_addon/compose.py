"""The only place where objects meet."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hivemind_addon.core.events import Event
from hivemind_addon.core.scheduler import Scheduler
from hivemind_addon.core.watchdog import FirstBytes
from hivemind_addon.observe.log import LogObserver
from hivemind_addon.observe.story import Stories
from hivemind_addon.observe.tally import Tally
from hivemind_addon.runtime.clock import SystemClock
from hivemind_addon.runtime.driver import Driver
from hivemind_addon.runtime.guard import Guard
from hivemind_addon.wire.estimate import Estimator
from hivemind_addon.wire.tokenizer import Tokenizer

EVENTS_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Runtime:
    """What lives as long as the proxy's process; a reloaded script adopts it."""

    driver: Driver
    guard: Guard
    estimator: Estimator
    tokenizer: Tokenizer
    first_bytes: FirstBytes
    events: deque[Event]
    """The newest events, oldest first."""
    tally: Tally
    stories: Stories


def make_runtime(*, observers: tuple[Callable[[Event], None], ...] = ()) -> Runtime:
    """A scheduler and what drives it, for the running event loop."""
    events: deque[Event] = deque(maxlen=EVENTS_KEPT)
    tokenizer, tally, stories = Tokenizer(), Tally(), Stories()
    driver = Driver(
        scheduler=Scheduler(rng=random.Random()),  # noqa: S311 - jitter, no secret
        clock=SystemClock(),
        observers=[events.append, LogObserver(), tally, stories, *observers],
    )
    return Runtime(
        driver=driver,
        guard=Guard(driver),
        estimator=Estimator(tokenizer),
        tokenizer=tokenizer,
        first_bytes=FirstBytes(),
        events=events,
        tally=tally,
        stories=stories,
    )
