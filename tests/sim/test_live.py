"""Scenarios on a socket: agents that want what those of virtual time want."""

import dataclasses
import random

import msgspec
import pytest

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim import world
from hivemind_addon.sim.agents import Answered
from hivemind_addon.sim.call import Truth
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.library import cases
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.live import LiveFleet, _Books, _Conversation, profile_of_windows
from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.request import facts, input_tokens
from hivemind_addon.sim.route import SimTarget
from hivemind_addon.sim.workload import Crowd, Scenario, turns
from lab.live import scaled, virtual
from tests.cases import each

STRESS = cases()["stress"].scenario
FAN_OUT = cases()["fan-out"].scenario


def answered(output_tokens=50, **usage):
    return Answered("text", usage.pop("input_tokens", 100), output_tokens, **usage)


def test_scaling_divides_every_time_and_no_amount():
    crowd = dataclasses.replace(FAN_OUT.crowds[0], starts_s=(1, 2))
    small = scaled(dataclasses.replace(FAN_OUT, crowds=(crowd,)), 10)
    (fast,) = small.crowds
    assert (fast.starts_s, fast.think_s, fast.latency_s, fast.timeout_s) == ((0.1, 0.2), (0.1, 0.6), 0.15, 60)
    assert fast.tokens_per_s == 600
    assert (fast.agents, fast.turns, fast.output_tokens) == (crowd.agents, crowd.turns, crowd.output_tokens)
    assert {limit.window_s for limit in small.provider.limits} == {6}
    assert [limit.amount for limit in small.provider.limits] == [limit.amount for limit in FAN_OUT.provider.limits]
    assert (small.provider.cache_ttl_s, small.way_s) == (30, 0.001)


def test_a_scaled_turn_is_the_same_turn_in_less_time():
    (slow,), (fast,) = FAN_OUT.crowds, scaled(FAN_OUT, 4).crowds
    for one, other in zip(turns(slow, random.Random(1)), turns(fast, random.Random(1)), strict=True):
        assert (other.prompt_tokens, other.output_tokens) == (one.prompt_tokens, one.output_tokens)
        assert other.service_s == pytest.approx(one.service_s / 4)
        assert other.think_s == pytest.approx(one.think_s / 4)


@each("kind", LimitKind)
def test_unscaled_virtual_time_is_that_of_the_proof(kind):
    assert virtual(STRESS.on(kind), seed=3) == world.run(STRESS.on(kind), seed=3)


def test_the_scheduler_hears_the_scaled_window():
    """Told of a minute it would take a bucket of six seconds for one that refills ten times slower."""
    small = scaled(cases()["replay-11"].scenario, 10).on(LimitKind.BUCKET)
    told, untold = virtual(small, seed=0), world.run(small, seed=0)
    assert told.makespan_s < untold.makespan_s / 2


def test_a_body_has_exactly_the_tokens_that_are_wanted_and_only_grows():
    talk = _Conversation(FAN_OUT.crowds[0], "worker-3", 1)
    first = talk.asked(26_000)
    talk.answered(answered(425))
    second = talk.asked(27_000)
    assert (input_tokens(first), input_tokens(second)) == (26_000, 27_000)
    assert len(first) == 4 * 26_000
    before, after = msgspec.json.decode(first), msgspec.json.decode(second)
    assert after["system"] == before["system"]
    assert after["messages"][:1] == before["messages"]
    assert [message["role"] for message in after["messages"]] == ["user", "assistant", "user"]
    assert len(after["messages"][1]["content"]) == 4 * 425


def test_a_crowd_shares_its_instructions_and_nothing_else():
    one, other = (msgspec.json.decode(_Conversation(FAN_OUT.crowds[0], name, 1).asked(26_000)) for name in "ab")
    assert one["system"] == other["system"]
    assert len(one["system"][0]["text"]) == 4 * 24_000
    assert one["messages"] != other["messages"]


