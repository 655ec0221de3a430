"""Simulated agents: conversations that grow turn by turn, on the real wire.

Each agent has the patience of a provider's SDK: what fails before an answer begins is tried again twice, what breaks
inside a stream is not. It is dead at its first failure that this does not cure. What an agent wants (prompts, sizes,
think times) comes from its own seed: two fleets of one seed want the same, however their providers treat them.
"""

import asyncio
import random
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

import httpx
import msgspec

from hivemind_addon.lab.sim.resend import SdkBackoff

HOST = "api.anthropic.com"
"""Whom agents believe to speak with."""
_PATH = "/v1/messages"
_CONNECT_S = 5.0
_RETRIED = frozenset({408, 409, 429})
_WORDS = (
    "the",
    "of",
    "file",
    "function",
    "returns",
    "a",
    "value",
    "when",
    "error",
    "test",
    "is",
    "in",
    "line",
    "class",
    "import",
    "list",
)


@dataclass(frozen=True, slots=True)
class Habits:
    """What agents do, and how much they endure. Pairs are the ends of a range."""

    turns: int = 7
    opening_chars: int = 6000
    """Instructions and task: sent again with every turn, as is everything that was said since."""
    prompt_chars: tuple[int, int] = (500, 4000)
    """A turn's new text: what a person or a tool says."""
    think_s: tuple[float, float] = (0.2, 0.9)
    """Before each turn."""
    latency_s: tuple[float, float] = (0.2, 0.7)
    """Which the simulated provider is asked to take until its first byte."""
    chunks: tuple[int, int] = (15, 50)
    """Pieces of the answer, which it is asked to send."""
    interval_s: float = 0.025
    """Between these pieces."""
    streamed: float = 0.85
    """Share of the turns whose answer is streamed."""
    retries: int = 2
    """Re-sends of one turn; 0: the first failure is the end."""
    backoff: SdkBackoff = field(default_factory=SdkBackoff)
    """Before each of them."""
    timeout_s: float = 600.0
    """Between two bytes of an answer, its first included."""


@dataclass(frozen=True, slots=True)
class SimTurn:
    """One step of a conversation, decided beforehand."""

    prompt: str
    think_s: float
    latency_s: float
    chunks: int
    interval_s: float
    streamed: bool

    @property
    def service_s(self) -> float:
        """How long the provider needs for it when nothing goes wrong."""
        return self.latency_s + (self.chunks - 1) * self.interval_s

    def steering(self) -> Mapping[str, str]:
        """The request headers that make the simulated provider behave so."""
        # A plain answer takes as long as the stream would have.
        head_s = self.latency_s if self.streamed else self.service_s
        return {
            "x-sim-chunks": str(self.chunks),
            "x-sim-interval-ms": f"{self.interval_s * 1000:.1f}",
            "x-sim-latency-ms": f"{head_s * 1000:.1f}",
        }


def plan_turns(habits: Habits, rng: random.Random) -> tuple[SimTurn, ...]:
    """One agent's conversation."""

    def turn(number: int) -> SimTurn:
        opening_chars = habits.opening_chars if number == 0 else 0
        return SimTurn(
            prompt=prose(opening_chars + rng.randint(*habits.prompt_chars), rng),
            think_s=rng.uniform(*habits.think_s),
            latency_s=rng.uniform(*habits.latency_s),
            chunks=rng.randint(*habits.chunks),
            interval_s=habits.interval_s,
            streamed=rng.random() < habits.streamed,
        )

    return tuple(turn(number) for number in range(habits.turns))


