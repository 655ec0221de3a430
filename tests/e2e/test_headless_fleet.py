"""Agents that say that they run headless, behind a bare `mitmdump -s hivemind_addon`: no cut kills one of them."""

import asyncio
import dataclasses
import ssl
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import pytest

from hivemind_addon.lab.sim.agents import HOST, Route
from hivemind_addon.lab.sim.certificate import write_certificates
from hivemind_addon.lab.sim.live import LiveFleet
from hivemind_addon.lab.sim.mitmdump import running_mitmdump
from hivemind_addon.lab.sim.provider import ProviderSettings
from hivemind_addon.lab.sim.server import SimServer
from hivemind_addon.lab.sim.workload import Crowd, Scenario

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("live")]

CUTS = {"stream-close": 0.05, "stream-reset": 0.05}
CLIENTS = {
    "claude-p": {"user-agent": "claude-cli/2.1.330 (external, sdk-cli)", "x-app": "cli"},
    "codex-exec": {"user-agent": "codex_exec/0.169.0 (Debian 12.0.0; x86_64) unknown", "originator": "codex_exec"},
    "claude": {"user-agent": "claude-cli/2.1.330 (external, cli)", "x-app": "cli"},
}
EACH = 10
SCENARIO = Scenario(
    "headless",
    tuple(
        Crowd(
            name,
            EACH,
            turns=8,
            think_s=(0.0, 0.05),
            latency_s=0.02,
            output_tokens=(200, 500),
            tokens_per_s=12_000,
            opening_tokens=(250, 250),
            streamed=True,
            timeout_s=600,
            retries=2,
        )
        for name in CLIENTS
    ),
    ProviderSettings(faults=CUTS, tokens_per_chunk=25),
)
LONGEST_S = 240


async def test_one_answer_in_ten_is_cut_and_no_headless_agent_is_lost(tmp_path):
    certificates = write_certificates(tmp_path, HOST, datetime.now(UTC))
    tls = (str(certificates.certificate), str(certificates.key))
    server = SimServer(SCENARIO.provider, seed="cuts", tls=tls)
    await server.start()
    confdir = tmp_path / "mitmproxy"
    sets = [
        f"hivemind_redirect={HOST}={server.host}:{server.port}",
        f"ssl_verify_upstream_trusted_ca={certificates.authority}",
    ]
    fleet = LiveFleet(SCENARIO, 1)
    try:
        async with running_mitmdump(confdir, sets) as mitmdump, AsyncExitStack() as stack:
            trust = ssl.create_default_context(cafile=confdir / "mitmproxy-ca-cert.pem")
            route = Route(trust, proxy=f"127.0.0.1:{mitmdump.port}")
            routes = {name: dataclasses.replace(route, says=says) for name, says in CLIENTS.items()}
            connecting = (agent.connected(routes[agent.crowd.name], stack) for agent in fleet.agents)
            await fleet.run(await asyncio.gather(*connecting), LONGEST_S)
            guard_trips = mitmdump.guard_trips
    finally:
        await server.stop()
    result = fleet.result(server.truth(), 0)
    lost = {name: crowd.lost for name, crowd in result.crowds.items()}
    assert (lost["claude-p"], lost["codex-exec"], guard_trips) == (0, 0, 0), result.deaths
    assert lost["claude"] > 0, "nobody is watched over a cut, or there was none"
    assert sum(server.truth().faults.get(name, 0) for name in CUTS) >= EACH
