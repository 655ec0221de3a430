"""Fleets: agents side by side until the last has ended, the books of addon and providers, and all that are run."""

import asyncio
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.call import Truth
from hivemind_addon.sim.exchange import pause
from hivemind_addon.sim.limits import Limit, ModelScope
from hivemind_addon.sim.mitmdump import running_mitmdump
from hivemind_addon.sim.provider import Latency, ProviderSettings
from hivemind_addon.sim.task import SimTask
from lab.fleets.agent import Agent, Exit, Scheduled, Straight, launch, run
from lab.fleets.kinds import ANTHROPIC_HOST, GOOGLE_HOST, OPENAI_HOST, Program
from lab.fleets.programs import Programs
from lab.fleets.proxy import FleetProxy, running_proxy
from lab.fleets.stage import Stage, running_stage
from lab.fleets.tunnel import Tunnel

MIXED: Mapping[Program, int] = MappingProxyType(
    {
        Program.CLAUDE: 7,
        Program.OPENCODE: 3,
        Program.CODEX: 4,
        Program.CODEX_SOCKETS: 2,
        Program.QWEN: 3,
        Program.AIDER: 3,
        Program.MINI: 4,
        Program.GEMINI: 4,
    }
)
"""Thirty agents of every kind, before three providers."""
STRICT: Mapping[str, float] = MappingProxyType(
    {"502": 0.05, "reset-before-head": 0.03, "529": 0.02, "error-second": 0.01, "stream-close": 0.03}
)
"""14 % of the calls; the last are cuts in the middle of an answer."""
SIXTEEN: Mapping[Program, int] = MappingProxyType(dict(zip(MIXED, (3, 2, 1, 1, 2, 2, 3, 2), strict=True)))
"""Sixteen agents of every kind, before three providers."""
_COUNTED: Mapping[str, Dimension] = MappingProxyType(
    {
        ANTHROPIC_HOST: Dimension.INPUT_TOKENS,
        OPENAI_HOST: Dimension.TOTAL_TOKENS,
        GOOGLE_HOST: Dimension.INPUT_TOKENS,
    }
)
_FILE = "result.txt"
_MAX_WORDS = 160


class Route(Enum):
    """The way that a fleet takes."""

    DIRECT = "direct"
    """No scheduler, and the agents' own settings."""
    HIVEMIND = "hivemind"
    """Through the proxy, answers as they come."""
    WHOLE = "hivemind, whole delivery"
    """Through the proxy, answers kept back until they are complete."""
    AUTO = "mitmdump, auto delivery"
    """Through a bare `mitmdump -s hivemind_addon`, which knows nothing of the agents, nor they of the proxy."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """A fleet and the troubles."""

    agents: Mapping[Program, int] = MIXED
    """How many of each kind."""
    lines: int = 4
    """Of each agent's file: so many tool calls, and a turn more."""
    faults: Mapping[str, float] = field(default_factory=lambda: STRICT)
    """Share of the admitted calls."""
    tokens_per_minute: int = 250_000
    """Of each provider: OpenAI's count the most that may come out, too."""
    requests: int = 40
    """That each provider admits in `window_s`."""
    window_s: float = 60
    scope: ModelScope = ModelScope.MODEL
    """Which models of a key these limits and the concurrency count together."""
    counts_refused: bool = False
    """Whether a refused call takes a request as well, and a failed call everything."""
    concurrency: int = 6
    """Calls that may run at the same time; any more is a 529."""
    latency_s: float = 0.8
    """Median, before an answer begins."""
    interval_s: float = 0.02
    """Between the pieces of an answer."""
    patient: bool = True
    """Whether the agents behind the proxy get patient settings; direct agents never do."""
    kill_after_s: float | None = None
    """When the proxy's process is killed, once; None: never."""
    agent_max_s: float = 480
    """After which an agent that still runs is ended, and lost."""

    @property
    def providers(self) -> Mapping[str, ProviderSettings]:
        """By host."""
        hosts = dict.fromkeys(program.value.host for program in self.agents)
        return {
            host: ProviderSettings(
                limits=(
                    Limit(Dimension.REQUESTS, self.requests, self.window_s, scope=self.scope),
                    Limit(_COUNTED[host], self.tokens_per_minute, scope=self.scope),
                ),
                charge_failures=self.counts_refused,
                concurrency=self.concurrency,
                concurrency_scope=self.scope,
                concurrency_status=529 if host == ANTHROPIC_HOST else 503,
                faults=self.faults,
                latency=Latency(median_s=self.latency_s, sigma=0.4),
                interval_s=self.interval_s,
                tokens_per_chunk=2,
                # OpenAI counts the maximum that a request names, and not 4,096 where it names none.
                default_max_tokens=1024,
            )
            for host in hosts
        }