def test_requests_say_what_the_agents_of_virtual_time_say():
    """The provider reads the same facts from a request as virtual time hands to it."""
    theirs = world.World(FAN_OUT, seed=2)._agents
    for ours, other in zip(LiveFleet(FAN_OUT, 2).agents, theirs, strict=True):
        assert ours.name == other.name
        number, turn = 1, next(ours._turns)
        other.turn = next(other.turns)
        assert turn == other.turn
        other.number = number
        other.said = other.jitter.randint(*other.crowd.opening_tokens)
        tokens = FAN_OUT.crowds[0].shared_tokens + ours._said + turn.prompt_tokens
        read = facts(
            SimTarget(SimDialect.MESSAGES), ours._headers(turn, number, tokens), ours._conversation.asked(tokens), 1
        )
        assert read.unfit is None
        assert (read.input_tokens, read.prefixes) == (other.prompt_tokens(turn), other.prefixes(other.turn))
        assert read.stream
        assert read.latency_s == pytest.approx(turn.latency_s, abs=1e-5)
        assert read.interval_s is not None
        assert read.chunks is not None
        assert (read.chunks - 1) * read.interval_s == pytest.approx(turn.generation_s, abs=1e-3)
        assert abs(25 * read.chunks - turn.output_tokens) <= 13


def test_books_take_caches_into_account_and_know_the_ideal():
    books, crowd = _Books(), Crowd("c", 2, shared_tokens=1000, caches=True)
    books.book(crowd, 1500, 0, answered(10, input_tokens=0, written_tokens=1500))
    books.book(crowd, 1600, 0, answered(20, input_tokens=0, cached_tokens=1000, written_tokens=600))
    books.book(crowd, 1700, 1500, answered(30, input_tokens=0, written_tokens=1700))
    assert books.units["sim-1"] == {
        Dimension.REQUESTS: 3,
        Dimension.INPUT_TOKENS: 1500 + 600 + 200,
        Dimension.OUTPUT_TOKENS: 60,
        Dimension.TOTAL_TOKENS: 2300 + 60,
    }
    assert books.ideal.cost == pytest.approx((1500 + 600 + 200) * 1.25 + (1000 + 1500) * 0.1)
    assert books.cost == pytest.approx((1500 + 600 + 1700) * 1.25 + 1000 * 0.1)
    assert books.most_output_tokens == 30


def test_who_has_not_ended_is_lost_and_waste_counts_as_spent():
    crowd = Crowd("agent", 3, 2)
    fleet = LiveFleet(Scenario("small", (crowd,), ProviderSettings(concurrency=2)), 1)
    done, dead, _running = fleet.agents
    done.ended_at = 5.0
    done.turns_s = [(1.0, 2.0), (0.5, 0.5)]
    dead.ended_at, dead.death = 4.0, "status 400"
    truth = Truth(
        **{field.name: 0 for field in dataclasses.fields(Truth)}
        | {"attempts": 9, "by_status": {200: 7, 429: 2}, "wasted_input_tokens": 70, "faults": {}, "agents": {}}
    )
    result = fleet.result(truth, 1)
    assert (result.agents, result.lost, result.attempts, result.breaker_opened) == (3, 2, 9, 1)
    assert result.crowds["agent"].ended_s == (5.0,)
    assert result.deaths == {"status 400": 1}
    assert result.statuses[429] == 2
    assert result.cost == 70
    assert result.bound.bound_s == pytest.approx(4.0)


def test_the_profile_differs_from_the_packaged_one_in_its_windows_only(tmp_path):
    (tmp_path / "anthropic.yaml").write_text(profile_of_windows(7))
    changed = load_profiles(tmp_path).by_name["anthropic"]
    packaged = load_profiles(None).by_name["anthropic"]
    assert {meter.window_s for meter in changed.meters} == {7}
    unchanged = tuple(dataclasses.replace(meter, window_s=60) for meter in changed.meters)
    assert dataclasses.replace(changed, meters=unchanged) == packaged
