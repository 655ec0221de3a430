"""What a coordinator remembers of members that do not come back is bounded."""

import random

from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.retry import History
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.plugins.cluster.coordinator import Coordinator
from hivemind_addon.plugins.cluster.messages import Flying, Join, Uses
from tests.kernel.samples import ticket as make_ticket


def test_processes_that_die_for_weeks_do_not_make_what_is_kept_grow():
    coordinator = Coordinator(epoch=1, scheduler=Scheduler(rng=random.Random(0)), send=lambda name, message: None)
    for number in range(300):
        ticket = make_ticket(f"t-{number}", at=float(number))
        flying = (Flying(ticket, History().started(), ticket.demand, float(number)),) if number % 2 else ()
        join = Join((), flying, (), (Uses(ticket.pool, PoolSettings()),), ())
        coordinator.join(f"process-{number}", join, 0.0, float(number))
        coordinator.lose(f"process-{number}", number + 0.5)
        coordinator.poll(number + 0.5)
    kept = coordinator.keep(300.0)
    assert len(kept.members) == 100
    assert [len(one.presumed) for one in kept.members.values()] == [1] * 100
    assert "process-299" in kept.members, "the newest are remembered"
    assert coordinator.scheduler.is_idle
