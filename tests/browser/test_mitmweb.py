"""What a person sees and does in mitmweb."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Web, look, running_mitmweb
from tests.e2e.origin import PLAIN, running_origin
from tests.e2e.test_hold import House, queued

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def stand(tmp_path_factory):
    """A mitmweb that lets one request at a time go to an origin, which answers when a test says so."""
    folder = tmp_path_factory.mktemp("seen")
    with running_origin() as origin:
        profile = (
            f"extends: anthropic\nhosts: ['127.0.0.1:{origin.port}']\nconcurrency: {{initial: 1, maximum: 1}}\n"
            "prices: {claude-sonnet-4-5: {input: 3, output: 15}}\n"
        )
        (folder / "profiles").mkdir()
        (folder / "profiles" / "one.yaml").write_text(profile)
        settings = ("--set", f"hivemind_profiles={folder / 'profiles'}")
        modes = ("regular", f"reverse:{origin.url}")
        with running_mitmweb(folder / "conf", *settings, modes=modes) as web, ThreadPoolExecutor(20) as threads:
            try:
                yield web, House(web.proxy, origin, threads)
            finally:
                origin.open()


@pytest.fixture
def house(stand) -> House:
    _, made = stand
    made.origin.arrived.clear()
    return made


@pytest.fixture
def list_page(stand, page: Page) -> Page:
    """Mitmweb's page with an empty list."""
    web, _ = stand
    page.goto(web.url)
    page.get_by_role("link", name="Options").first.wait_for()
    return page


def ask_as(agent):
    import base64

    return {"headers": {"proxy-authorization": "Basic " + base64.b64encode(f"{agent}:x".encode()).decode()}}


def test_explore(house, list_page):
    answer, filler = house.fill()
    held = house.hold("a", **ask_as("agent-7")) + house.hold("b", **ask_as("agent-8"))
    list_page.wait_for_timeout(2500)
    look(list_page, "held")
    print(house.proxy.log)
    print(list_page.locator("table").first.inner_html()[:3000])
    list_page.locator("tr", has_text="agent-7").first.click()
    list_page.wait_for_timeout(1000)
    look(list_page, "held-detail")
    list_page.locator("tr", has_text="in flight").first.click()
    list_page.wait_for_timeout(500)
    list_page.get_by_text("Response", exact=True).first.click()
    list_page.wait_for_timeout(1500)
    look(list_page, "streaming")
    filler.go.set()
    list_page.wait_for_timeout(1500)
    look(list_page, "delivered")
    house.let_go("a")
    house.let_go("b")
    for one in held:
        one.result(30)
    list_page.wait_for_timeout(1500)
    look(list_page, "all")
    print(house.proxy.log[-3000:])
