import pytest
from mitmproxy.addons.view import View
from mitmproxy.test import taddons

from hivemind_addon.proxy.mitm.retention import Keep
from hivemind_addon.proxy.mitm.screen import Screen
from hivemind_addon.proxy.runtime.beat import BEATS_PER_S
from tests.mitm.captured import answered
from tests.mitm.samples import make_flow, make_intake


@pytest.fixture
async def intake():
    return make_intake(keep=Keep(1))


@pytest.fixture
def view(intake):
    with taddons.context(made := View()):
        yield made


async def test_finished_flows_leave_and_nothing_beats_after_the_end(intake, view):
    screen = Screen(view, intake)
    for _ in range(3):
        flow = answered(make_flow())
        flow.live = False
        view.add([flow])
        screen.came(flow)
    for _ in range(3 * BEATS_PER_S):
        screen._beat.beat()
    assert len(view) == 1
    screen.came(flow)
    assert "running" in repr(screen)
    screen.stop()
    assert "at rest" in repr(screen)


@pytest.mark.parametrize("does", ["update", "remove"])
async def test_what_a_person_does_to_a_held_flow_is_heard(intake, view, monkeypatch, does):
    screen = Screen(view, intake)
    exchange = intake.intake(make_flow())
    nudged = []
    monkeypatch.setattr(intake, "nudge", nudged.append)
    view.add([exchange.flow, make_flow()])
    getattr(view, does)([exchange.flow])
    assert nudged == [exchange.flow]
    screen.stop()


async def test_live_flows_are_looked_at_while_there_is_a_screen(intake, view):
    screen = Screen(view, intake)
    intake.intake(make_flow())
    assert "running" in repr(screen)
    screen.stop()
