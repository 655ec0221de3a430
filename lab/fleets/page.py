"""The generated parts of docs/fleets.md: the results of every run."""

from collections import Counter
from collections.abc import Mapping, Sequence

from lab.fleets.fleet import Book, FleetResult, FleetSettings
from lab.fleets.kinds import Program
from lab.markdown import markdown_table

_TITLES = "run | finished | calls upstream | 429s | 529s, 503s | wasted tokens | guard trips | wall time"


def parts(done: Mapping[str, Sequence[FleetResult]]) -> dict[str, str]:
    """By the names of the marks: the agents, and each experiment that was run."""
    agents = "".join(map(_kind, *zip(*FleetSettings().agents.items(), strict=True)))
    return {"agents": agents} | {name: _section(results) for name, results in done.items()}


def _kind(program: Program, count: int) -> str:
    kind = program.value
    return f"- {count} {kind.title} {kind.package.version} at {kind.host} ({kind.format.value})\n"


def _section(results: Sequence[FleetResult]) -> str:
    every = [_table(results), f"{_by_kind(results)}\n", _lost(results), _books(results)]
    return "\n".join(one for one in every if one)


def _by_kind(results: Sequence[FleetResult]) -> str:
    every, finished = Counter[Program](), Counter[Program]()
    for agent in (agent for result in results for agent in result.agents):
        every[agent.program] += 1
        finished[agent.program] += agent.finished
    shares = (f"{program.value.title} {finished[program]} of {count}" for program, count in every.items())
    return f"Finished: {', '.join(shares)}."


def summary(result: FleetResult) -> str:
    """A line for the terminal."""
    lost = ", ".join(agent.name for agent in result.agents if not agent.finished)
    return (
        f"{result.route.value}, seed {result.seed}: {result.finished} of {len(result.agents)} finished"
        f"{f' (lost: {lost})' if lost else ''}, {result.attempts} calls upstream, {result.limited} 429s, "
        f"{result.wasted_tokens:,} tokens wasted, {result.guard_trips} guard trips, {result.elapsed_s:.0f} s"
    )


def _table(results: Sequence[FleetResult]) -> str:
    rows = (
        f"seed {one.seed} | **{one.finished} of {len(one.agents)}** | {one.attempts} "
        f"| {one.limited} ({one.limited / max(1, one.attempts):.1%}) | {one.overloaded} "
        f"| {one.wasted_tokens:,} ({one.wasted_tokens / max(1, one.tokens):.0%}) | {one.guard_trips} "
        f"| {one.elapsed_s:.0f} s"
        for one in results
    )
    return markdown_table(_TITLES, rows)


def _lost(results: Sequence[FleetResult]) -> str:
    lines = []
    for result in results:
        reasons: dict[str, list[str]] = {}
        for agent in result.agents:
            if not agent.finished:
                reasons.setdefault(agent.words, []).append(agent.name)
        lines += [f"- seed {result.seed}: {', '.join(names)}: {words}" for words, names in reasons.items()]
    return "\n".join(["Lost:\n", *lines, ""]) if lines else ""


def _books(results: Sequence[FleetResult]) -> str:
    rows = []
    for result in results:
        if result.books is None:
            continue
        truth = result.truth
        for name in sorted(result.books.keys() | truth.keys()):
            ours, theirs = result.books.get(name, Book()), truth.get(name, Book())
            verdict = "equal" if ours == theirs else "**not equal**"
            rows.append(f"seed {result.seed} | {name} | {_cells(ours)} | {_cells(theirs)} | {verdict}")
    parts = [markdown_table("run | format | the books | the provider |", rows)] if rows else []
    parts += [
        f"seed {result.seed}: another process served after {result.back_after_s:.1f} s"
        for result in results
        if result.back_after_s is not None
    ]
    return "\n".join(parts)


def _cells(book: Book) -> str:
    return f"{book.calls} calls, {book.complete} complete, {book.tokens:,} tokens"
