"""The live screen, with a feed that a test speaks for: keys, questions, and what goes out."""

import asyncio
from datetime import UTC

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.values.command import Cancel, MoveToFront, Pause, Resume, SetLimit, SetPriority
from hivemind_addon.kernel.values.snapshot import MeterView, PriorityView
from hivemind_addon.kernel.values.ticket import PoolKey, Priority
from hivemind_addon.proxy.api.command import CommandReply
from hivemind_addon.tools.dash.feed import ProxyGone
from hivemind_addon.tools.dash.live import _AT_ONCE, Top
from hivemind_addon.tools.dash.picture import PictureLook
from tests.tools.dash.record import recorded
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

    def shows(self, part=None):
        """The screen below all questions as text, or one of its parts."""
        base = self.app.screen_stack[0]
        strips = base._compositor.render_strips(base.size)
        if part:
            region = base.query_one(f"#{part}").region
            strips = [strip.crop(region.x, region.right) for strip in strips[region.y : region.bottom]]
        return "\n".join(strip.text.rstrip() for strip in strips)

    @property
    def selected(self):
        return self.app._selected or None

    def row(self, name):
        """A line of the agents' table, with one blank between words."""
        (line,) = (line for line in self.shows("agents").splitlines() if f" {name} " in line)
        return " ".join(line.split())


@pytest.fixture
async def desk(clock):
    feed = FakeFeed()
    app = Top(feed, clock=clock)
    async with app.run_test(size=(100, 30)) as pilot:
        made = Desk(app, pilot, feed)
        await made.hears(FLEET)
        yield made
    assert feed.closed


async def test_a_first_pool_with_lines_below_it_is_selected(clock):
    feed = FakeFeed()
    app = Top(feed, clock=clock)
    async with app.run_test(size=(100, 30)) as pilot:
        desk = Desk(app, pilot, feed)
        await desk.hears(report(), report(pool(in_flight=4, maximum_from="ulimit -n, now 256")))
        assert "our maximum: raise ulimit -n, now 256" in desk.shows("pools")
        await desk.press("p")
    assert feed.sent == [Pause(str(KEY))]


async def test_the_fleet_is_shown_and_the_keys_are_named(desk):
    assert "api.test/key-1/large" in desk.shows()
    assert desk.row("lead").startswith("1st lead ○ rate limit (1 in flight) ? 3s")
    assert "q quit" in desk.shows("said")


async def test_the_cursor_moves_over_pools_and_agents_and_stays_where_it_was(desk):
    assert desk.selected == f"pool {KEY}"
    await desk.press("j", "down")
    assert desk.selected == "agent lead"
    await desk.press("k", "up", "up", "up")
    assert desk.selected == f"pool {KEY}"
    await desk.press("G", "k")
    assert desk.selected == "agent zed"
    await desk.hears(replace(FLEET, stats=replace(FLEET.stats, sessions=(session("aaa"), *FLEET.stats.sessions))))
    assert desk.selected == "agent zed"
    await desk.press("k", "k", "k", "g")
    assert desk.selected == f"pool {KEY}"
    await desk.hears(report(pool(SMALL)))
    assert desk.selected == f"pool {SMALL}", "what is over is selected no more"
    await desk.hears(report())
    assert desk.selected is None
    await desk.press("j", "f", "c", "plus", "enter", "w", "G", "g")


async def test_enter_lists_requests_and_hides_them(desk):
    await desk.press("G", "k", "enter")
    assert "└ w-2" in desk.shows()
    await desk.press("enter")
    assert "w-2" not in desk.shows()


async def test_p_pauses_the_selected_pool_or_all_and_resumes_what_is_paused(desk):
    await desk.press("p", "G", "p", "n")
    assert desk.feed.sent == [Pause(str(KEY))]
    assert "nothing was paused" in desk.shows("said"), "it hurts everybody, so it is asked once more"
    await desk.press("p", "y", "P", "y")
    assert desk.feed.sent == [Pause(str(KEY)), Pause("*"), Pause("*")]
    desk.feed.sent.clear()
    await desk.hears(report(pool(paused=True), pool(SMALL)))
    await desk.press("g", "p", "j", "p", "P", "y")
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
    await desk.press("G", "f")
    assert "nothing waits" in desk.shows("said")
    await desk.press("k", "f")
    assert desk.feed.sent == [MoveToFront("w-2")]


async def test_plus_and_minus_move_an_agent_between_classes(desk):
    await desk.press("plus")
    assert "select an agent" in desk.shows("said")
    await desk.press("G", "k", "plus", "minus", "equals_sign")
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
    await desk.press("j", "c", "y")
    assert "did Cancel" in desk.shows("said")


async def test_many_commands_wait_for_reports_in_between(desk):
    crowd = report(pool(tickets=tuple(waiting(f"t{n}", position=n) for n in range(_AT_ONCE + 5))))
    await desk.hears(crowd)
    await desk.press("G", "c", "y")
    assert len(desk.feed.sent) == _AT_ONCE
    await desk.hears(crowd)
    assert len(desk.feed.sent) == _AT_ONCE + 5


async def test_s_sorts_and_a_click_on_a_title_does(desk):
    assert "by who goes next" in desk.shows()
    await desk.press("s")
    assert "by active first" in desk.shows()
    table = desk.app.query_one("#agents")
    (at,) = (line.index("waited") for line in desk.shows("agents").splitlines()[:1])
    await desk.pilot.click("#agents", offset=(at, 0))
    await desk.pilot.pause()
    assert "by longest wait" in desk.shows()
    assert table.cursor_row == 0


