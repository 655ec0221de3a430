"""What a person sees and does in mitmweb."""

import base64
import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import look, running_mitmweb
from tests.e2e.origin import PLAIN, running_origin
from tests.e2e.proxy import PATIENCE_S
from tests.e2e.test_hold import House, is_idle

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

_numbers = itertools.count(1)
PRICES = "prices: {claude-sonnet-4-5: {input: 3, output: 15}}\n"


@pytest.fixture(scope="module")
def stand(tmp_path_factory):
    """A mitmweb that lets one request at a time go to an origin, which answers when a test says so."""
    folder = tmp_path_factory.mktemp("seen")
    with running_origin() as origin:
        profile = f"extends: anthropic\nhosts: ['127.0.0.1:{origin.port}']\nconcurrency: {{initial: 1, maximum: 1}}\n"
        (folder / "profiles").mkdir()
        (folder / "profiles" / "one.yaml").write_text(profile + PRICES)
        settings = ("--set", f"hivemind_profiles={folder / 'profiles'}", "--set", "view_filter=! ~d probe.test")
        modes = ("regular", f"reverse:{origin.url}")
        with running_mitmweb(folder / "conf", *settings, modes=modes) as web, ThreadPoolExecutor(20) as threads:
            try:
                yield web, House(web.proxy, origin, threads)
            finally:
                origin.open()


class Person:
    """Somebody before mitmweb, and the agents meanwhile."""

    def __init__(self, page: Page, house: House):
        self.page = page
        self.house = house
        self._filler = None

    def row(self, text: str):
        return self.page.locator(".flow-table tbody tr", has_text=text)

    def comment(self, agent: str):
        """Of the agent's row."""
        return self.row(agent).locator(".col-comment")

    def fill(self):
        """Something else runs, so that all that comes is held."""
        answer, self._filler = self.house.fill()
        return answer

    def hold(self, *agents: str):
        """One request of each agent, held."""
        return [self.house.hold(agent, **as_agent(agent))[0] for agent in agents]

    def free(self):
        self._filler.go.set()

    def serve(self):
        """Let everything go that is there or comes, until nothing is left."""

        def is_served(state):
            for request in self.house.origin.arrived:
                request.go.set()
            return is_idle(state)

        self.house.proxy.wait_for(is_served, "the end of all requests")

    def do(self, command: str):
        """Type it into the command bar; what it says."""
        bar = self.page.get_by_placeholder("Enter command")
        if not bar.is_visible():
            self.page.get_by_role("link", name="Options").first.click()
            self.page.get_by_text("Display Command Bar").click()
        bar.fill(command)
        bar.press("Enter")
        return self.page.locator(".command-result")


def as_agent(name: str):
    words = base64.b64encode(f"{name}:x".encode()).decode()
    return {"headers": {"proxy-authorization": f"Basic {words}"}}


@pytest.fixture
def agents():
    """Names that no other test uses."""
    number = next(_numbers)
    return [f"agent-{number}{letter}" for letter in "abc"]


@pytest.fixture
def person(stand, page: Page):
    """Before mitmweb's page, with an empty list; what a test leaves is let go."""
    web, house = stand
    house.origin.arrived.clear()
    page.goto(web.url)
    page.get_by_role("link", name="Options").first.wait_for()
    page.wait_for_function("() => document.cookie.includes('_xsrf=')")  # it comes with the page's WebSocket
    clear = "async () => fetch('clear', {method: 'POST', headers: {'X-XSRFToken': document.cookie.match(/_xsrf=([^;]+)/)[1]}})"
    page.evaluate(clear)
    made = Person(page, house)
    yield made
    made.serve()


def test_held_flows_are_orange_and_say_why(person, agents):
    person.fill()
    answers = person.hold(*agents)
    for place, agent in enumerate(agents, start=1):
        expect(person.comment(agent)).to_contain_text(
            re.compile(rf"^{agent}\s+queued, {place}(st|nd|rd)\s.*concurrency limit")
        )
        expect(person.row(agent)).to_have_class("intercepted has-request")
        expect(person.row(agent).locator(".marker")).to_have_text("⏳")
        expect(person.row(agent).locator(".fa-pause")).to_be_visible()
    expect(person.comment("python-httpx").first).to_contain_text("in flight")
    look(person.page, "mitmweb-held")
    person.free()
    for agent, answer in zip(agents, answers, strict=True):
        person.house.let_go(agent)
        assert answer.result(PATIENCE_S).content == PLAIN
        expect(person.comment(agent)).to_contain_text("delivered")
        expect(person.comment(agent)).to_contain_text("9 in + 2 out, $0.0001")
        expect(person.row(agent).locator(".marker")).to_have_text("")
    person.house.assert_idle()


