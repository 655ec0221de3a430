import asyncio
import urllib.request

from click.testing import CliRunner

from hivemind_addon.sim.demo import DemoSettings, go_on
from hivemind_addon.sim.exchange import pause
from hivemind_addon.tools.cli import main

AGENTS = 3


def test_each_agent_begins_anew_until_nobody_looks_any_more():
    seen = []

    async def watching(stage, fleet):
        while len(stage.server.requests()) < 4 * AGENTS or not stage.mitmdump.web_url:
            await pause(0.05)
        for url in (stage.mitmdump.web_url, f"http://127.0.0.1:{stage.mitmdump.port}/health"):
            with await asyncio.to_thread(urllib.request.urlopen, url, timeout=20) as page:
                seen.append(page.status)
        seen.append(len(fleet.agents))

    async def bounded():
        async with asyncio.timeout(60):
            await go_on(DemoSettings(agents=AGENTS, turns=1), watching)

    asyncio.run(bounded())
    assert seen == [200, 200, AGENTS]


def test_what_goes_on_for_ever_has_no_results():
    result = CliRunner().invoke(main, ["demo", "--watch", "--json"])
    assert result.exit_code == 2
    assert "leave one of --watch and --json out" in result.stderr
