"""What a simulated agent does on the wire: how it reaches the provider, and one request to its end.

It reads what an SDK reads, and takes for curable what an SDK tries again: what fails before an answer begins, not what
breaks inside a stream.
"""

import random
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

import httpx
import msgspec

HOST = "api.anthropic.com"
"""Whom agents believe to speak with."""
_PATH = "/v1/messages"
_CONNECT_S = 5.0
_RETRIED = frozenset({408, 409, 429})
_WORDS = (
    *("the", "of", "file", "function", "returns", "a", "value", "when"),
    *("error", "test", "is", "in", "line", "class", "import", "list"),
)


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

    def client(self, agent: str, timeout_s: float) -> httpx.AsyncClient:
        """An agent's own connections, with its patience between two bytes of an answer. The caller closes it."""
        headers = {**self.says, "anthropic-version": "2023-06-01"}
        return httpx.AsyncClient(
            base_url=self.base_url or f"https://{self.direct or HOST}",
            headers=headers if self.base_url else {"host": HOST, **headers},
            proxy=f"http://{agent}:x@{self.proxy}" if self.proxy else None,
            verify=self.trust,
            trust_env=False,
            timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S),
        )

    @property
    def extensions(self) -> dict[str, str]:
        """For every request: the name that the certificate must have."""
        return {"sni_hostname": HOST} if self.direct else {}


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
