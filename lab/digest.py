"""`hivemind lab digest`: whether the scheduler decides as before, by a hash for every world that `prove` runs.

    scenario, variant, random load ──► run, seed 0 ──► (instant, code, ticket, amounts) … ──► hash ──► digest.json

No name and no text is hashed, so that a rename or a reworded message changes no hash. `_CODES` gives each kind of
decision a number; tickets, pools and reasons are numbered by first sight; instants and amounts are rounded to 0.001.
Left out are facts that only people read, such as why and at which place a ticket waits.

The final figures are kept beside the hash, and so are short hashes of the first 1, 2, 3, 4, 6, 9 … decisions, which
show where a run departs. The hashes hold on the platform `_PLATFORM`: elsewhere sums and mathematical functions differ
in the last digit.
"""

import math
import platform
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from hivemind_addon.kernel.values.events import (
    AccountBlocked,
    AccountUnblocked,
    AttemptEnded,
    BreakerChanged,
    BudgetSpent,
    BudgetWarned,
    ConcurrencyChanged,
    Event,
    Moved,
    OrderEvent,
    PoolBlocked,
    PoolsMerged,
    Superseded,
    TicketEnded,
    WaitOverruled,
)
from hivemind_addon.kernel.values.snapshot import BreakerState
from hivemind_addon.kernel.values.ticket import Attempt, AttemptResult
from hivemind_addon.sim.library import cases, random_case, variants
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.result import Result
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

_BREAKER = (BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN)

_CODES: Mapping[type, tuple[int, Callable[[Any], Sequence[object]]]] = {
    Admitted: (1, lambda one: _admitted(one.attempt)),
    Shed: (2, lambda one: (one.ticket.id, one.reason, one.come_back_s)),
    Refused: (3, lambda one: (one.ticket.id,)),
    Finished: (4, lambda _: ()),
    GiveUp: (5, lambda one: (one.reason,)),
    Backoff: (6, lambda one: (one.until,)),
    TicketEnded: (7, lambda one: (one.ticket_id, one.pool, one.waited_s, one.attempts, one.ambiguous_resends)),
    AttemptEnded: (8, lambda one: (one.ticket_id, one.spend.tokens, one.spend.micro_usd, one.spend.calls)),
    ConcurrencyChanged: (9, lambda one: (one.pool, one.limit)),
    BreakerChanged: (10, lambda one: (one.pool, _BREAKER.index(BreakerState(one.state)))),
    PoolBlocked: (11, lambda one: (one.pool, one.until)),
    AccountBlocked: (12, lambda one: (one.pool, one.until)),
    AccountUnblocked: (13, lambda one: (one.pool,)),
    WaitOverruled: (14, lambda one: (one.ticket_id, one.pool, one.reason, one.idle_s)),
    Moved: (15, lambda one: (one.ticket_id, one.pool, one.left)),
    Superseded: (16, lambda one: (one.ticket_id, one.by_ticket_id)),
    PoolsMerged: (17, lambda one: (one.pool, one.merged)),
    BudgetWarned: (18, lambda one: (one.budget.name, one.spent, one.limit)),
    BudgetSpent: (19, lambda one: (one.budget.name, one.spent, one.limit)),
}
"""Kinds of decisions: a code that stays, and the amounts."""


def _admitted(attempt: Attempt) -> Sequence[object]:
    ticket, demand = attempt.ticket, attempt.demand
    amounts = demand.input_tokens, demand.output_tokens, demand.total_tokens
    return ticket.id, ticket.pool, attempt.number, *amounts, attempt.is_probe


