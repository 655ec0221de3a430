"""`hivemind lab digest`: whether the scheduler decides as before, by a hash for every world.

    scenario, variant, random load ──► run, seed 0 ──► (instant, code, ticket, amounts) … ──► hash ──► digest.json

Hashed is what the scheduler returns: decisions and verdicts. No name and no text is hashed, so that a rename or a
reworded message changes no hash. `_CODES` gives each kind a number; tickets, pools and reasons are numbered by first
sight; instants and amounts are rounded to 0.001.

The final figures are kept beside the hash, and so are short hashes of the first 1, 2, 3, 4, 6, 9 … decisions, which
show after which decision a run departs. The hashes hold on the platform `_PLATFORM`: elsewhere sums and mathematical
functions differ in the last digit.
"""

import math
import platform
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from typing import Any, override

import click
import msgspec

from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.decision import Admitted, Backoff, Finished, GiveUp, Refused, Shed, Verdict
from hivemind_addon.kernel.values.ticket import Attempt, AttemptResult
from hivemind_addon.sim.figures import TrialFigures, figures_of
from hivemind_addon.sim.library import cases, random_case, variants
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.scenario_commands import progress
from hivemind_addon.sim.trial import Setup, Trial, in_processes, setups

_FILE = Path(__file__).with_name("digest.json")
_PLATFORM = "CPython 3.12 on Linux, x86-64"
_RANDOM_LOADS = 40
_QUICK = 3
"""One world of so many."""
_WORKERS = 2
_FEW = 10
"""So few worlds run in this process."""
_SHOWN = 10
"""Worlds that a report describes."""
_HEX = 4
"""Digits of a short hash."""
_CURE = f"restore the file (git checkout {_FILE.name}), or write hashes: hivemind lab digest --write"

_CODES: Mapping[type, tuple[int, Callable[[Any], Sequence[object]]]] = {
    Admitted: (1, lambda one: _admitted(one.attempt)),
    Shed: (2, lambda one: (one.ticket.id, one.reason, one.come_back_s)),
    Refused: (3, lambda one: (one.ticket.id,)),
    Finished: (4, lambda _: ()),
    GiveUp: (5, lambda one: (one.reason,)),
    Backoff: (6, lambda one: (one.until,)),
}
"""Kinds of decisions and verdicts: a code that stays, and the amounts."""
_FIGURES = tuple(one.name for one in fields(TrialFigures) if one.type in (int, float))


def _admitted(attempt: Attempt) -> Sequence[object]:
    ticket, demand = attempt.ticket, attempt.demand
    amounts = demand.input_tokens, demand.output_tokens, demand.total_tokens
    return ticket.id, ticket.pool, attempt.number, *amounts, attempt.is_probe


class WorldDigest(msgspec.Struct, frozen=True, array_like=True):
    """A world's line of the file."""

    hash: str
    """Of all decisions and figures."""
    decisions: int
    short_hashes: tuple[str, ...]
    """Of the first 1, 2, 3, 4, 6, 9 … decisions."""
    figures: tuple[float, ...]