@dataclass(frozen=True, slots=True)
class Route:
    """How agents reach the provider."""

    trust: ssl.SSLContext
    direct: str | None = None
    """`address:port` of the provider itself; certificate check and Host are those of its name."""
    proxy: str | None = None
    """`address:port` of a proxy, to which each agent says its name."""
    base_url: str | None = None
    """Of something that stands for the provider, without TLS."""
    says: Mapping[str, str] = MappingProxyType({"user-agent": "hivemind-sim/1"})
    """The headers by which agents say what they are."""

    def client(self, agent: str, habits: Habits) -> httpx.AsyncClient:
        """An agent's own connections. The caller closes it."""
        headers = {**self.says, "anthropic-version": "2023-06-01"}
        return httpx.AsyncClient(
            base_url=self.base_url or f"https://{self.direct or HOST}",
            headers=headers if self.base_url else {"host": HOST, **headers},
            proxy=f"http://{agent}:x@{self.proxy}" if self.proxy else None,
            verify=self.trust,
            trust_env=False,
            timeout=httpx.Timeout(habits.timeout_s, connect=_CONNECT_S),
        )

    @property
    def extensions(self) -> dict[str, str]:
        """For every request: the name that the certificate must have."""
        return {"sni_hostname": HOST} if self.direct else {}


class AgentState(Enum):
    """Where an agent stands."""

    RUNNING = "running"
    FINISHED = "finished"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Answered:
    """A turn's answer, whole."""

    text: str
    input_tokens: int
    """Neither read from a prompt cache nor written to it."""
    output_tokens: int
    cached_tokens: int = 0
    """Input that was read from a prompt cache."""
    written_tokens: int = 0
    """Input that was written to it."""


@dataclass(frozen=True, slots=True)
class Failed:
    """One request that failed, as its agent saw it."""

    why: str
    curable: bool
    """Whether the agent's own policy tries it again."""
    retry_after_s: float | None = None


@dataclass(slots=True)
class AgentRecord:
    """What became of an agent so far."""

    state: AgentState = AgentState.RUNNING
    death: str | None = None
    turns_done: int = 0
    requests: int = 0
    failures: list[str] = field(default_factory=list)
    """Why requests failed, retried or not."""
    input_tokens: int = 0
    """Of answers that it got whole, as is the next."""
    output_tokens: int = 0
    path_s: float = 0.0
    """Think and service time of the turns done: no schedule does them faster."""
    service_s: float = 0.0


class SimAgent:
    """One conversation. `run` it once; `record` tells how far it is at any time."""

    def __init__(self, *, name: str, key: str, habits: Habits, route: Route, seed: int) -> None:
        self.name = name
        self.record = AgentRecord()
        self._key = key
        self._habits = habits
        self._route = route
        self._turns = plan_turns(habits, random.Random(f"{seed} {name}"))
        # Apart from the plan's: how often it draws depends on what happens.
        self._jitter = random.Random(f"{seed} {name} jitter")

    def __repr__(self) -> str:
        return f"<Agent {self.name} {self.record.state.value}, {self.record.turns_done}/{len(self._turns)} turns>"

    async def run(self) -> None:
        """Hold the conversation until its end or the agent's. Raises nothing but its cancellation."""
        messages: list[dict[str, str]] = []
        async with self._route.client(self.name, self._habits) as client:
            for turn in self._turns:
                await _pause(turn.think_s)
                messages.append({"role": "user", "content": turn.prompt})
                match await self._ask(client, turn, messages):
                    case Failed(why):
                        self.record.state, self.record.death = AgentState.DEAD, why
                        return
                    case Answered(text, input_tokens, output_tokens):
                        messages.append({"role": "assistant", "content": text})
                        self.record.turns_done += 1
                        self.record.input_tokens += input_tokens
                        self.record.output_tokens += output_tokens
                        self.record.service_s += turn.service_s
                        self.record.path_s += turn.think_s + turn.service_s
        self.record.state = AgentState.FINISHED

    async def _ask(self, client: httpx.AsyncClient, turn: SimTurn, messages: list[dict[str, str]]) -> Answered | Failed:
        """One turn, with the agent's own re-sends."""
        body = msgspec.json.encode(
            {"model": "claude-sonnet-4-5", "max_tokens": 8192, "stream": turn.streamed, "messages": messages}
        )
        retry = 0
        while True:
            self.record.requests += 1
            outcome = await self._send(client, turn, body, retry)
            if isinstance(outcome, Answered):
                return outcome
            self.record.failures.append(outcome.why)
            if not outcome.curable or retry >= self._habits.retries:
                return outcome
            await _pause(self._habits.backoff.wait_s(retry, outcome.retry_after_s, self._jitter))
            retry += 1

    async def _send(self, client: httpx.AsyncClient, turn: SimTurn, body: bytes, retry: int) -> Answered | Failed:
        headers = {
            "content-type": "application/json",
            "x-api-key": self._key,
            "x-sim-agent": self.name,
            "x-stainless-timeout": f"{self._habits.timeout_s:g}",
            "x-stainless-retry-count": str(retry),
            **turn.steering(),
        }
        return await ask(client, body, headers, streamed=turn.streamed, extensions=self._route.extensions)


