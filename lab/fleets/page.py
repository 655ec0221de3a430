"""docs/fleets.md: what came of every run."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from lab.fleets.books import Book
from lab.fleets.experiment import Experiment, experiments
from lab.fleets.fleet import FleetResult, FleetSettings
from lab.fleets.kinds import Program

_HEAD = """\
# Fleets of real agents

<!-- Written by `make fleets`, which runs them: change lab/fleets/page.py instead. -->

Thirty real agents of every kind share one key for each of three simulated providers on this machine, which are strict
and faulty. Each agent brings {lines} lines into a file, one a turn: with its own shell tool; aider, which has none, by
edits that a test of its own demands. It has *finished* when the file is there and right: each line once, in order.
All are unmodified:

{kinds}

Each provider allows {requests} requests and {tokens:,} tokens a minute (OpenAI's counts the most that may come out,
the others' what goes in) and {concurrency} calls at once, of each model by itself; nearly all calls are of one model.
Google's tells none of its limits. Of the calls that the limits let through, some fail at random: {faults}; a
`stream-close` is a cut in the middle of an answer.

*Calls upstream*: the ones that reached a provider. *429s*: refused for a limit; *529s, 503s*: for too many at once.
*Wasted*: tokens that a provider counted and that are in no finished task. *Books*: what the addon's journal counted,
beside the providers' own truth.
"""
_COLUMNS = ("run", "finished", "calls upstream", "429s", "529s, 503s", "wasted tokens", "guard trips", "wall time")


def page(done: Sequence[tuple[Experiment, Sequence[FleetResult]]], before: str = "") -> str:
    """The whole page. `before`: an older one, whose sections are kept where nothing was run anew."""
    settings = FleetSettings()
    by_title = dict(sections(before)) | {
        experiment.title: _section(experiment, results) for experiment, results in done
    }
    titles = [experiment.title for experiment in experiments(settings, 1).values()]
    return "\n".join([_head(settings), *(by_title[title] for title in titles if title in by_title)])


def _head(settings: FleetSettings) -> str:
    return _HEAD.format(
        lines=settings.lines,
        kinds="\n".join(_kind(program, count) for program, count in settings.agents.items()),
        requests=settings.requests_per_minute,
        tokens=settings.tokens_per_minute,
        concurrency=settings.concurrency,
        faults=_shares(settings.faults),
    )


def _kind(program: Program, count: int) -> str:
    kind = program.value
    return f"- {count} {kind.title} {kind.package.version} at {kind.host} ({kind.format.value})"


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Title → section of an older page."""
    for part in text.split("\n## ")[1:]:
        yield part.partition("\n")[0], f"## {part.rstrip()}\n"


def _section(experiment: Experiment, results: Sequence[FleetResult]) -> str:
    parts = [f"## {experiment.title}\n", f"{experiment.explanation}\n", _table(results), f"{_by_kind(results)}\n"]
    return "\n".join([*parts, *(f"{one}\n" for one in (_lost(results), _books(results)) if one)])


def _by_kind(results: Sequence[FleetResult]) -> str:
    every, finished = Counter[Program](), Counter[Program]()
    for agent in (agent for result in results for agent in result.agents):
        every[agent.program] += 1
        finished[agent.program] += agent.finished
    shares = (f"{program.value.title} {finished[program]} of {count}" for program, count in every.items())
    return f"Finished: {', '.join(shares)}."


def summary(result: FleetResult) -> str:
    """One line for the terminal."""
    lost = ", ".join(agent.name for agent in result.agents if not agent.finished)
    return (
        f"{result.route.value}, seed {result.seed}: {result.finished} of {len(result.agents)} finished"
        f"{f' (lost: {lost})' if lost else ''}, {result.attempts} calls upstream, {result.limited} 429s, "
        f"{result.wasted_tokens:,} tokens wasted, {result.guard_trips} guard trips, {result.elapsed_s:.0f} s"
    )


def _shares(faults: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in faults.items())


def _table(results: Sequence[FleetResult]) -> str:
    rows = [f"| {' | '.join(_COLUMNS)} |", f"|{' --- |' * len(_COLUMNS)}"]
    for result in results:
        cells = (
            f"seed {result.seed}",
            f"**{result.finished} of {len(result.agents)}**",
            f"{result.attempts}",
            f"{result.limited} ({result.limited / max(1, result.attempts):.1%})",
            f"{result.overloaded}",
            f"{result.wasted_tokens:,} ({result.wasted_tokens / max(1, result.tokens):.0%})",
            f"{result.guard_trips}",
            f"{result.elapsed_s:.0f} s",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _lost(results: Sequence[FleetResult]) -> str:
    lines = []
    for result in results:
        reasons: dict[str, list[str]] = {}
        for agent in result.agents:
            if not agent.finished:
                reasons.setdefault(agent.words, []).append(agent.name)
        lines += [f"- seed {result.seed}: {', '.join(names)}: {words}" for words, names in reasons.items()]
    return "\n".join(["Lost:\n", *lines]) if lines else ""


def _books(results: Sequence[FleetResult]) -> str:
    rows = []
    for result in results:
        if result.books is None:
            continue
        truth = result.truth
        for name in sorted(result.books.keys() | truth.keys()):
            ours, theirs = result.books.get(name, Book()), truth.get(name, Book())
            verdict = "equal" if ours == theirs else "**not equal**"
            rows.append(f"| seed {result.seed} | {name} | {_cells(ours)} | {_cells(theirs)} | {verdict} |")
    parts = [_BOOKS, *rows] if rows else []
    parts += [
        f"\nseed {result.seed}: another process served after {result.back_after_s:.1f} s"
        for result in results
        if result.back_after_s is not None
    ]
    return "\n".join(parts)


def _cells(book: Book) -> str:
    return f"{book.calls} calls, {book.complete} complete, {book.tokens:,} tokens"


_BOOKS = """\
| run | format | the books | the provider | |
| --- | --- | --- | --- | --- |"""
