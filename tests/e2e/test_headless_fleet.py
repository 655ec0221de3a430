"""Agents that say that they run headless, behind a bare `mitmdump -s hivemind_addon`: no cut kills one of them."""

import asyncio
import dataclasses
import ssl
from collections import Counter
from datetime import UTC, datetime

import pytest

from hivemind_addon.lab.sim.agents import HOST, AgentState, Habits, Route, SimAgent
from hivemind_addon.lab.sim.certificate import write_certificates
from hivemind_addon.lab.sim.mitmdump import running_mitmdump
from hivemind_addon.lab.sim.provider import ProviderSettings
from hivemind_addon.lab.sim.server import SimServer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("live")]

CUTS = {"stream-close": 0.05, "stream-reset": 0.05}
HABITS = Habits(
    turns=8,
    opening_chars=1000,
    prompt_chars=(100, 400),
    think_s=(0.0, 0.05),
    latency_s=(0.0, 0.05),
    chunks=(8, 20),
    interval_s=0.002,
    streamed=1.0,
)
CLIENTS = {
    "claude -p": {"user-agent": "claude-cli/2.1.330 (external, sdk-cli)", "x-app": "cli"},
    "codex exec": {"user-agent": "codex_exec/0.169.0 (Debian 12.0.0; x86_64) unknown", "originator": "codex_exec"},
    "claude": {"user-agent": "claude-cli/2.1.330 (external, cli)", "x-app": "cli"},
}
EACH = 10
LONGEST_S = 240


async def test_one_answer_in_ten_is_cut_and_no_headless_agent_is_lost(tmp_path):
    certificates = write_certificates(tmp_path, HOST, datetime.now(UTC))
    tls = (str(certificates.certificate), str(certificates.key))
    server = SimServer(ProviderSettings(faults=CUTS), seed="cuts", tls=tls)
    await server.start()
    confdir = tmp_path / "mitmproxy"
    sets = [
        f"hivemind_redirect={HOST}={server.host}:{server.port}",
        f"ssl_verify_upstream_trusted_ca={certificates.authority}",
    ]
    try:
        async with asyncio.timeout(LONGEST_S), running_mitmdump(confdir, sets) as mitmdump:
            trust = ssl.create_default_context(cafile=confdir / "mitmproxy-ca-cert.pem")
            route = Route(trust, proxy=f"127.0.0.1:{mitmdump.port}")
            agents = {
                kind: [
                    SimAgent(
                        name=f"{kind.replace(' ', '')}-{number}",
                        key=f"sk-{kind}",
                        habits=HABITS,
                        route=dataclasses.replace(route, says=says),
                        seed=1,
                    )
                    for number in range(EACH)
                ]
                for kind, says in CLIENTS.items()
            }
            await asyncio.gather(*(agent.run() for fleet in agents.values() for agent in fleet))
            guard_trips = mitmdump.guard_trips
    finally:
        await server.stop()
    lost = Counter(
        kind for kind, fleet in agents.items() for one in fleet if one.record.state is not AgentState.FINISHED
    )
    deaths = {one.name: one.record.death for fleet in agents.values() for one in fleet if one.record.death}
    assert (lost["claude -p"], lost["codex exec"], guard_trips) == (0, 0, 0), deaths
    assert lost["claude"] > 0, "nobody is watched over a cut, or there was none"
    assert sum(server.truth().faults.get(name, 0) for name in CUTS) >= EACH
