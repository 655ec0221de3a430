"""What is measured inside this process, with the addon's own functions: the intake of a body, the core's decisions."""

import asyncio
import json
import random
from collections import defaultdict
from dataclasses import dataclass
from statistics import mean, median, quantiles
from time import perf_counter
from types import MappingProxyType

from mitmproxy.test import tflow
from mitmproxy.test.tutils import treq

from bench.bodies import conversation, next_turn
from hivemind_addon.compose import make_runtime
from hivemind_addon.core.decision import Admitted
from hivemind_addon.core.pool import PoolSettings
from hivemind_addon.core.scheduler import Scheduler
from hivemind_addon.core.ticket import Demand, Outcome, OutcomeKind, PoolKey, Ticket
from hivemind_addon.mitm.agents_file import AgentsFile
from hivemind_addon.mitm.intake import Intake
from hivemind_addon.mitm.options import Settings
from hivemind_addon.profile.load import load_profiles

BLOCKED_BYTES = 1_000_000
_NEW_TEXT_BYTES = 4_000
_ANSWER = "I have read the file; the error comes from the import at its top."


@dataclass(frozen=True)
class Timing:
    median_s: float
    p99_s: float
    mean_s: float
    max_s: float


def timing(samples):
    p99_s = quantiles(samples, n=100, method="inclusive")[98]
    return Timing(median(samples), p99_s, mean(samples), max(samples))


def intake_times(count, size_bytes=BLOCKED_BYTES):
    """How long the event loop is blocked by a body of 1 MB, from the complete request to the submitted ticket.

    `first sight`: of a new session. `next turn`: the same body, with an answer and 4 KB of new text.
    """
    return asyncio.run(_intake_times(count, size_bytes))


async def _intake_times(count, size_bytes):
    runtime = make_runtime()
    runtime.tokenizer.load()
    intake = Intake(
        driver=runtime.driver,
        guard=runtime.guard,
        estimator=runtime.estimator,
        tokenizer=runtime.tokenizer,
        first_bytes=runtime.first_bytes,
        settings=Settings(
            profiles=load_profiles(None),
            redirects=MappingProxyType({}),
            reverse_profile="",
            agents=AgentsFile(None),
            state_file=None,
        ),
        events=runtime.events,
    )
    body = conversation(size_bytes, streamed=False)
    later = next_turn(body, _ANSWER, _NEW_TEXT_BYTES)
    samples = defaultdict(list)
    for number in range(count):
        for name, content in (("first sight", body), ("next turn", later)):
            flow = _flow(content, session=f"bench-{number}")
            began = perf_counter()
            exchange = intake.intake(flow)
            admitted = exchange.enter()
            samples[name].append(perf_counter() - began)
            assert admitted, "nothing keeps it"
            exchange.sent()
            exchange.head(flow.response)
            exchange.collected(flow.response, flow.response.raw_content)
    assert runtime.guard.trips == 0
    return {name: timing(values) for name, values in samples.items()}


def _flow(content, *, session):
    flow = tflow.tflow(req=treq(content=content, host="api.anthropic.com", port=443, scheme=b"https"), resp=True)
    flow.client_conn.sni = flow.request.host
    flow.request.method = "POST"
    flow.request.path = "/v1/messages"
    flow.request.headers["x-session-id"] = session
    flow.request.headers["x-api-key"] = "sk-bench"
    flow.response.headers["content-type"] = "application/json"
    flow.response.content = json.dumps(
        {
            "type": "message",
            "content": [{"type": "text", "text": _ANSWER}],
            "usage": {"input_tokens": len(content) // 4, "output_tokens": 15},
        }
    ).encode()
    return flow


def decision_times(queued, count):
    """One turn of the core in a pool with so many queued tickets: an attempt ends, the next ticket goes, one arrives."""
    rng = random.Random(0)
    scheduler = Scheduler(rng=rng)
    settings = PoolSettings()
    key = PoolKey("api.anthropic.com", "key-1", "claude-sonnet-4*")
    success = Outcome(OutcomeKind.SUCCESS, "200", status=200)
    flights = []
    now = 0.0
    arrived = 0

    def submit():
        nonlocal arrived
        arrived += 1
        patience_s = rng.uniform(300, 900) + 1e6
        ticket = Ticket(
            id=f"t{arrived}",
            pool=key,
            agent=f"agent-{arrived % 50}",
            session=f"session-{arrived % 200}",
            model="claude-sonnet-4-5",
            demand=Demand(input_tokens=rng.randint(100, 50_000), output_tokens=500),
            arrived_at=now,
            deadline_at=now + patience_s,
            shed_at=now + patience_s - 5,
        )
        scheduler.submit(ticket, settings, now)

    def poll():
        for decision in scheduler.poll(now):
            assert isinstance(decision, Admitted)
            flights.append(decision.reservation)
        scheduler.next_wakeup()
        scheduler.drain_events()

    samples = []
    for _ in range(queued):
        submit()
    poll()
    for _ in range(count):
        now += 0.01
        while len(flights) + queued > arrived:
            submit()
        began = perf_counter()
        scheduler.settle(flights.pop(0), success, now)
        poll()
        ended = perf_counter()
        samples.append(ended - began)
        submit()
        poll()
    return timing(samples)
