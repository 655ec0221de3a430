"""The live screen, with a feed that a test speaks for: keys, questions, and what goes out."""

import asyncio

import pytest
from msgspec.structs import replace

from hivemind_addon.api.command import Cancel, CommandReply, MoveToFront, Pause, Resume, SetLimit, SetPriority
from hivemind_addon.api.snapshot import PriorityView
from hivemind_addon.api.ticket import PoolKey, Priority
from hivemind_addon.tools.dash.feed import ProxyGone
from hivemind_addon.tools.dash.live import _AT_ONCE, Top
from tests.tools.dash.samples import KEY, PROXY, flying, pool, report, session, waiting

SMALL = PoolKey("api.test", "key-1", "small")
FLEET = report(
    pool(
        tickets=(
            flying("f-1", agent="lead"),
            waiting("w-1", agent="lead", position=1),
            waiting("w-2", agent="zed", position=2),
        )
    ),
    pool(SMALL),
    sessions=[session("lead"), session("zed"), session("nobody")],
)


class FakeFeed:
    """What it is told to say, and what it heard."""

    def __init__(self):
        self.queue = asyncio.Queue()
        self.sent = []
        self.closed = False
        self.done = True

    async def news(self):
        while not self.closed:
            yield await self.queue.get()
            self.queue.task_done()

    async def send(self, command):
        self.sent.append(command)
        return CommandReply(self.done, f"did {type(command).__name__}")

    def close(self):
        self.closed = True


class Desk:
    """A person at the screen."""

    def __init__(self, app, pilot, feed):
        self.app, self.pilot, self.feed = app, pilot, feed

    async def hears(self, *news):
        for one in news:
            self.feed.queue.put_nowait(one)
        async with asyncio.timeout(120):
            await self.feed.queue.join()
        await self.pilot.pause()
        await self.pilot.pause()

    async def press(self, *keys):
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def write(self, text):
        await self.press(*text, "enter")

    def shows(self, part="picture"):
        widget = self.app.screen_stack[0].query_one(f"#{part}")
        return "\n".join(strip.text for strip in (widget.render_line(row) for row in range(widget.size.height)))

    @property
    def selected(self):
        return self.app._look.selected


@pytest.fixture
async def desk(clock):
    feed = FakeFeed()
    app = Top(feed, clock=clock)
    async with app.run_test(size=(100, 30)) as pilot:
        made = Desk(app, pilot, feed)
        await made.hears(FLEET)
        yield made
    assert feed.closed


async def test_the_fleet_is_shown_and_the_keys_are_named(desk):
    assert "api.test/key-1/large" in desk.shows()
    assert "● 1 ○ #1 rate limit" in desk.shows()
    assert "q quit" in desk.shows("said")


async def test_the_cursor_moves_over_pools_and_agents_and_stays_where_it_was(desk):
    assert desk.selected == f"pool {KEY}"
    await desk.press("j", "down")
    assert desk.selected == "agent lead"
    await desk.press("k", "up", "up", "up")
    assert desk.selected == f"pool {KEY}"
    await desk.press("G")
    assert desk.selected == "agent zed"
    await desk.hears(replace(FLEET, stats=replace(FLEET.stats, sessions=(session("aaa"), *FLEET.stats.sessions))))
    assert desk.selected == "agent zed"
    await desk.hears(report(pool()))
    assert desk.selected == f"pool {KEY}", "what is over is selected no more"
    await desk.hears(report())
    assert desk.selected is None
    await desk.press("j", "f", "c", "plus", "enter", "w")


async def test_enter_lists_requests_and_hides_them(desk):
    await desk.press("G", "enter")
    assert "w-2 · turn" in desk.shows()
    await desk.press("enter")
    assert "w-2" not in desk.shows()


async def test_p_pauses_the_selected_pool_or_all_and_resumes_what_is_paused(desk):
    await desk.press("p", "G", "p", "P")
    assert desk.feed.sent == [Pause(str(KEY)), Pause("*"), Pause("*")]
    desk.feed.sent.clear()
    await desk.hears(report(pool(paused=True), pool(SMALL)))
    await desk.press("p", "j", "p", "P")
    assert desk.feed.sent == [Resume(str(KEY)), Pause(str(SMALL)), Pause("*")]
    await desk.hears(report(pool(paused=True), pool(SMALL, paused=True)))
    await desk.press("P")
    assert desk.feed.sent[-1] == Resume("*")
    assert "did Resume" in desk.shows("said")


async def test_l_asks_for_a_limit(desk):
    for words, command in {"12": SetLimit(12, str(KEY)), "auto": SetLimit(None, str(KEY))}.items():
        await desk.press("l")
        await desk.write(words)
        assert desk.feed.sent.pop() == command
    for words in ("many", ""):
        await desk.press("l")
        await desk.write(words)
    await desk.press("l", "q", "escape")
    assert desk.feed.sent == []
    assert desk.app.is_running, "a letter in a question is no command"


