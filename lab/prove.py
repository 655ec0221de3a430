"""`hivemind lab prove`: worlds, policies and seeds, judged; the page is made in `proof_page.py`."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from hivemind_addon import __version__
from hivemind_addon.sim.ablation import Primitive
from hivemind_addon.sim.expectation import NO_PROXY
from hivemind_addon.sim.held_out import first_number
from hivemind_addon.sim.library import Case, cases, random_case, variants, written
from hivemind_addon.sim.minimise import minimised
from hivemind_addon.sim.policy import NAMED, Policy, without
from hivemind_addon.sim.report import kept, missed
from hivemind_addon.sim.scenario_commands import (
    cases_named,
    policies_named,
    print_missed,
    progress,
)
from hivemind_addon.sim.trial import Series, Setup, run_series, setups, trials_of
from lab import proof_page
from lab.markdown import markdown_filled

_COMPARED = ("direct", "sdk-retry", "aimd-pause", "hivemind-scheduler", "baseline", "fifo", "hivemind")
"""Policies by name, as columns of the page from the least to the most."""
_MINIMISED, _TRIES = 3, 100
"""So many missed expectations are made smaller, each with at most so many runs."""


@dataclass(frozen=True, slots=True)
class Part:
    """Worlds of a kind, with the same policies and seeds."""

    name: str
    setups: Sequence[Setup]
    policies: Sequence[Policy]
    seeds: range


@dataclass(frozen=True, slots=True)
class Proof:
    """All series of a plan."""

    series: dict[str, list[Series]]
    """By part: scenarios, zoo, random loads, or `worlds` for those that were named."""
    without: list[Series] = field(default_factory=list)
    """The scheduler without each primitive in turn, and as a whole, with the same seeds."""

    @property
    def all(self) -> list[Series]:
        """Of all parts."""
        return [one for some in self.series.values() for one in some]


@dataclass(frozen=True, slots=True)
class Size:
    """How many seeds and worlds a plan has."""

    scenario_seeds: int
    zoo_seeds: int
    zoo_step: int
    """One variant of so many."""
    loads: int
    load_seeds: int
    ablation_seeds: int


FULL = Size(scenario_seeds=3, zoo_seeds=2, zoo_step=1, loads=100, load_seeds=2, ablation_seeds=1)
"""Takes less than half an hour on two cores."""
QUICK = Size(scenario_seeds=1, zoo_seeds=1, zoo_step=5, loads=10, load_seeds=1, ablation_seeds=0)


@click.command()
@click.option(
    "--worlds",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only these: a scenario, FILE.yaml, zoo, zoo:NAME, or random:FROM:COUNT. May be given again.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="POLICY",
    help="Only these, beside the scheduler and no proxy: a name, or FILE.py:Class. May be given again.",
)
@click.option("--seeds", type=click.IntRange(1, 1000), help="Runs of each world.")
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Processes.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write proof.md, proof.csv and minimised cases into this folder, and fill the tables of judge.md there.",
)
@click.option("--quick", is_flag=True, help="A tenth of it: one seed, no primitive taken away.")
@click.option(
    "--report",
    "key",
    is_flag=False,
    flag_value=__version__,
    metavar="[KEY]",
    help="Use numbers that nobody tunes on: those of this key, by default of the version.",
)
@click.option("--live", is_flag=True, help="Instead: scenarios on real sockets, beside virtual time. Minutes.")
def prove(
    names: tuple[str, ...],
    policies: tuple[str, ...],
    seeds: int | None,
    workers: int,
    output: Path | None,
    key: str | None,
    *,
    quick: bool,
    live: bool,
) -> None:
    """Judge policies on many worlds in virtual time, and print a page (Markdown).

    Worlds are the packaged scenarios, the zoo of limiters and random loads. The page compares the policies in ten rows
    with intervals, says where the scheduler is weak and how much each primitive is worth. The exit status is 1 when
    the scheduler misses an expectation of a world.

    \b
    Examples:
      hivemind lab prove --worlds stress --worlds zoo --seeds 2
      hivemind lab prove --quick --policy my_policy.py:MyPolicy
      hivemind lab prove --report --output docs
      hivemind lab prove --live --output docs
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    if live:
        from lab.live import prove_live  # noqa: PLC0415 - certificates, mitmdump and the event loop are for this alone

        prove_live(names, output)
        return
    parts = _plan(names, policies_named(policies), seeds, key, quick=quick)
    proof = _run(parts, workers)
    small = list(_minimised(proof)) if output else []
    command = " ".join(["hivemind lab prove", *_words(names, policies, seeds, key, quick=quick)])
    page = proof_page.page(proof, proof_page.Setting(command, key, parts), [case.name for case in small])
    if output is None:
        click.echo(page, nl=False)
    else:
        _write(output, page, proof, small)
    lines = missed(proof.all)
    print_missed(lines, kept=kept(proof.all))
    sys.exit(1 if lines else 0)


