"""docs/fleets.md: what came of every run."""

from collections.abc import Mapping, Sequence

from fleets.experiment import Experiment
from fleets.fleet import FleetResult, FleetSettings
from fleets.programs import CLAUDE_VERSION, CODEX_VERSION

_HEAD = """\
# Fleets of real agents

<!-- Written by `make fleets`, which runs them: change fleets/page.py instead. -->

Real agents share one key for each of two simulated providers on this machine, which are strict and faulty. Each agent
appends {lines} lines to a file, one a turn, with its own shell tool. It has *finished* when the file is there and
right: each line once, in order. Claude Code {claude} and Codex {codex}, unmodified.

Each provider allows {requests} requests and {tokens:,} tokens a minute (Claude's: input; Codex's: input and the most
that may come out) and {concurrency} calls at once. Of the calls that its limits let through, some fail at random:
{faults}.

*Calls upstream*: the ones that reached a provider. *429s*: refused for a limit; *529s, 503s*: for too many at once.
*Wasted*: tokens that a provider counted and that are in no finished task. *Books*: what the addon itself counted,
beside the providers' own truth.
"""
_COLUMNS = ("run", "finished", "calls upstream", "429s", "529s, 503s", "wasted tokens", "guard trips", "wall time")


def page(done: Sequence[tuple[Experiment, Sequence[FleetResult]]]) -> str:
    """The whole page."""
    settings = FleetSettings()
    parts = [
        _HEAD.format(
            lines=settings.lines,
            claude=CLAUDE_VERSION,
            codex=CODEX_VERSION,
            requests=settings.requests_per_minute,
            tokens=settings.tokens_per_minute,
            concurrency=settings.concurrency,
            faults=_shares(settings.faults),
        )
    ]
    for experiment, results in done:
        parts += [f"## {experiment.title}\n", f"{experiment.explanation}\n", _table(results)]
        parts += [f"{line}\n" for line in (_lost(results), _books(results)) if line]
    return "\n".join(parts)


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
    lines = []
    for result in results:
        if (books := result.books) is None:
            continue
        tokens = books.input_tokens + books.output_tokens
        lines.append(
            f"- seed {result.seed}: {books.attempts} calls, {books.throttled} 429s, {tokens:,} tokens in the "
            f"books; {result.attempts} calls, {result.limited} 429s, {result.completed_tokens:,} tokens in complete "
            f"answers and {result.tokens - result.completed_tokens:,} in broken ones at the providers"
        )
    lines += [
        f"- seed {result.seed}: another process served after {result.back_after_s:.1f} s"
        for result in results
        if result.back_after_s is not None
    ]
    return "\n".join(["Books:\n", *lines]) if lines else ""
