"""Whether who is told to go next does, and how far the told time is off, over whole scenarios in virtual time."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from statistics import median

import pytest

from hivemind_addon.kernel.values.events import AttemptStarted, Submitted
from hivemind_addon.proxy.api.pool_words import with_words
from hivemind_addon.sim.library import cases
from hivemind_addon.sim.world import World

LOOKS_EVERY_S = 1.0


class Watched(World):
    """Looks once a second, as views do, and keeps what was told of each ticket until it goes."""

    def __init__(self, scenario, *, seed):
        super().__init__(scenario, seed=seed)
        self.next_was = Counter()
        """Whether the ticket that was told to be next went next, where none came in between."""
        self.told_and_waited = []
        self.named = Counter()
        """Whether those that wait for a limit were told which."""
        self._next = {}
        self._told = {}
        drain = self.scheduler.drain_events

        def watched():
            events = drain()
            for event in events:
                self._hear(event)
            return events

        self.scheduler.drain_events = watched
        self.agenda.at(0, self._look)

    def _hear(self, event):
        if isinstance(event, Submitted):
            self._next.clear()
        elif isinstance(event, AttemptStarted):
            if (told := self._next.pop(event.pool, None)) is not None:
                self.next_was[told == event.ticket_id] += 1
            for at, starts_in_s in self._told.pop(event.ticket_id, ()):
                self.told_and_waited.append((starts_in_s, event.at - at))

    def _look(self):
        for pool in map(with_words, self.scheduler.snapshot(self.now).pools):
            waiting = [view for view in pool.tickets if view.position]
            assert [view.position for view in waiting] == list(range(1, len(waiting) + 1))
            starts = [view.starts_in_s for view in waiting if view.starts_in_s is not None]
            assert all(first <= second for first, second in pairwise(starts)), "places are the order of the starts"
            if waiting:
                self._next[pool.key] = waiting[0].ticket.id
            for view in waiting:
                assert view.why
                self.named[view.limit is not None] += view.reason in ("rate limit", "concurrency limit")
                if view.starts_in_s is not None:
                    self._told.setdefault(view.ticket.id, []).append((self.now, view.starts_in_s))
        self.agenda.after(LOOKS_EVERY_S, self._look)


@pytest.mark.parametrize(
    ("name", "off_s", "off_soon_s"),
    [
        pytest.param("micro-50", 1, 1, id="requests of a bucket"),
        # 1.4 to 2.4 s of waits of 33 s, by the seed: the smallest of those who come later goes before.
        pytest.param("two-hundred", 3, 0.5, id="tokens, and many who come later"),
        pytest.param("token-bucket", 1, 0.5, id="a limit that no header tells"),
        pytest.param("replay-11", 1, 1, id="failures and retries"),
        pytest.param("priorities", 5, 2, id="classes, and who comes later goes first"),
    ],
)
def test_who_is_told_to_be_next_goes_next_and_about_when_it_is_told(name, off_s, off_soon_s):
    world = Watched(cases()[name].scenario, seed=1)
    world.run()
    assert world.next_was[True] >= 15
    assert world.next_was[False] <= max(2, 0.03 * world.next_was[True])
    assert median(abs(told - waited) for told, waited in world.told_and_waited) <= off_s
    soon = [(told, waited) for told, waited in world.told_and_waited if told <= 10]
    assert median(abs(told - waited) for told, waited in soon) <= off_soon_s
    assert world.named[False] <= 0.02 * world.named[True]


def test_looking_changes_nothing():
    scenario = cases()["replay-11"].scenario
    looked, unseen = Watched(scenario, seed=2).run(), World(scenario, seed=2).run()
    # Idle time is measured from event to event, and a look is an event.
    assert replace(looked, idle_s=0.0) == replace(unseen, idle_s=0.0)