def _words(
    names: Sequence[str], policies: Sequence[str], seeds: int | None, key: str | None, *, quick: bool
) -> Iterator[str]:
    """The options that were given."""
    yield from (f"--worlds {name}" for name in names)
    yield from (f"--policy {name}" for name in policies)
    yield from [f"--seeds {seeds}"] if seeds else []
    yield from ["--quick"] if quick else []
    yield from [f"--report {key}"] if key else []


def _plan(
    names: Sequence[str], policies: Sequence[Policy], seeds: int | None, key: str | None, *, quick: bool
) -> list[Part]:
    size, first = QUICK if quick else FULL, first_number(key)
    known = {policy.name: policy for policy in NAMED}
    compared = [known[name] for name in _COMPARED if name in known]
    chosen = tuple(dict.fromkeys((*NO_PROXY, *policies, Policy.HIVEMIND))) if policies else compared

    def part(name: str, cases: Sequence[Case], most_seeds: int) -> Part:
        wanted = [setup for case in cases for setup in setups(case)]
        return Part(name, wanted, chosen, range(first, first + (seeds or most_seeds)))

    if names:
        return [part("worlds", cases_named(names), size.zoo_seeds)]
    scenarios = part("scenarios", list(cases().values()), size.scenario_seeds)
    parts = [
        scenarios,
        part("variants", [*variants().values()][:: size.zoo_step], size.zoo_seeds),
        part("random loads", [random_case(first + number) for number in range(size.loads)], size.load_seeds),
    ]
    if size.ablation_seeds and not policies:
        told = [setup for setup in scenarios.setups if setup.headers]
        whole = (Policy.HIVEMIND, *map(without, Primitive))
        parts.append(Part("without", told, whole, range(first, first + size.ablation_seeds)))
    return [one for one in parts if one.setups]


def _run(parts: Sequence[Part], workers: int) -> Proof:
    count = sum(len(trials_of(setup, part.policies, part.seeds)) for part in parts for setup in part.setups)
    series: dict[str, list[Series]] = {}
    with progress(count) as done:
        for part in parts:
            series[part.name] = run_series(part.setups, part.policies, part.seeds, workers=workers, done=done)
    return Proof(without=series.pop("without", []), series=series)


def _minimised(proof: Proof) -> Iterator[Case]:
    """Smaller cases of missed expectations, of a world each: those that lose agents first."""
    not_met = [(one, verdict) for one in proof.all for verdict in one.verdicts() if not verdict.is_met]
    not_met.sort(key=lambda pair: pair[1].what != "agents lost")
    worlds: set[str] = set()
    for series, verdict in not_met:
        name = f"minimised-{series.setup.case.name.replace(':', '-')}"
        if len(worlds) == _MINIMISED or name in worlds:
            continue
        # What all runs miss together, no single run has to miss.
        found = (minimised(series.setup, seed, verdict, tries=_TRIES) for seed in series.seeds)
        if case := next(filter(None, found), None):
            worlds.add(name)
            yield replace(case, scenario=replace(case.scenario, name=name))


def _write(output: Path, page: str, proof: Proof, small: Sequence[Case]) -> None:
    cases, judge = output / "proof", output / "judge.md"
    output.mkdir(parents=True, exist_ok=True)
    (output / "proof.md").write_text(page, encoding="utf-8")
    (output / "proof.csv").write_text(proof_page.csv_of(proof), encoding="utf-8")
    for old in cases.glob("minimised-*.yaml"):
        old.unlink()
    if small:
        cases.mkdir(exist_ok=True)
    for case in small:
        (cases / f"{case.name}.yaml").write_text(written(case), encoding="utf-8")
    if judge.is_file() and "<!-- judged -->" in (text := judge.read_text(encoding="utf-8")):
        judge.write_text(markdown_filled(text, {"judged": proof_page.worlds_table(proof)}), encoding="utf-8")