_ATTEMPTS = """
    SELECT ticket.agent, count(*), sum(attempt.outcome = 'success'),
        sum(CASE attempt.outcome WHEN 'success' THEN attempt.input_tokens + attempt.output_tokens ELSE 0 END)
    FROM attempt JOIN ticket ON attempt.ticket = ticket.id GROUP BY ticket.agent
"""


@dataclass(frozen=True, slots=True)
class Book:
    """The counts of the calls of a format."""

    calls: int = 0
    """That reached a provider."""
    complete: int = 0
    """Of these, the ones with a complete answer."""
    tokens: int = 0
    """Into and out of the complete ones."""


def journal_book(journal: Path, formats: Mapping[str, str]) -> Mapping[str, Book]:
    """The addon's, by format. `formats`: each agent's."""
    sums: dict[str, Counter[str]] = {}
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as connection:
        for agent, calls, complete, tokens in connection.execute(_ATTEMPTS):
            book = sums.setdefault(formats.get(agent, "nobody's"), Counter())
            book.update(calls=calls, complete=complete, tokens=tokens)
    return {name: Book(**sums[name]) for name in sorted(sums)}


def provider_book(truths: Iterable[Truth]) -> Mapping[str, Book]:
    """The providers', by format."""
    sums: dict[str, Counter[str]] = {}
    for truth in truths:
        for name, one in truth.dialects.items():
            tokens = one.input_tokens + one.cached_tokens + one.written_tokens + one.output_tokens
            book = sums.setdefault(name, Counter())
            book.update(calls=one.attempts, complete=one.completed, tokens=tokens)
    return {name: Book(**sums[name]) for name in sorted(sums)}


@dataclass(frozen=True, slots=True)
class Ended:
    """An agent at the end."""

    name: str
    program: Program
    finished: bool
    """Whether the file is there and right."""
    exit: Exit

    @property
    def words(self) -> str:
        """Why the agent has not finished, where that is so."""
        if self.exit.status is None:
            return f"still running after {self.exit.elapsed_s:.0f} s"
        return f"exit status {self.exit.status}, `{self.exit.last_words[:_MAX_WORDS]}`"


@dataclass(frozen=True, slots=True)
class FleetResult:
    """The result of a run."""

    route: Route
    seed: int
    agents: Sequence[Ended]
    truths: Mapping[str, Truth]
    """By host."""
    books: Mapping[str, Book] | None
    """The addon's own, by format; None: there is no addon, or nobody can ask the addon."""
    guard_trips: int
    back_after_s: float | None
    """How long nothing served when the proxy had been killed; None where the proxy was not killed."""
    elapsed_s: float

    @property
    def finished(self) -> int:
        """Agents whose file is there and right."""
        return sum(agent.finished for agent in self.agents)

    @property
    def kept_its_promise(self) -> bool:
        """Nobody was lost through the proxy, and nothing in the proxy broke."""
        return self.finished == len(self.agents) and self.guard_trips == 0

    @property
    def truth(self) -> Mapping[str, Book]:
        """The providers' own counts, by format."""
        return provider_book(self.truths.values())

    @property
    def attempts(self) -> int:
        """Calls that reached a provider."""
        return sum(truth.attempts for truth in self.truths.values())

    @property
    def limited(self) -> int:
        """Attempts that a rate limit refused: the 429s."""
        return sum(truth.refused for truth in self.truths.values())

    @property
    def overloaded(self) -> int:
        """Attempts that the concurrency cap refused: 529s and 503s."""
        return sum(truth.overloaded for truth in self.truths.values())

    @property
    def tokens(self) -> int:
        """All that the providers counted, into and out."""
        return self.completed_tokens + sum(
            truth.wasted_input_tokens + truth.wasted_output_tokens for truth in self.truths.values()
        )

    @property
    def completed_tokens(self) -> int:
        """The providers' tokens in answers that were complete."""
        return sum(truth.input_tokens + truth.output_tokens for truth in self.truths.values())

    @property
    def wasted_tokens(self) -> int:
        """Tokens that the providers counted and that are in no finished task."""
        finished = {agent.name for agent in self.agents if agent.finished}
        counted = (one for truth in self.truths.values() for name, one in truth.agents.items() if name in finished)
        useful = sum(one.input_tokens + one.output_tokens for one in counted)
        return self.tokens - useful