_RESULT: Mapping[str, Callable[[Result], float]] = {
    "agents lost": lambda run: run.lost,
    "seconds": lambda run: run.makespan_s,
    "attempts": lambda run: run.attempts,
    "refused": lambda run: run.refused,
    "turns done": lambda run: run.turns_done,
    "shed": lambda run: run.sheds,
    "breaker opened": lambda run: run.breaker_opened,
    "idle seconds": lambda run: run.idle_s,
    "input cost": lambda run: run.cost,
    "tokens billed": lambda run: run.billed.tokens,
    "tokens wasted": lambda run: run.wasted.tokens,
    "lane seconds": lambda run: run.held_s,
    "p95 of a turn in seconds": lambda run: run.latency_s(0.95),
    "fairness": lambda run: run.fairness,
}
"""Final figures of a scenario or a random load."""


class WorldDigest(msgspec.Struct, frozen=True, array_like=True):
    """A world's line of the file."""

    hash: str
    """Of all decisions and figures."""
    decisions: int
    short_hashes: str
    """Of the first 1, 2, 3, 4, 6, 9 … decisions, `_HEX` digits each."""
    figures: tuple[float, ...]


@dataclass(slots=True)
class Trail:
    """The decisions of a run."""

    decisions: int = 0
    short_hashes: list[str] = field(default_factory=list)
    marks: list[tuple[int, float]] = field(default_factory=list)
    """For each short hash: the number of decisions in it, and the instant of the last."""
    _hash: Any = field(default_factory=lambda: blake2b(digest_size=8))
    _numbers: dict[object, int] = field(default_factory=dict)

    def note(self, now: float, fact: object, ticket_id: str | None = None) -> None:
        """Hash a decision; other facts are ignored. `ticket_id`: of a fact that does not name the ticket."""
        if (known := _CODES.get(type(fact))) is None:
            return
        code, amounts = known
        subject = () if ticket_id is None else (ticket_id,)
        self.add(now, code, *subject, *amounts(fact))
        self.decisions += 1
        last = self.marks[-1][0] if self.marks else 0
        if self.decisions >= max(last + 1, last * 3 // 2):
            self.short_hashes.append(self.hash[:_HEX])
            self.marks.append((self.decisions, now))

    def add(self, *values: object) -> None:
        """Hash these values."""
        numbers = (str(self._number(value)) for value in values)
        self._hash.update(f"{' '.join(numbers)}\n".encode())

    def _number(self, value: object) -> int:
        """Numbers in thousandths; other values by first sight."""
        if isinstance(value, int | float):
            return round(value * 1000) if math.isfinite(value) else -1
        return self._numbers.setdefault(value, len(self._numbers))

    @property
    def hash(self) -> str:
        """Of everything so far."""
        return str(self._hash.hexdigest())


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

    @override
    def drain_events(self) -> list[Event | OrderEvent]:
        events = super().drain_events()
        for event in events:
            self._trail.note(event.at, event)
        return events


type _Figures = Mapping[str, float]
type _World = Callable[[Trail], _Figures]


def _run_case(setup: Setup, trail: Trail) -> _Figures:
    policy = replace(setup.policy, admission=partial(_Watched, trail))
    result = Trial(replace(setup, policy=policy), 0).run()
    return {name: round(figure(result), 3) for name, figure in _RESULT.items()}


@cache
def worlds() -> Mapping[str, _World]:
    """All worlds by name: `stress:bucket`, `zoo:window-1s:as-stated`, `random-17:as-stated` …"""
    wanted = [*cases().values(), *variants().values(), *map(random_case, range(_RANDOM_LOADS))]
    return {
        f"{case.name}:{setup.limits.replace(',', '').replace(' ', '-')}": partial(_run_case, setup)
        for case in wanted
        for setup in setups(case, [Policy.HIVEMIND])
        if setup.policy == Policy.HIVEMIND
    }


@dataclass(frozen=True, slots=True)
class Examined:
    """A world as it is now."""

    name: str
    digest: WorldDigest
    figures: Sequence[str]
    """Their names."""
    marks: Sequence[tuple[int, float]]
    """As in `Trail`."""

    def difference(self, known: WorldDigest | None) -> str:
        """How the world differs from the known digest, in a line; empty: in nothing."""
        now = self.digest
        if now == known:
            return ""
        if known is None:
            return f"{self.name}: no hash is known"
        changed = [
            f"{name} {before:,.12g} → {after:,.12g}"
            for name, before, after in zip(self.figures, known.figures, now.figures, strict=False)
            if before != after
        ]
        return f"{self.name}: {self._departure(known)}; {', '.join(changed) or 'final figures are equal'}"

    def _departure(self, known: WorldDigest) -> str:
        pairs = zip(_parts(self.digest.short_hashes), _parts(known.short_hashes), strict=False)
        equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        until, at = self.marks[equal - 1] if equal else (0, 0.0)
        words = f"departs after decision {until:,} ({at:.3f} s)"
        if equal < len(self.marks):
            until, at = self.marks[equal]
            words += f" and at the latest with {until:,} ({at:.3f} s)"
        return f"{words} of {known.decisions:,}, now {self.digest.decisions:,}"


def _parts(short_hashes: str) -> list[str]:
    return [short_hashes[at : at + _HEX] for at in range(0, len(short_hashes), _HEX)]


def examine(name: str) -> Examined:
    """Run a world."""
    trail = Trail()
    figures = worlds()[name](trail)
    trail.add(*figures.values())
    digest = WorldDigest(trail.hash, trail.decisions, "".join(trail.short_hashes), tuple(figures.values()))
    return Examined(name, digest, tuple(figures), trail.marks)


def examine_all(names: Sequence[str], *, workers: int) -> list[Examined]:
    """Run these worlds, in their order; the same with any number of workers."""
    with progress(len(names)) as done, in_processes(workers) as each:
        examined = []
        for one in each(examine, names):
            examined.append(one)
            done(one.name)
        return examined


@click.command()
@click.argument("names", nargs=-1, metavar="[WORLD]…")
@click.option("--quick", is_flag=True, help=f"Every {_QUICK}rd world, so that each family is there: half a minute.")
@click.option(
    "--write",
    is_flag=True,
    help="Accept the present decisions, after a deliberate change. Commit the new hashes together with the tables of "
    "docs/proof.md, which `make prove` writes.",
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
      hivemind lab digest stress 'zoo:window-1s*' 'random-*'
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
        click.echo(f"{len(examined)} hashes are written; commit them with the tables of docs/proof.md (make prove)")
        return
    differences = [line for one in examined if (line := one.difference(known.get(one.name)))]
    if not (names or quick):
        differences += [f"{name}: there is a hash, and no such world" for name in known if name not in chosen]
    if not differences:
        click.echo(f"{len(examined)} worlds: all decisions are equal")
        return
    for line in differences[:_SHOWN]:
        click.echo(line)
    more = len(differences) - _SHOWN
    click.echo(
        f"{f'… and {more} more; ' if more > 0 else ''}{len(differences)} of {len(examined)} worlds differ", err=True
    )
    if stranger:
        click.echo(f"notice: no failure, for the hashes hold for {_PLATFORM}, and this is {stranger}", err=True)
        return
    click.echo("if that is wanted: hivemind lab digest --write", err=True)
    sys.exit(1)


def _chosen(names: Sequence[str], *, quick: bool) -> list[str]:
    known = [*worlds()]
    for name in names:
        if not any(_matches(world, name) for world in known):
            raise click.BadParameter(
                f"no world {name!r}; name a scenario ({', '.join(cases())}), zoo:ENTRY, or random-0 to "
                f"random-{_RANDOM_LOADS - 1}"
            )
    chosen = [world for world in known if not names or any(_matches(world, name) for name in names)]
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
        raise click.ClickException(f"{_FILE} cannot be read: {error.strerror}; {_CURE}") from None
    except msgspec.DecodeError as error:
        raise click.ClickException(f"{_FILE} is damaged: {error}; {_CURE}") from None
