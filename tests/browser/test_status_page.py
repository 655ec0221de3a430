"""The status page in a real browser: it lives, it is legible, it shows names as text, and it survives the proxy."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from hivemind_addon.core.ticket import Dimension
from hivemind_addon.sim.limits import Limit, LimitKind
from hivemind_addon.sim.provider import Latency, ProviderSettings
from hivemind_addon.sim.server import running_server
from tests.browser.conftest import look
from tests.e2e.proxy import free_port, running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

XSS = "<img src=x onerror=alert(1)><script>document.title='taken'</script>"
PROFILE = """
extends: anthropic
hosts: ["127.0.0.1:{port}"]
concurrency: {{initial: 3, maximum: 4}}
"""
RULES = """
everyone: {budgets: [{usd: 2, per: day}]}
agents: {lead: {budgets: [{tokens: 20000, per: hour}]}}
"""
LIMITS = (
    Limit(Dimension.REQUESTS, 12, window_s=9, kind=LimitKind.WINDOW),
    Limit(Dimension.INPUT_TOKENS, 40_000, window_s=60),
    Limit(Dimension.OUTPUT_TOKENS, 8_000, window_s=60),
)


class Fleet:
    """Agents that ask through one proxy, each in a thread of its own."""

    def __init__(self, proxy, url):
        self.proxy = proxy
        self._url = url
        self._threads = ThreadPoolExecutor(40)
        self.asked = []

    @property
    def page(self):
        return f"http://127.0.0.1:{self.proxy.port}/"

    def ask(self, agent, session="", parent="", text="hello"):
        self.asked.append(self._threads.submit(self._ask, agent, session, parent, text))

    def _ask(self, agent, session, parent, text):
        headers = {"x-api-key": "sk-fleet", "content-type": "application/json"}
        headers |= {"x-claude-code-session-id": session} if session else {}
        headers |= {"x-parent-session-id": parent} if parent else {}
        content = {
            "model": "claude-sonnet-4-5",
            "max_tokens": 64,
            "stream": True,
            "messages": [{"role": "user", "content": text}],
        }
        with self.proxy.client(quote(agent, safe=""), timeout=120) as client:
            return client.post(f"{self._url}/v1/messages", content=json.dumps(content), headers=headers)

    def let_run(self, agents=5):
        """A team with sub-agents, more than may go at once."""
        self.ask("lead", "s-lead", text="plan the work " * 200)
        for number in range(1, agents):
            self.ask(f"worker-{number}", f"s-{number}", "s-lead", "do a part of it " * 300)
            self.ask(f"worker-{number}", f"s-{number}-tests", f"s-{number}", "write its tests " * 100)
        for number in range(3):
            self.ask(f"reviewer-{number + 1}", f"s-r{number}", text="look at it " * 200)
        self.ask(XSS, "s-x")

    def finish(self):
        for one in self.asked:
            assert one.result(90).status_code == 200
        self._threads.shutdown()


@contextmanager
def fleet(folder):
    settings = ProviderSettings(limits=LIMITS, latency=Latency(median_s=0.4), chunks=12, interval_s=0.25)
    with running_server(settings) as server:
        (folder / "profiles").mkdir(exist_ok=True)
        (folder / "profiles" / "sim.yaml").write_text(PROFILE.format(port=server.port))
        (folder / "agents.yaml").write_text(RULES)
        sets = [f"hivemind_profiles={folder / 'profiles'}", f"hivemind_agents={folder / 'agents.yaml'}"]
        with running(folder, *(word for one in sets for word in ("--set", one))) as proxy:
            yield Fleet(proxy, server.url)


def test_it_lives_while_requests_are_held(page, tmp_path):
    errors = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    with fleet(tmp_path) as team:
        page.goto(team.page)
        expect(page.locator("#state")).to_have_text("serving")
        expect(page.locator("#pools")).to_contain_text("No model call yet")
        team.let_run()
        expect(page.locator("#queue")).to_contain_text("concurrency limit")
        expect(page.locator("#agents")).to_contain_text("worker-3")
        expect(page).to_have_title(re.compile(r"hivemind \(\d+ waiting\)"))
        delivered = page.locator("#totals > div", has_text="delivered").locator("b")
        expect(delivered).not_to_have_text("0")
        look_at_all_sizes(page)
        team.finish()
        expect(delivered).to_have_text("13", timeout=5000)
        expect(page.locator("#queue")).to_be_hidden()
        expect(page.locator("#budgets")).to_contain_text("everyone, per day")
        # Names are text, whatever stands in them.
        expect(page.locator("#agents")).to_contain_text("<script>")
        assert page.locator("main img, main script").count() == 0
        expect(page).to_have_title("hivemind")
    assert not errors


def look_at_all_sizes(page):
    """Screenshots; and what a person cannot read is a failure."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width, height in ((1280, 1100), (360, 780)):
            page.set_viewport_size({"width": width, "height": height})
            look(page, f"status-page-{scheme}-{width}")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        ground, text = (
            page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color")
        )
        assert (_brightness(ground) > _brightness(text)) is (scheme == "light")
    page.set_viewport_size({"width": 1280, "height": 800})


def _brightness(colour):
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3])


def test_a_proxy_that_dies_is_gone_and_comes_back(page, tmp_path, monkeypatch):
    port = free_port()
    monkeypatch.setattr("tests.e2e.proxy.free_port", lambda: port)
    with fleet(tmp_path) as team:
        page.goto(team.page)
        expect(page.locator("#state")).to_have_text("serving")
        team.proxy.stop()
        expect(page.locator("#state")).to_have_text("gone")
        expect(page.locator("#about")).to_contain_text("does not answer")
        look(page, "status-page-gone")
    with fleet(tmp_path):
        expect(page.locator("#state")).to_have_text("serving", timeout=15_000)


def test_another_site_can_neither_read_it_nor_frame_it(page, tmp_path):
    with fleet(tmp_path) as team, running_server() as other:
        page.goto(f"{other.url}/")
        outcome = page.evaluate(
            """async (url) => {
                const read = await fetch(url + "report.json").then((answer) => answer.text(), () => "refused");
                const frame = document.createElement("iframe");
                frame.src = url;
                await new Promise((done) => { frame.onload = done; document.body.append(frame); });
                let inside = "";
                try { inside = frame.contentDocument.body.textContent; } catch { inside = "refused"; }
                return [read, inside];
            }""",
            team.page,
        )
        assert "refused" in outcome[0]
        assert "hivemind" not in outcome[1]
