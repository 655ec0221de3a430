"""What the zoo measured, for people: a table for a terminal, and a section in Markdown. Pure."""

from collections.abc import Sequence
from statistics import median

from rich.table import Table
from rich.text import Text

from hivemind_addon.lab.sim.zoo import Measure

_SECTION = """\
## The zoo

Limiters of many kinds (`lab/sim/zoo_entries.py`), each before 20 agents of 20 turns where nothing else is said, through
the real scheduler, beside an oracle that may ask the limiter: it sends each request at the instant at which it passes,
in the best of three orders, and only chance refuses it. {seeds} seeds. *Refused* is the share of the attempts that were
not answered, for whatever reason, and the oracle's; *time* is divided by the oracle's, the mean and the worst of the
runs; *cap* is how much of a limit on attempts at once was used while there was enough to fill it, of what the oracle
used, and the share of the attempts that it refused. Agents that still run after 30 times the oracle's time, or after 20
attempts for each turn, count as lost.

The goals: nobody lost; refused ≤ 3 %, or 1 point over the oracle's; time ≤ 1.15 in the mean (≤ 1.10 with up to 6 % of
529 by chance); more than 90 % of a cap used at ≤ 2 % refused by it.

"""


def table(measures: Sequence[Measure]) -> Table:
    """Each entry in a line, with what `section` explains. Fits 80 columns."""
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    made.add_column("entry", no_wrap=True)
    for name in ("lost", "refused", "oracle", "÷ oracle", "s", "cap", "over"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("", no_wrap=True)
    for one in measures:
        is_met = not one.misses()
        made.add_row(
            one.entry.name,
            Text(f"{one.lost}", style="red" if one.lost else ""),
            f"{one.refused:.1%}",
            f"{one.oracle_refused:.1%}",
            f"{one.stretch:.2f}-{max(one.stretches):.2f}",
            f"{median(run.time_s for run in one.mine):.0f}",
            "" if one.used is None else f"{one.used:.0%}",
            "" if one.used is None else f"{one.over_cap:.1%}",
            Text("✓" if is_met else "beyond" if one.entry.beyond else "✗", style="green" if is_met else "red"),
        )
    return made


def section(measures: Sequence[Measure]) -> str:
    """The same as Markdown, with what each entry is."""
    rows = [
        "| Entry | What | Lost | Refused, oracle's | Time ÷ oracle's | Cap used, refused by it | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in measures:
        cap = "" if one.used is None else f"{one.used:.0%}, {one.over_cap:.1%}"
        word = "met" if not one.misses() else "beyond" if one.entry.beyond else "**missed**"
        rows.append(
            f"| {one.entry.name} | {one.entry.about} | {one.lost} of {one.agents} "
            f"| {one.refused:.1%}, {one.oracle_refused:.1%} "
            f"| {one.stretch:.2f}, {max(one.stretches):.2f} | {cap} "
            f"| {word} |"
        )
    beyond = [f"- `{one.entry.name}` is beyond: {one.entry.beyond}" for one in measures if one.entry.beyond]
    text = _SECTION.format(seeds=max((len(one.mine) for one in measures), default=0)) + "\n".join(rows) + "\n"
    return text + ("\n" + "\n".join(beyond) + "\n" if beyond else "")
