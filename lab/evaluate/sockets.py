"""Some scenarios on real sockets, side by side: straight, through a real mitmdump with the addon, through the peer.

The peer is `hivemind-scheduler` from PyPI, unchanged, in an environment that lives as long as the comparison. The peer
is a proxy behind a base URL, so agents speak plain HTTP, and so does the provider. The peer gets the provider's true
concurrency cap, as in the paper; all else is the default.
"""

import asyncio
import ssl
import subprocess
import tempfile
import venv
from asyncio.subprocess import DEVNULL, STDOUT
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import certifi

from hivemind_addon.sim.agents import Route
from hivemind_addon.sim.exchange import pause
from hivemind_addon.sim.library import cases
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.live import LiveStage, Staging, live, serving, straight, through_proxy
from hivemind_addon.sim.mitmdump import MitmdumpNotStarted, end, off_proxies
from hivemind_addon.sim.workload import Scenario
from hivemind_addon.tools.launch.neighbour import free_port
from lab.evaluate.figures import Figures, figures_of
from lab.scaled import scaled

_FACTORS: Mapping[str, float] = {"replay-11": 1, "stress": 2}
"""How many times as fast each runs. Backoffs and guards shrink in nobody's program, so the less the fairer."""
_SPARE_S = 30.0
_LONGEST = 3.0
"""Times the patience that a run's windows ask for; then the run is cut."""
PEER = "hivemind-scheduler"
_VERSION = "0.2.0"
_DEFAULT_CAP = 5
_PORT = 8100
_INSTALL_S = 300
_START_S = 30


@dataclass(frozen=True, slots=True)
class SocketRun:
    """A run."""

    scenario: str
    kind: LimitKind
    way: str
    seed: int
    factor: float
    agents: int
    figures: Figures
    deaths: str
    """Why agents died, in words."""


async def _run(name: str, kind: LimitKind, way: str, staging: Staging, seed: int) -> SocketRun:
    case, factor = cases()[name], _FACTORS[name]
    scenario = scaled(case.at(kind), factor)
    (limit,) = scenario.provider.limits
    wanted = sum(crowd.agents * (crowd.turns or 1) for crowd in scenario.crowds)
    within_s = _LONGEST * limit.window_s * (wanted / limit.amount + 1) + _SPARE_S
    result = (await live(scenario, seed=seed, within_s=within_s, staging=staging)).result
    deaths = ", ".join(f"{why} ({count})" for why, count in sorted(result.deaths.items()))
    return SocketRun(name, kind, way, seed, factor, result.agents, figures_of(result), deaths)


def run_on_sockets(
    *, peer: Staging | None = None, names: Sequence[str] = tuple(_FACTORS), done: Callable[[str], None]
) -> list[SocketRun]:
    """Each scenario on both kinds of limits by all ways, at the same time. Raises MitmdumpNotStarted."""
    ways: dict[str, Staging] = {"direct": straight, "hivemind": through_proxy}
    if peer is not None:
        ways[PEER] = peer
    runs: list[SocketRun] = []

    async def beside(name: str) -> list[SocketRun]:
        return await asyncio.gather(
            *(_run(name, kind, way, staging, 0) for kind in LimitKind for way, staging in ways.items())
        )

    for name in names:
        runs += asyncio.run(beside(name))
        done(f"{name}, on sockets")
    return runs


def socket_setups(names: Sequence[str] = tuple(_FACTORS)) -> int:
    """How many times `run_on_sockets` says that something is done."""
    return len(names)


# The peer -------------------------------------------------------------------------------------------------------------


class PeerUnavailable(Exception):
    """The peer cannot be installed here; the text is a line with the reason."""


@contextmanager
def installed_peer() -> Iterator[Staging]:
    """The way through the peer, which is installed until the block ends. Raises PeerUnavailable."""
    with tempfile.TemporaryDirectory(prefix="hivemind-peer-") as folder:
        yield partial(through_peer, _install(Path(folder)))


def _install(folder: Path) -> Path:
    try:
        venv.create(folder, with_pip=True)
        subprocess.run(  # noqa: S603 - our own words
            [folder / "bin" / "python", "-m", "pip", "install", "--quiet", f"{PEER}=={_VERSION}"],
            check=True,
            timeout=_INSTALL_S,
            capture_output=True,
            text=True,
        )
    except subprocess.CalledProcessError as error:
        words = (error.stderr or "").strip().splitlines() or ["pip said nothing"]
        raise PeerUnavailable(f"{PEER} {_VERSION} cannot be installed: {words[-1]}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerUnavailable(f"{PEER} {_VERSION} cannot be installed: {error}") from None
    return folder / "bin" / "hivemind"


@asynccontextmanager
async def through_peer(program: Path, scenario: Scenario, seed: int) -> AsyncIterator[LiveStage]:
    """By the peer's proxy. Raises MitmdumpNotStarted."""
    async with serving(scenario, seed) as server:
        with tempfile.TemporaryDirectory(prefix="hivemind-peer-") as folder:
            port = free_port(_PORT) or _PORT
            words = {
                "--port": str(port),
                "--upstream": server.url,
                "--max-concurrency": str(scenario.provider.concurrency or _DEFAULT_CAP),
                "--db": f"{folder}/peer.db",
            }
            process = await asyncio.create_subprocess_exec(
                *(str(program), "--log-level", "WARNING", "proxy", *chain.from_iterable(words.items())),
                cwd=folder,
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=STDOUT,
                env=off_proxies(),
                start_new_session=True,
            )
            try:
                await _listens(port, process)
                trust = ssl.create_default_context(cafile=certifi.where())
                yield LiveStage(server, Route(trust, base_url=f"http://127.0.0.1:{port}"))
            finally:
                await end(process)


async def _listens(port: int, process: asyncio.subprocess.Process) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_START_S):
            while process.returncode is None:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await pause(0.1)
                else:
                    writer.close()
                    return
    raise MitmdumpNotStarted(f"{PEER} {_VERSION} does not listen")
