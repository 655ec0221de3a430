import pytest

from hivemind_addon.api.events import TicketEnded
from hivemind_addon.proxy.mitm.replays import Replays
from tests.mitm.captured import answered
from tests.mitm.samples import make_flow, make_intake

HOOKS = ("request", "response", "error")


@pytest.fixture
async def replays():
    made = Replays()
    made.intake = make_intake()
    return made


def replayed(url="https://api.anthropic.com/v1/messages"):
    flow = make_flow(url)
    flow.is_replay = "request"
    return flow


def ends(replays):
    return [event.end for event in replays.intake.runtime.events if isinstance(event, TicketEnded)]


async def test_a_replay_is_scheduled_and_its_hooks_go_with_it(replays):
    assert not any(hasattr(replays, hook) for hook in HOOKS)
    replays.hear()
    flow = replayed()
    await replays.request(flow)
    assert [pool.in_flight for pool in replays.intake.driver.snapshot().pools] == [1]
    answered(flow)
    replays.response(flow)
    assert ends(replays) == ["delivered"]
    assert not any(hasattr(replays, hook) for hook in HOOKS)


async def test_a_replay_without_an_answer_holds_no_slot(replays):
    replays.hear()
    one, other = replayed(), replayed()
    await replays.request(one)
    await replays.request(other)
    replays.error(one)
    assert hasattr(replays, "request"), "the other one still runs"
    replays.error(other)
    assert not any(hasattr(replays, hook) for hook in HOOKS)
    assert [pool.in_flight for pool in replays.intake.driver.snapshot().pools] == [0]


async def test_other_flows_pass_by_meanwhile(replays):
    replays.hear()
    for flow in (make_flow(), replayed("https://other.test/"), answered(replayed())):
        await replays.request(flow)
    assert not replays.intake.live
