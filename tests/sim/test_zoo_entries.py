"""The entries themselves: enough, of one name each, and each may be done by somebody."""

import random

from hivemind_addon.api.ticket import Demand
from hivemind_addon.lab.sim.closed_loop import Oracle, Order
from hivemind_addon.lab.sim.zoo_entries import ZOO, entries


def test_there_are_more_than_fifty_of_one_name_each():
    assert len(ZOO) == len({entry.name for entry in ZOO}) >= 50


def test_entries_are_found_by_parts_of_their_names():
    assert [entry.name for entry in entries(["hour", "cap-2"])] == [
        entry.name for entry in ZOO if "hour" in entry.name or "cap-2" in entry.name
    ]
    assert entries() == list(ZOO)


def test_each_gateway_is_new_and_lets_the_largest_request_pass():
    for entry in ZOO:
        first, second = entry.gateway(random.Random(0)), entry.gateway(random.Random(0))
        tokens = max(entry.crowd.tokens)
        demand = Demand(input_tokens=tokens, total_tokens=tokens)
        assert first.wait_s(0, demand) == 0, entry.name
        first.take(0, demand)
        assert not {id(rule.limiter) for rule in first.rules} & {id(rule.limiter) for rule in second.rules}, entry.name


def test_who_may_ask_the_limiters_is_refused_by_chance_alone_and_loses_nobody():
    for entry in ZOO:
        gateway = entry.gateway(random.Random(0))
        run = Oracle(gateway, entry.crowd, seed="0", order=Order.OLDEST).run()
        assert (run.refused, run.lost, run.struck > 0) == (0, 0, bool(gateway.chances)), entry.name
        assert run.delivered == entry.crowd.agents * entry.crowd.turns, entry.name
        assert run.longest_s < 0.95 * entry.crowd.patience_s, entry.name
        foreknowing = Oracle(entry.gateway(random.Random(0)), entry.crowd, seed="0", order=Order.LEFT).run()
        assert run.time_s <= 1.1 * foreknowing.time_s, f"{entry.name}: its goal hangs on knowing latencies beforehand"