@pytest.mark.parametrize("width", [1280, 1600])
def test_the_list_is_for_the_comment_and_its_columns_are_titled(person, agents, width):
    """The URL had three quarters of it, the comment 150 pixels."""
    person.page.set_viewport_size({"width": width, "height": 800})
    person.fill()
    person.hold(agents[0])
    comment = person.comment(agents[0])
    expect(comment).to_contain_text("queued, 1st")
    titles = person.page.locator("th.col-comment")
    shown = titles.evaluate("title => getComputedStyle(title, '::before').content")
    assert shown.strip('"').split() == ["Agent", "State", "Start", "Limit", "or", "use"]
    assert titles.bounding_box()["width"] > 0.6 * width
    assert person.row(agents[0]).locator(".col-path").bounding_box()["width"] < 0.3 * width
    is_whole = "cell => cell.scrollWidth <= cell.clientWidth"
    assert comment.evaluate(is_whole), comment.text_content()


def test_filters_find_what_is_held(person, agents):
    person.fill()
    answers = person.hold(*agents)
    search = person.page.get_by_placeholder("Search")
    rows = person.page.locator(".flow-table tbody tr.has-request")
    for words, count in (
        ("~comment queued", 3),
        (f"~comment {agents[1]}", 1),
        ("~marker hourglass", 3),
    ):
        search.fill(words)
        expect(rows).to_have_count(count)
    search.fill("~comment queued")
    person.free()
    person.house.let_go(agents[0])
    answers[0].result(PATIENCE_S)
    expect(rows).to_have_count(1)  # the second goes, the third is still held
    person.serve()
    expect(rows).to_have_count(0)


def test_resume_moves_a_flow_to_the_front_and_not_past_the_limit(person, agents):
    person.fill()
    answers = person.hold(*agents)
    person.row(agents[2]).click()
    person.page.get_by_role("button", name="Resume").click()
    expect(person.comment(agents[2])).to_contain_text("queued, 1st")
    expect(person.comment(agents[0])).to_contain_text("queued, 2nd")
    assert len(person.house.names) == 1
    person.free()
    for agent in (agents[2], agents[0], agents[1]):
        person.house.let_go(agent)
    for answer in answers:
        assert answer.result(PATIENCE_S).content == PLAIN
    assert person.house.names[1:] == [agents[2], agents[0], agents[1]]


def test_resume_all_breaks_no_limit_either(person, agents):
    person.fill()
    answers = person.hold(*agents)
    person.page.get_by_text("Resume All").click()
    expect(person.page.locator("tr.intercepted")).to_have_count(0)
    for agent in agents:
        expect(person.comment(agent)).to_contain_text("queued, ")
    assert len(person.house.names) == 1
    person.serve()
    assert [answer.result(PATIENCE_S).content for answer in answers] == [PLAIN] * 3


def test_abort_ends_a_held_request_and_its_client_does_not_come_back(person, agents):
    person.fill()
    first, second = person.hold(*agents[:2])
    person.row(agents[0]).click()
    person.page.get_by_role("button", name="Abort").click()
    refused = first.result(PATIENCE_S)
    assert refused.status_code == 400
    assert refused.headers["x-should-retry"] == "false"
    expect(person.comment(agents[0])).to_contain_text("cancelled by a person")
    expect(person.comment(agents[1])).to_contain_text("queued, 1st")
    person.free()
    person.house.let_go(agents[1])
    assert second.result(PATIENCE_S).content == PLAIN
    assert agents[0] not in person.house.names
    person.house.assert_idle()


def test_a_running_request_ends_when_it_is_deleted_or_cancelled(person, agents):
    for agent, end in zip(agents, ("button", "command"), strict=False):
        answer = person.house.ask(agent, **as_agent(agent))
        expect(person.comment(agent)).to_contain_text("in flight")
        if end == "button":
            person.row(agent).click()
            person.page.get_by_role("button", name="Delete").click()
        else:
            person.do(f"hivemind.cancel '~comment {agent}'")
        assert answer.result(PATIENCE_S).status_code == 400
    person.house.assert_idle()


