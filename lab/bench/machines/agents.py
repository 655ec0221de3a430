"""Equal agents: a call after the other, each as an SDK makes it, through the proxy of the agent's machine."""

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import msgspec

from hivemind_addon.sim.agents import Answered, Route, ask, prose
from hivemind_addon.sim.exchange import pause

KEY = "sk-sim-machines"
MODEL = "claude-sonnet-4-5"
MAX_TOKENS = 64
_LATENCY_S, _PROMPT_CHARS = 0.8, 2_000
_CALL_S = 600
_MOST_IN_A_ROW = 60
_CONNECTING = 8
_APART_S = 0.02
"""Between the starts of two agents."""
_PAUSE_S = 0.5
"""Between a connection that failed and the next one: a proxy that was killed is back after seconds."""


@dataclass
class Done:
    """An agent at the end."""

    name: str
    machine: int
    turns: int = 0
    """Answered whole."""
    ended_s: float = 0.0
    """Since the beginning of all."""
    failures: list = field(default_factory=list)
    """Words, each with the second."""
    lost: str = ""
    """Why it gave up; empty: it did not."""


class Agents:
    """So many before each machine. `turns`: of each; None: until `over` is set."""

    def __init__(self, members, per_machine, *, turns=None):
        self._members = members
        self._turns = turns
        self.over = asyncio.Event()
        # Who comes first stays first in each round: they come one by one, and not a machine's all at once.
        self.done = [
            Done(f"m{machine + 1}-{n + 1}", machine) for n in range(per_machine) for machine in range(len(members))
        ]

    async def run(self):
        """Until the last agent has ended, after all have connected; the seconds from then on."""
        trusts = [member.trust() for member in self._members]
        clock = asyncio.get_running_loop().time
        async with AsyncExitStack() as stack:
            clients = [self._client(one, trusts[one.machine]) for one in self.done]
            for client in clients:
                await stack.enter_async_context(client)
            # Two hundred handshakes take seconds of two processors.
            connecting = asyncio.Semaphore(_CONNECTING)
            await asyncio.gather(*(_connect(client, connecting) for client in clients))
            self._began_at = clock()
            async with asyncio.TaskGroup() as group:
                for number, (one, client) in enumerate(zip(self.done, clients, strict=True)):
                    group.create_task(self._live(one, client, number * _APART_S))
            return clock() - self._began_at

    def latencies_s(self, name):
        """The seconds of each turn at the provider; the same in each run."""
        rng = random.Random(f"1 {name}")
        while True:
            yield _LATENCY_S * rng.uniform(0.75, 1.25)

    def _client(self, one, trust):
        return Route(trust, proxy=f"127.0.0.1:{self._members[one.machine].port}").client(one.name, _CALL_S)

    async def _live(self, one, client, starts_after_s):
        await pause(starts_after_s)
        # Wanted is the same whatever machine it is at: only its number there counts.
        number = one.name.partition("-")[2]
        words = prose(_PROMPT_CHARS, random.Random(f"1 {number}"))
        latencies_s = self.latencies_s(number)
        while not self.over.is_set() and one.turns != self._turns:
            said = [{"role": "user", "content": f"{one.turns} {words}"}]
            body = msgspec.json.encode({"model": MODEL, "max_tokens": MAX_TOKENS, "messages": said})
            if not await self._turn(one, client, body, next(latencies_s)):
                break
            one.turns += 1
        one.ended_s = asyncio.get_running_loop().time() - self._began_at

    async def _turn(self, one, client, body, latency_s):
        """Whether it was answered in the end."""
        headers = {
            "x-api-key": KEY,
            "content-type": "application/json",
            "x-sim-agent": one.name,
            "x-sim-latency-ms": f"{1000 * latency_s:.0f}",
        }
        for _ in range(_MOST_IN_A_ROW):
            answer = await ask(client, body, headers, streamed=False)
            if isinstance(answer, Answered):
                return True
            one.failures.append((asyncio.get_running_loop().time() - self._began_at, answer.why))
            if not answer.curable:
                break
            await pause(_PAUSE_S)
        one.lost = f"turn {one.turns + 1}: {one.failures[-1][1]}"
        return False


async def _connect(client, connecting):
    """To the provider, through the proxy; what is asked counts nowhere."""
    async with connecting:
        await client.get("/v1/models", headers={"x-api-key": KEY})
