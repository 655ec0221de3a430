"""Real agents, real proxy, simulated providers: a small fleet finishes its tasks."""

import asyncio
import os

import pytest

from fleets.fleet import FleetSettings, Route, run_fleet
from fleets.programs import NotInstalled, Programs, install
from fleets.proxy import running_proxy

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fleet")]

# Strict enough that it would be refused if it did not wait, and too small for more than a minute.
SMALL = FleetSettings(
    claudes=2,
    codexes=1,
    lines=3,
    tokens_per_minute=90_000,
    concurrency=2,
    latency_s=0.1,
    interval_s=0.005,
    agent_max_s=240,
)


@pytest.fixture(scope="module")
def programs() -> Programs:
    try:
        return install()
    except NotInstalled as error:
        if os.environ.get("HIVEMIND_REQUIRE_AGENTS") == "1":
            pytest.fail(str(error))
        pytest.skip(f"{SMALL.claudes} Claude Code and {SMALL.codexes} Codex do not run: {error}")


async def test_a_small_fleet_finishes(programs):
    result = await run_fleet(SMALL, Route.WHOLE, programs, seed=3)
    lost = {agent.name: agent.exit.output for agent in result.agents if not agent.finished}
    assert not lost
    assert len(result.agents) == 3
    assert result.guard_trips == 0
    assert result.limited <= 2
    assert result.books.attempts == result.attempts
    # Of answers that were cut the addon may know less than the provider; of complete ones it knows all.
    counted = result.books.input_tokens + result.books.output_tokens
    assert result.completed_tokens <= counted <= result.tokens


async def test_a_killed_proxy_comes_back_on_its_port(tmp_path):
    async with asyncio.timeout(300), running_proxy(tmp_path, ()) as proxy:
        before = await proxy.report()
        await proxy.kill()
        after = await proxy.report()
        assert (before.proxy.port, before.snapshot.counters) == (after.proxy.port, after.snapshot.counters)
        assert before.proxy.pid != after.proxy.pid
        assert proxy.back_after_s > 0