class Trail:
    """The decisions of a run, in numbers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.instants: list[float] = []
        self._numbers: dict[object, int] = {}

    def note(self, now: float, fact: object, ticket_id: str | None = None) -> None:
        """Add a decision. `ticket_id`: of a verdict, which does not name the ticket."""
        code, amounts = _CODES[type(fact)]
        values = (now, code, *(() if ticket_id is None else (ticket_id,)), *amounts(fact))
        self.lines.append(" ".join(map(str, map(self._number, values))))
        self.instants.append(now)

    def _number(self, value: object) -> int:
        """Numbers in thousandths; other values by first sight."""
        if isinstance(value, int | float):
            return round(value * 1000) if math.isfinite(value) else -1
        return self._numbers.setdefault(value, len(self._numbers))

    def digest(self, figures: tuple[float, ...]) -> WorldDigest:
        """The decisions and final figures as hashes."""
        whole, short = blake2b(digest_size=8), []
        places = set(_places(len(self.lines)))
        for place, line in enumerate(self.lines, start=1):
            whole.update(f"{line}\n".encode())
            if place in places:
                short.append(whole.hexdigest()[:_HEX])
        whole.update(repr(figures).encode())
        return WorldDigest(whole.hexdigest(), len(self.lines), tuple(short), figures)


def _places(decisions: int) -> Iterator[int]:
    """The numbers of decisions that have a short hash: 1, 2, 3, 4, 6, 9 …"""
    place = 1
    while place <= decisions:
        yield place
        place = max(place + 1, place * 3 // 2)


class _Watched(Scheduler):
    """The scheduler; each decision leaves a trace."""

    def __init__(self, trail: Trail, rng: random.Random) -> None:
        super().__init__(rng=rng)
        self._trail = trail

    @override
    def poll(self, now: float) -> list[Admitted | Shed | Refused]:
        decisions = super().poll(now)
        for decision in decisions:
            self._trail.note(now, decision)
        return decisions

    @override
    def settle(self, attempt: Attempt, result: AttemptResult, now: float, *, judged: Verdict | None = None) -> Verdict:
        verdict = super().settle(attempt, result, now, judged=judged)
        self._trail.note(now, verdict, attempt.ticket.id)
        return verdict


@cache
def worlds() -> Mapping[str, Setup]:
    """All worlds by name: `stress:bucket`, `zoo:window-1s:as-stated`, `random-17:as-stated` …"""
    wanted = [*cases().values(), *variants().values(), *map(random_case, range(_RANDOM_LOADS))]
    return {
        f"{case.name}:{setup.limits.replace(',', '').replace(' ', '-')}": setup
        for case in wanted
        for setup in setups(case)
    }


@dataclass(frozen=True, slots=True)
class Examined:
    """A world as it is now."""

    name: str
    digest: WorldDigest
    instants: Sequence[float]
    """Of the decisions that have a short hash."""

    def difference(self, known: WorldDigest | None) -> str:
        """How the world differs from the known digest, in a line; empty: in nothing."""
        now = self.digest
        if now == known:
            return ""
        if known is None:
            return f"{self.name}: no hash is known"
        changed = [
            f"{name} {before:,.12g} → {after:,.12g}"
            for name, before, after in zip(_FIGURES, known.figures, now.figures, strict=False)
            if before != after
        ]
        pairs = zip(now.short_hashes, known.short_hashes, strict=False)
        equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        place, at = ([0, *_places(now.decisions)][equal], [0.0, *self.instants][equal])
        words = f"departs after decision {place:,} ({at:.3f} s) of {known.decisions:,}, now {now.decisions:,}"
        return f"{self.name}: {words}; {', '.join(changed) or 'final figures are equal'}"


def examine(name: str) -> Examined:
    """Run a world."""
    trail = Trail()
    watched = replace(Policy.HIVEMIND, admission=partial(_Watched, trail))
    run = figures_of(Trial(worlds()[name], watched, seed=0).run())
    digest = trail.digest(tuple(round(getattr(run, figure), 3) for figure in _FIGURES))
    return Examined(name, digest, [trail.instants[place - 1] for place in _places(digest.decisions)])


def examine_all(names: Sequence[str], *, workers: int) -> list[Examined]:
    """Run these worlds, in their order; the same with any number of workers."""
    with progress(len(names)) as done, in_processes(workers) as each:
        return [one for one in each(examine, names) if done(one.name) is None]


@click.command()
@click.argument("names", nargs=-1, metavar="[WORLD]…")
@click.option("--quick", is_flag=True, help=f"Every {_QUICK}rd world, so that each family is there: half a minute.")
@click.option(
    "--write", is_flag=True, help="Accept the present decisions, after a deliberate change, and commit the new hashes."
)
def digest(names: Sequence[str], *, quick: bool, write: bool) -> None:
    """Compare all decisions of the scheduler with the decisions of before, by a hash for each world.

    Worlds are the packaged scenarios with each kind of limits, the zoo and 40 random loads, with one seed. A line for
    each world that differs says where the decisions depart and which final figures changed; the exit status is 1. The
    hashes hold for CPython 3.12 on Linux, x86-64: elsewhere a difference gives a notice, and is no failure.

    \b
    Examples:
      hivemind lab digest
      hivemind lab digest --quick
      hivemind lab digest stress 'zoo:window-*' 'random-*'
      hivemind lab digest --write
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    chosen = _chosen(names, quick=quick)
    stranger = _stranger()
    if write and (names or quick):
        raise click.UsageError("--write writes the hashes of all worlds: leave out names and --quick")
    if write and stranger:
        raise click.ClickException(f"this is {stranger}: write hashes with {_PLATFORM}")
    known = {} if write else read_known()
    examined = examine_all(chosen, workers=_WORKERS if len(chosen) > _FEW else 1)
    if write:
        lines = (f'"{one.name}": {msgspec.json.encode(one.digest).decode()}' for one in examined)
        _FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        click.echo(f"{len(examined)} hashes are written; commit them")
        return
    differences = [line for one in examined if (line := one.difference(known.get(one.name)))]
    if not (names or quick):
        differences += [f"{name}: there is a hash, and no such world" for name in known if name not in chosen]
    if not differences:
        click.echo(f"{len(examined)} worlds: all decisions are equal")
        return
    for line in differences[:_SHOWN]:
        click.echo(line)
    notice = f"notice: no failure, for the hashes hold for {_PLATFORM}, and this is {stranger}"
    cure = notice if stranger else "if that is wanted: hivemind lab digest --write"
    click.echo(f"{len(differences)} of {len(examined)} worlds differ\n{cure}", err=True)
    sys.exit(0 if stranger else 1)


def _chosen(names: Sequence[str], *, quick: bool) -> list[str]:
    found = {name: [world for world in worlds() if _matches(world, name)] for name in names}
    if unknown := [name for name in names if not found[name]]:
        there_are = f"name a scenario ({', '.join(cases())}), zoo:ENTRY, or random-0 to random-{_RANDOM_LOADS - 1}"
        raise click.BadParameter(f"no world {unknown[0]!r}; {there_are}")
    chosen = [world for world in worlds() if not names or any(world in some for some in found.values())]
    return chosen[::_QUICK] if quick else chosen


def _matches(world: str, name: str) -> bool:
    return fnmatchcase(world, name) or fnmatchcase(world, f"{name}:*")


def _stranger() -> str:
    """The platform, if the hashes do not hold there; else empty."""
    major, minor, _ = platform.python_version_tuple()
    machine = platform.machine().replace("_", "-")
    here = f"{platform.python_implementation()} {major}.{minor} on {platform.system()}, {machine}"
    return "" if here == _PLATFORM else here


def read_known() -> Mapping[str, WorldDigest]:
    """The hashes that are checked in. Raises ClickException."""
    try:
        return msgspec.json.decode(_FILE.read_bytes(), type=dict[str, WorldDigest])
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except msgspec.DecodeError as error:
        problem = f"is damaged: {error}"
    raise click.ClickException(f"{_FILE} {problem}; {_CURE}")
