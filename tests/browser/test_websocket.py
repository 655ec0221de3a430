"""What a person sees of a WebSocket's turns in mitmweb."""

import re

import pytest
from playwright.sync_api import Page, expect

from hivemind_addon.sim.faults import ErrorStatus
from hivemind_addon.sim.provider import ProviderSettings
from lab.running_server import running_server
from tests.browser.conftest import look, running_mitmweb
from tests.e2e.proxy import for_host, in_flight, options, profiles, queued
from tests.socket_client import SocketClient, create

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]


def test_the_connections_flow_tells_its_turns_and_a_frame_reads_as_a_conversation(tmp_path, page: Page):
    with running_server(ProviderSettings(websocket_s=3600, chunks=3)) as server:
        mine = for_host(server.port, extends="openai", slots=1, more="websocket: turns\n")
        settings = (*profiles(tmp_path, mine=mine), *options(keep="off"), "--set", "view_filter=~websocket")
        with running_mitmweb(tmp_path / "conf", *settings, modes=("regular",)) as web:
            proxy = web.proxy
            page.goto(web.url)
            page.get_by_role("link", name="Options").first.wait_for()
            with (
                SocketClient("127.0.0.1", server.port, proxy=proxy.port, user="one") as one,
                SocketClient("127.0.0.1", server.port, key="slow", proxy=proxy.port, user="two") as two,
            ):
                server.script("k", [ErrorStatus(429, retry_after_s=0.01)])
                first = one.ask("Which is the capital of France?")["response"]["id"]
                server.script("k", [ErrorStatus(500)])
                assert one.ask("And of Spain?", previous_response_id=first)["status"] == 429
                row = page.locator(".flow-table tbody tr", has_text="turn 2")
                comment = row.locator(".col-comment")
                expect(comment).to_contain_text(re.compile(r"shed\s+its client sends all of it anew \[\w+\] turn 2"))
                expect(comment).to_contain_text(re.compile(r"delivered\s.* turn 1$"))
                two.send(**create("hold", model="m"))
                two.answer()
                proxy.wait_for(lambda state: not in_flight(state) and not queued(state), "the end")
                row.click()
                page.get_by_text("WebSocket", exact=True).first.click()
                expect(page.locator(".flow-detail")).to_contain_text("Which is the capital of France?")
                look(page, "mitmweb-websocket")