async def test_f_moves_the_first_that_waits(desk):
    await desk.press("j", "j", "j", "f")
    assert "nothing waits" in desk.shows("said")
    await desk.press("G", "f")
    assert desk.feed.sent == [MoveToFront("w-2")]


async def test_plus_and_minus_move_an_agent_between_classes(desk):
    await desk.press("plus")
    assert "select an agent" in desk.shows("said")
    await desk.press("G", "plus", "minus", "equals_sign")
    assert desk.feed.sent == [
        SetPriority("zed", Priority.HIGH),
        SetPriority("zed", Priority.LOW),
        SetPriority("zed", None),
    ]
    await desk.hears(replace(FLEET, snapshot=replace(FLEET.snapshot, priorities=(PriorityView("zed", Priority.LOW),))))
    await desk.press("minus")
    assert desk.feed.sent[-1] == SetPriority("zed", Priority.LOW), "there is none below"


async def test_c_cancels_after_a_yes_only(desk):
    await desk.press("j", "j", "c")
    await desk.press("n")
    assert desk.feed.sent == []
    await desk.press("c", "y")
    assert desk.feed.sent == [Cancel("f-1"), Cancel("w-1")]
    assert "2 of 2 done" in desk.shows("said")
    desk.feed.done = False
    await desk.press("G", "c", "y")
    assert "did Cancel" in desk.shows("said")


async def test_many_commands_wait_for_reports_in_between(desk):
    crowd = report(pool(tickets=tuple(waiting(f"t{n}", position=n) for n in range(_AT_ONCE + 5))))
    await desk.hears(crowd)
    await desk.press("G", "c", "y")
    assert len(desk.feed.sent) == _AT_ONCE
    await desk.hears(crowd)
    assert len(desk.feed.sent) == _AT_ONCE + 5


async def test_s_sorts_and_slash_filters(desk):
    await desk.press("s")
    assert "by who goes next" in desk.shows()
    await desk.press("slash")
    await desk.write("zed")
    assert "1 agent with “zed”" in desk.shows()
    await desk.press("slash", "x", "escape")
    assert "1 agent with “zed”" in desk.shows(), "a question that is left changes nothing"
    await desk.press("escape")
    assert "3 agents" in desk.shows()


async def test_w_leads_to_mitmweb(desk, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    opened = []
    monkeypatch.setattr(desk.app, "open_url", opened.append)
    await desk.press("G", "w")
    url = "http://127.0.0.1:8081/#/flows?s=~comment%20w-2"
    assert url in desk.shows("said")
    assert opened == [], "no browser may take the terminal"
    monkeypatch.setenv("DISPLAY", ":0")
    await desk.press("w")
    assert opened == [url]
    await desk.press("k", "w")
    assert opened[1] == "http://127.0.0.1:8081/#/flows?s=~comment%20%22nobody%22"
    await desk.hears(replace(FLEET, proxy=replace(PROXY, web="")))
    await desk.press("w")
    assert "has no page" in desk.shows("said")


async def test_help_lists_the_keys_until_any_is_pressed(desk):
    await desk.press("question_mark")
    assert len(desk.app.screen_stack) == 2
    await desk.press("q")
    assert len(desk.app.screen_stack) == 1
    assert desk.app.is_running


@pytest.mark.parametrize("key", ["question_mark", "l", "slash"])
async def test_reports_go_on_behind_a_question(desk, key):
    await desk.press(key)
    await desk.hears(report(pool(queued=77)))
    assert "77 queued" in desk.shows()
    await desk.press("escape")
    assert len(desk.app.screen_stack) == 1


async def test_a_proxy_that_goes_leaves_its_last_picture_and_comes_back(desk, clock):
    await desk.hears(ProxyGone("proxy gone, waiting for it to come back"))
    clock.advance(7)
    await desk.hears(ProxyGone("proxy gone, waiting for it to come back"))
    assert "proxy gone, waiting for it to come back (7 s)" in desk.shows()
    assert "api.test/key-1/large" in desk.shows()
    await desk.hears(FLEET)
    assert "gone" not in desk.shows()


async def test_a_proxy_that_was_never_there_is_waited_for(clock):
    feed = FakeFeed()
    async with Top(feed, clock=clock).run_test(size=(60, 10)) as pilot:
        made = Desk(pilot.app, pilot, feed)
        assert "looking for the proxy" in made.shows()
        await made.hears(ProxyGone("nobody there"))
        assert "nobody there" in made.shows()


async def test_a_new_size_is_a_new_picture(desk):
    await desk.pilot.resize_terminal(60, 20)
    await desk.pilot.pause()
    assert "starts in" in desk.shows()
    assert " cost" not in desk.shows()
    await desk.pilot.resize_terminal(10, 2)
    await desk.pilot.pause()


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_it_is_left_with_q_or_an_interrupt(clock, key):
    feed = FakeFeed()
    app = Top(feed, clock=clock)
    async with app.run_test() as pilot:
        await pilot.press(key)
        await pilot.pause()
        assert not app.is_running