async def test_a_click_selects_and_a_second_one_lists_requests(desk):
    await desk.pilot.click("#agents", offset=(20, 2))
    await desk.pilot.pause()
    assert desk.selected == "agent zed"
    await desk.pilot.click("#agents", offset=(20, 2))
    await desk.pilot.pause()
    assert "└ w-2" in desk.shows()
    await desk.pilot.click("#pools", offset=(5, 1))
    await desk.pilot.pause()
    assert desk.selected == f"pool {SMALL}"


async def test_slash_filters_with_every_letter(desk):
    await desk.press("slash", "z", "e")
    assert "1 agent with “ze”" in desk.shows()
    assert "show only: ze" in desk.shows()
    await desk.press("d", "enter", "f")
    assert desk.feed.sent == [MoveToFront("w-2")], "it stands, and letters are keys again"
    assert "show only" not in desk.shows()
    await desk.press("slash", "q", "escape")
    assert "3 agents" in desk.shows()
    assert desk.app.is_running, "a letter in it is no command"
    await desk.press("slash", *"lead", "enter")
    assert "1 agent with “lead”" in desk.shows()
    await desk.press("escape")
    assert "3 agents" in desk.shows()


async def test_commands_are_found_by_their_names(desk):
    async def do(words):
        await desk.press("ctrl+p", *words)
        await desk.pilot.pause(0.5)  # it searches in a thread of its own
        await desk.press("down", "enter")
        await desk.pilot.pause()

    await desk.press("G", "k")
    names = {command.title for command in desk.app.get_system_commands(desk.app.screen)}
    assert names >= {f"Pause {KEY}", f"Cap {SMALL}", "Pause or resume all pools", "Move w-2 of zed to the front"}
    assert names >= {"Raise the priority of zed", "Cancel 1 request of zed", "Sort by cost", "Quit"}
    await do("Move w-2")
    assert desk.feed.sent == [MoveToFront("w-2")]
    await do("Cancel 1")
    await desk.press("y")
    assert desk.feed.sent[-1] == Cancel("w-2")
    await do("Sort by cost")
    assert "by cost" in desk.shows()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 38), (200, 60)])
async def test_recorded_fleets_are_readable_on_every_screen(clock, golden, width, height):
    shown = []
    for name in ("night", "incident"):
        feed = FakeFeed()
        app = Top(feed, clock=clock, look=PictureLook(zone=UTC))
        async with app.run_test(size=(width, height)) as pilot:
            made = Desk(app, pilot, feed)
            await made.hears(recorded(name))
            shown.append(f"# {name}\n\n{made.shows()}")
    golden(f"top-{width}x{height}.txt", "\n\n".join(shown))


async def test_many_pools_leave_room_for_the_agents(desk):
    many = [pool(PoolKey(f"host-{number:02}.test", "k", "m"), queued=number) for number in range(40)]
    await desk.hears(report(*many, sessions=[session(str(number)) for number in range(9)]))
    assert desk.row("8").startswith("8 · s · idle")
    assert desk.selected == "pool host-39.test/k/m"
    await desk.press("end", "g", *["j"] * 30)
    assert "host-09.test" in desk.shows("pools"), "what is selected is scrolled to"


async def test_pools_share_the_room_that_there_is(desk):
    meters = tuple(MeterView(f"meter-{number}", "bucket", 10, 5, 1) for number in range(6))
    two = [pool(meters=meters, queued=2), pool(PoolKey("b.test", "k", "m"), meters=meters)]
    await desk.pilot.resize_terminal(80, 24)
    await desk.hears(report(*two, sessions=[session(str(n)) for n in range(9)]))
    first, _, second = desk.shows().partition("b.test")
    assert 0 <= first.count("meter-") - second.count("meter-") <= 1
    assert "meter-1" in first


async def test_what_is_old_is_faint(desk):
    def faint():
        strips = desk.app.screen._compositor.render_strips()
        return [
            "dim" in str(segment.style) for strip in strips for segment in strip if segment.text.startswith("  1st")
        ]

    assert not any(faint())
    await desk.hears(ProxyGone("proxy gone"))
    assert faint()
    assert all(faint())


async def test_a_report_that_changes_little_changes_little(desk):
    """What stands is not drawn anew: no row is made, none goes, and the place that was scrolled to stays."""
    crowd = [replace(waiting(f"t{n}", agent=f"a{n}", name=f"a{n}", position=n + 1), starts_in_s=n) for n in range(90)]
    await desk.hears(report(pool(tickets=tuple(crowd), queued=90)))
    table = desk.app.query_one("#agents")
    await desk.press("G", *["k"] * 20)
    selected, scrolled, keys = desk.selected, table.scroll_offset, list(table.rows)
    await desk.hears(report(pool(tickets=tuple(replace(one, waited_s=9.0) for one in crowd), queued=90)))
    assert (desk.selected, table.scroll_offset, list(table.rows)) == (selected, scrolled, keys)
    moved = tuple(replace(one, position=91 - one.position, starts_in_s=90 - one.starts_in_s) for one in crowd)
    await desk.hears(report(pool(tickets=moved, queued=90)))
    assert desk.selected == selected, "who is selected stays so, wherever its row goes"
    assert f" {selected.removeprefix('agent ')} " in desk.shows("agents"), "and is to be seen"
    await desk.hears(report(pool(tickets=moved[:3], queued=3)))
    assert table.row_count == 3


async def test_w_leads_to_mitmweb(desk, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    opened = []
    monkeypatch.setattr(desk.app, "open_url", opened.append)
    await desk.press("G", "k", "w")
    url = "http://127.0.0.1:8081/#/flows?s=~comment%20w-2"
    assert url in desk.shows("said")
    assert opened == [], "no browser may take the terminal"
    monkeypatch.setenv("DISPLAY", ":0")
    await desk.press("w")
    assert opened == [url]
    await desk.press("j", "w")
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


@pytest.mark.parametrize("key", ["question_mark", "l"])
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
