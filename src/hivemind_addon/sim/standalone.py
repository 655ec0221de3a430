"""`hivemind sim`: the simulated provider alone, for any agent and without a key."""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from hivemind_addon.proxy.api.words import several, short
from hivemind_addon.tools.launch.port import DEFAULT_PORT

if TYPE_CHECKING:
    from hivemind_addon.sim.call import Truth
    from hivemind_addon.sim.provider import ProviderSettings
    from hivemind_addon.sim.replay.limits import GivenLimit

_PORT = 9100
_LIMITS = ("requests=30/min", "input_tokens=400k/min", "output_tokens=100k/min", "concurrency=4")
"""Room for the largest `max_tokens` that an agent asks for by itself (Qwen Code, 64,000)."""
_PROXY = f"http://127.0.0.1:{DEFAULT_PORT}"
_FAULTS = ("502=0.05", "reset-before-head=0.03")
_LATENCY_S = 0.8
_INTERVAL_S = 0.02
_TELL_EVERY_S = 5.0
AGENTS: Mapping[str, str] = MappingProxyType(
    {
        "Claude Code": 'ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY=sim claude -p "hello"',
        "Codex": "SIM_KEY=sim codex exec --skip-git-repo-check -c model_provider=sim -c 'model_providers.sim="
        '{{name="sim", base_url="{url}/v1", env_key="SIM_KEY", wire_api="responses"}}\' hello',
        "OpenCode": "ANTHROPIC_BASE_URL={url}/v1 ANTHROPIC_API_KEY=sim "
        "opencode run --model anthropic/claude-sonnet-4-5 hello",
        "Qwen Code": "OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY=sim OPENAI_MODEL=gpt-5 qwen --auth-type openai -p hello",
        "aider": "OPENAI_API_BASE={url}/v1 OPENAI_API_KEY=sim aider --model openai/gpt-5 --no-git --message hello",
        "the OpenAI SDK": "OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY=sim python my_agent.py",
        "curl": "curl {url}/v1/messages -H 'x-api-key: sim' -H 'anthropic-version: 2023-06-01' "
        "-H 'content-type: application/json' -d "
        '\'{{"model": "claude-sonnet-4-5", "max_tokens": 50, "messages": [{{"role": "user", "content": "hello"}}]}}\'',
    }
)
"""How each agent asks it; `{url}` is the provider's, or a proxy's before it."""


def _limits(_context: click.Context, _option: click.Parameter, texts: Sequence[str]) -> "tuple[GivenLimit, ...]":
    from hivemind_addon.sim.replay.limits import BadLimit, given_limit  # noqa: PLC0415 - loaded when it is needed

    try:
        return tuple(map(given_limit, texts))
    except BadLimit as error:
        raise click.BadParameter(str(error)) from error


def _faults(_context: click.Context, _option: click.Parameter, texts: Sequence[str]) -> Mapping[str, float]:
    from hivemind_addon.sim.faults import FaultMix  # noqa: PLC0415 - loaded when it is needed

    shares = {}
    for text in texts:
        name, _, share = text.partition("=")
        try:
            shares[name] = float(share)
            FaultMix(shares)
        except ValueError as error:
            raise click.BadParameter(f"{text!r}: {error}; write NAME=SHARE, for example 502=0.1") from error
    return {name: share for name, share in shares.items() if share > 0}


@click.command()
@click.option("-p", "--port", type=click.IntRange(0, 65535), default=_PORT, show_default=True, help="Where it listens.")
@click.option(
    "--limit",
    "limits",
    callback=_limits,
    multiple=True,
    default=_LIMITS,
    show_default=", ".join(_LIMITS),
    help="A limit of its key: requests=60/min, input_tokens=450k/min:window, concurrency=5, requests=none. Once one is "
    "given, these are all.",
)
@click.option(
    "--fault",
    "faults",
    callback=_faults,
    multiple=True,
    default=_FAULTS,
    show_default=", ".join(_FAULTS),
    help="What happens to which share of its calls: 502=0.1, 529=0.05, reset-before-head=0.1, left-open=0.01; 502=0 "
    "for none. Once one is given, these are all.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of its faults.")
def sim(port: int, limits: "tuple[GivenLimit, ...]", faults: Mapping[str, float], seed: int) -> None:
    """Serve a strict and faulty model provider on this machine, until Ctrl-C: any agent can be tried without a key.

    It answers the Messages, Chat Completions, Responses, Gemini and Ollama APIs with prose, and tells limits in headers
    as the providers do.

    \b
    Examples:
      hivemind sim
      hivemind sim --limit requests=5/min --fault 529=0.2
      hivemind run --upstream http://127.0.0.1:9100
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    try:
        asyncio.run(_serve(_settings(limits, faults), port, seed))
    except OSError as error:
        raise click.ClickException(f"port {port}: {error.strerror}; --port names another one") from error


def _settings(limits: "tuple[GivenLimit, ...]", faults: Mapping[str, float]) -> "ProviderSettings":
    from hivemind_addon.kernel.values.ticket import PoolKey  # noqa: PLC0415 - loaded when it is needed, as below
    from hivemind_addon.sim.provider import Latency, ProviderSettings  # noqa: PLC0415
    from hivemind_addon.sim.replay.limits import imposed  # noqa: PLC0415

    stated, concurrency = imposed((), None, limits, PoolKey("sim", "sim", "sim"))
    return ProviderSettings(
        limits=stated,
        concurrency=concurrency,
        faults=faults,
        latency=Latency(median_s=_LATENCY_S, sigma=0.3),
        chunks=40,
        tokens_per_chunk=4,
        interval_s=_INTERVAL_S,
        cache_ttl_s=300,
    )


async def _serve(settings: "ProviderSettings", port: int, seed: int) -> None:
    """Until a signal ends it. Raises OSError where the port is taken."""
    from hivemind_addon.sim.replay.limits import in_words  # noqa: PLC0415 - loaded when it is needed, as below
    from hivemind_addon.sim.server import SimServer  # noqa: PLC0415

    server, over, loop = SimServer(settings, seed=seed, port=port), asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    await server.start()
    told = [*map(in_words, settings.limits), *([f"concurrency={settings.concurrency}"] if settings.concurrency else [])]
    click.echo(f"a simulated provider at {server.url}")
    click.echo(f"  limits: {', '.join(told) or 'none'}")
    click.echo(f"  faults: {', '.join(f'{name}={share:g}' for name, share in settings.faults.items()) or 'none'}")
    click.echo(f"\nThrough the scheduler, in a second terminal: hivemind run --upstream {server.url}")
    click.echo("and an agent in a third one, through that proxy:")
    for name, line in AGENTS.items():
        click.echo(f"\n{name}:\n{line.format(url=_PROXY)}")
    click.echo(f"\nServing at {server.url}; Ctrl-C ends it.")
    before = ""
    while not over.is_set():
        try:
            async with asyncio.timeout(_TELL_EVERY_S):
                await over.wait()
        except TimeoutError:
            if (line := _line(server.truth())) != before:
                click.echo(line)
                before = line
    click.echo(_line(server.truth()))
    await server.stop()


def _line(truth: "Truth") -> str:
    tokens = truth.input_tokens + truth.cached_tokens + truth.output_tokens
    parts = (
        several(truth.attempts, "call"),
        f"{truth.completed} answered",
        f"{truth.refused + truth.overloaded} refused for a limit",
        f"{truth.failed + truth.cut} failed",
        f"{truth.in_flight} running",
        f"{short(tokens)} tokens",
    )
    return ", ".join(parts)