async def ask(
    client: httpx.AsyncClient,
    body: bytes,
    headers: Mapping[str, str],
    *,
    streamed: bool,
    extensions: Mapping[str, str] = MappingProxyType({}),
) -> Answered | Failed:
    """One request, and its answer to the end. `streamed`: whether the body asks for a stream."""
    in_stream = False
    try:
        async with client.stream("POST", _PATH, content=body, headers=headers, extensions=dict(extensions)) as response:
            if response.status_code != httpx.codes.OK:
                return _refused(response)
            in_stream = streamed
            return await (_read_stream(response) if streamed else _read_plain(response))
    except httpx.TransportError as error:
        return Failed(f"{type(error).__name__}{' in a stream' if in_stream else ''}", curable=not in_stream)


def _refused(response: httpx.Response) -> Failed:
    status, told = response.status_code, response.headers.get("x-should-retry")
    retry_after_s = None
    with suppress(KeyError, ValueError):
        retry_after_s = float(response.headers["retry-after"])
    curable = told == "true" or (told != "false" and (status in _RETRIED or status >= 500))
    return Failed(f"status {status}", curable=curable, retry_after_s=retry_after_s)


class _Usage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0

    def answered(self, text: str, output_tokens: int) -> Answered:
        """The answer that it belongs to."""
        return Answered(
            text, self.input_tokens, output_tokens, self.cache_read_input_tokens, self.cache_creation_input_tokens
        )


class _Text(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct):
    usage: _Usage
    content: list[_Text] = []


class _Error(msgspec.Struct):
    type: str = "error"


class _Event(msgspec.Struct):
    type: str
    message: _Message | None = None
    delta: _Text | None = None
    usage: _Usage | None = None
    error: _Error | None = None


async def _read_plain(response: httpx.Response) -> Answered | Failed:
    try:
        message = msgspec.json.decode(await response.aread(), type=_Message)
    except msgspec.MsgspecError:
        return Failed("no message in the answer", curable=False)
    return message.usage.answered("".join(part.text for part in message.content), message.usage.output_tokens)


async def _read_stream(response: httpx.Response) -> Answered | Failed:
    pieces: list[str] = []
    usage, output_tokens = _Usage(), 0
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        try:
            event = msgspec.json.decode(line[5:], type=_Event)
        except msgspec.MsgspecError:
            return Failed("no event in the stream", curable=False)
        match event:
            case _Event(error=_Error(type=kind)):
                return Failed(f"{kind} in a stream", curable=False)
            case _Event(message=_Message(usage=begun)):
                usage = begun
            case _Event(usage=_Usage(output_tokens=so_far)):
                output_tokens = so_far
            case _Event(type="message_stop"):
                return usage.answered("".join(pieces), output_tokens)
            case _Event(delta=_Text(text=text)):
                pieces.append(text)
    return Failed("a stream without its end", curable=False)


def prose(chars: int, rng: random.Random) -> str:
    """Words, at least so many characters of them (but for a last blank), for tokenizers that count them as such."""

    def words() -> Iterator[str]:
        length = 0
        while length < chars:
            word = _WORDS[rng.randrange(len(_WORDS))]
            length += len(word) + 1
            yield word

    return " ".join(words())


async def _pause(pause_s: float) -> None:
    await asyncio.sleep(pause_s)  # noqa: TID251 - an agent's think time and backoff are real time, in tests too