def test_a_streamed_answer_is_read_while_it_comes_and_its_story_afterwards(person, agents):
    answer = person.house.ask(agents[0], stream=True, **as_agent(agents[0]))
    person.row(agents[0]).click()
    person.page.get_by_text("Response", exact=True).click()
    page = person.page.locator(".contentview pre, .codeeditor, .contentview")
    expect(page.first).to_contain_text("one")
    expect(page.first).not_to_contain_text("one two")
    person.house.let_go(agents[0])
    answer.result(PATIENCE_S)
    expect(page.first).to_contain_text("one two")
    expect(page.first).to_contain_text("stopped: end_turn")
    expect(page.first).to_contain_text("delivered")
    expect(person.comment(agents[0])).to_contain_text(re.compile(r"delivered\s.*9 in \+ 2 out"))
    look(person.page, "mitmweb-story")


def test_a_persons_own_comment_stays(person, agents):
    person.fill()
    (answer,) = person.hold(agents[0])
    person.row(agents[0]).click()
    person.page.locator(".nav-tabs-sm").get_by_text("Comment", exact=True).click()
    field = person.page.locator("section .inline-input")
    row = person.row("look at this")
    for _ in range(12):  # mitmweb drops what is typed when the flow is drawn anew meanwhile: a person types it again
        field.click()
        expect(field).to_be_editable()  # before that mitmweb takes letters for shortcuts
        person.page.keyboard.press("ControlOrMeta+a")
        person.page.keyboard.type("look at this")
        person.page.keyboard.press("Enter")
        with suppress(AssertionError):
            expect(row).to_have_count(1, timeout=5_000)
            break
    expect(row).to_have_count(1)
    person.free()
    person.house.let_go(agents[0])
    answer.result(PATIENCE_S)
    expect(row.locator(".col-status")).to_have_text("200")
    expect(row).to_have_count(1)


def test_a_bad_value_in_the_options_dialog_is_rolled_back_with_our_line(person):
    person.page.get_by_role("link", name="Options").first.click()
    person.page.get_by_text("Display Event Log").click()
    person.page.get_by_text("Edit Options").click()
    field = person.page.locator("input[name=hivemind_keep]")
    field.fill("plenty")
    expect(person.page.locator(".has-error input[name=hivemind_keep]")).to_be_visible()
    look(person.page, "mitmweb-options")
    person.page.locator(".modal-header .close").click()
    log = person.page.locator(".eventlog")
    expect(log).to_contain_text("hivemind_keep: 'plenty' is no amount of flows")
    assert person.house.proxy.probe("option", name="hivemind_keep") == "500 flows, 256 MB"
    person.page.get_by_text("Edit Options").click()
    field.fill("300 flows")
    expect(person.page.locator(".has-error input[name=hivemind_keep]")).to_have_count(0)
    person.page.locator(".modal-header .close").click()
    proxy = person.house.proxy
    proxy.wait_for(lambda _: proxy.probe("option", name="hivemind_keep") == "300 flows", "the new value")
    person.page.get_by_text("Display Event Log").click()


def test_the_command_bar_steers(person, agents):
    said = person.do("hivemind.pause")
    expect(said).to_contain_text("paused")
    (answer,) = person.hold(agents[0])
    expect(person.comment(agents[0])).to_contain_text(re.compile(r"queued, 1st\s.*paused by a person"))
    expect(person.do("hivemind.status")).to_contain_text("1 queued (paused by a person")
    look(person.page, "mitmweb-commands")
    expect(person.do("hivemind.limit none")).to_contain_text("neither a number")
    expect(person.do("hivemind.resume")).to_contain_text("resumed")
    person.house.let_go(agents[0])
    assert answer.result(PATIENCE_S).content == PLAIN
    person.fill()
    first, second = person.hold(*agents[1:])
    person.do(f"hivemind.front '~comment {agents[2]}'")
    expect(person.comment(agents[2])).to_contain_text("queued, 1st")
    person.do(f"hivemind.cancel '~comment {agents[1]}'")
    assert first.result(PATIENCE_S).status_code == 400
    person.free()
    person.house.let_go(agents[2])
    assert second.result(PATIENCE_S).content == PLAIN
    person.house.assert_idle()