async def run_fleet(
    settings: FleetSettings,
    route: Route,
    programs: Programs,
    seed: int,
    keep: Path | None = None,
    journal: Path | None = None,
) -> FleetResult:
    """A run. `keep`: where everything is left that was written. `journal`: of an earlier run, to continue.

    Raises NotStarted when the proxy does not start.
    """
    with tempfile.TemporaryDirectory(prefix="hivemind-fleet-", ignore_cleanup_errors=True) as name:
        folder = keep or Path(name)
        async with running_stage(folder, settings.providers, seed) as stage:
            if route is Route.DIRECT:
                async with Tunnel(stage.ports) as tunnel:
                    straight = Straight(tunnel.port, stage.authority)
                    return await _run(settings, route, programs, seed, stage, straight, folder)
            if route is Route.AUTO:
                sets = (*stage.proxy_settings, f"hivemind_log={folder / 'events.jsonl'}")
                written = str(journal or folder / "journal.db")
                async with running_mitmdump(folder / "mitmproxy", sets, journal=written) as mitmdump:
                    bare = Straight(mitmdump.port, folder / "mitmproxy" / "mitmproxy-ca-cert.pem")
                    result = await _run(settings, route, programs, seed, stage, bare, folder)
                (folder / "mitmdump.log").write_text("\n".join(mitmdump.lines), encoding="utf-8")
                return replace(result, guard_trips=mitmdump.guard_trips)
            async with running_proxy(folder, stage.proxy_settings) as proxy:
                delivery = "whole" if route is Route.WHOLE else "stream"
                way = Scheduled(proxy.port, proxy.variables, delivery, settings.patient)
                result = await _run(settings, route, programs, seed, stage, way, folder, proxy)
            # It has written everything down when it has ended.
            return replace(result, books=journal_book(proxy.journal, _formats(result.agents)))


async def _run(
    settings: FleetSettings,
    route: Route,
    programs: Programs,
    seed: int,
    stage: Stage,
    way: Straight | Scheduled,
    folder: Path,
    proxy: FleetProxy | None = None,
) -> FleetResult:
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_live(agent, way, programs, settings.agent_max_s)) for agent in _agents(settings, folder)
        ]
        if proxy is not None and settings.kill_after_s is not None:
            group.create_task(_kill(proxy, settings.kill_after_s))
    return FleetResult(
        route=route,
        seed=seed,
        agents=[task.result() for task in tasks],
        truths=stage.truths(),
        books=None,
        guard_trips=proxy.guard_trips if proxy else 0,
        back_after_s=proxy.back_after_s if proxy else None,
        elapsed_s=loop.time() - began_at,
    )


def _formats(agents: Sequence[Ended]) -> Mapping[str, str]:
    return {agent.name: agent.program.value.format.value for agent in agents}


async def _kill(proxy: FleetProxy, after_s: float) -> None:
    await pause(after_s)
    await proxy.kill_once()


def _agents(settings: FleetSettings, folder: Path) -> Sequence[Agent]:
    names = [
        (program, f"{program.value.word}-{n + 1}") for program, count in settings.agents.items() for n in range(count)
    ]
    return [Agent(program, SimTask(name, settings.lines, _FILE), folder / name) for program, name in names]


async def _live(agent: Agent, way: Straight | Scheduled, programs: Programs, limit_s: float) -> Ended:
    started = launch(agent, way, programs)
    ended = await run(started, agent.folder / "output.log", limit_s)
    return Ended(agent.name, agent.program, agent.has_finished, ended)


# All fleets ----------------------------------------------------------------------------------------------------------


KILLED_AFTER_S = 60


@dataclass(frozen=True, slots=True)
class Experiment:
    """A fleet, run a few times."""

    route: Route
    settings: FleetSettings
    runs: int = 1
    is_continued: bool = False
    """Whether each run continues the journal of the run before: only the first has to learn the limits."""

    @property
    def demands(self) -> bool:
        """Whether every agent has to finish; else the experiment only shows how many do."""
        return self.route in (Route.WHOLE, Route.AUTO)


def experiments(settings: FleetSettings, runs: int) -> Mapping[str, Experiment]:
    """By the name that the command line and the marks of the page give them."""
    agents = SIXTEEN if settings.agents is MIXED else settings.agents
    key = replace(settings, agents=agents, scope=ModelScope.KEY, requests=5, window_s=20, concurrency=2)
    counted = replace(key, requests=4, window_s=15, counts_refused=True)
    return {
        "direct": Experiment(Route.DIRECT, settings, runs),
        "hivemind": Experiment(Route.WHOLE, replace(settings, kill_after_s=KILLED_AFTER_S), runs),
        "stream": Experiment(Route.HIVEMIND, settings),
        "own-settings": Experiment(Route.WHOLE, replace(settings, patient=False)),
        "auto": Experiment(Route.AUTO, settings),
        "key": Experiment(Route.AUTO, key, runs),
        "key-warm": Experiment(Route.AUTO, key, 2, is_continued=True),
        "key-direct": Experiment(Route.DIRECT, key),
        "counted": Experiment(Route.AUTO, counted, runs),
        "counted-warm": Experiment(Route.AUTO, counted, 2, is_continued=True),
        "counted-direct": Experiment(Route.DIRECT, counted),
    }
