"""The worth of the queue before tools: twenty agents that stampede a simulated GitHub and a search API.

python -m lab.bench.tools             the table, over twenty seeds of virtual time; some ten seconds
python -m lab.bench.tools --write     and into docs/tools.md
"""

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean

from lab.markdown import markdown_filled, markdown_table
from lab.tool_fleet import GITHUB, SEARCH, USUAL, FleetRun, direct, scheduled

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"
SEEDS = range(20)
ARMS: dict[str, Callable[[int], FleetRun]] = {
    "direct": direct,
    "direct, clients that send twice again as told": lambda seed: direct(seed, resends=2),
    "through hivemind": scheduled,
}


def table() -> str:
    """As Markdown: means over all seeds; the same at each run."""
    rows = []
    for name, play in ARMS.items():
        runs = [play(seed) for seed in SEEDS]
        wanted = mean(run.wanted.total() for run in runs)
        lost = {
            host: sum(run.refused[host] for run in runs) / sum(run.wanted[host] for run in runs)
            for host in (GITHUB, SEARCH)
        }
        cells = [
            f"{mean(run.lost_share for run in runs):.2%}",
            f"{max(run.lost_share for run in runs):.2%}",
            f"{lost[GITHUB]:.1%} / {lost[SEARCH]:.1%}",
            f"{mean(run.sent.total() for run in runs) / wanted:.2f}",
            f"{mean(run.refused_there.total() for run in runs):.1f}",
            f"{mean(run.wait_s(0.5) for run in runs):.1f} s",
            f"{mean(run.wait_s(0.95) for run in runs):.1f} s",
            f"{mean(run.took_s for run in runs):.0f} s",
        ]
        rows.append(f"{name} | {' | '.join(cells)}")
    titles = "| calls lost | worst seed | lost of GitHub / of the search API | sent ÷ wanted | refused there | P50 | P95 | done after"
    return (
        f"{markdown_table(titles, rows)}\n{USUAL.agents} agents, {wanted:,.0f} calls on one GitHub token and one search "
        f"key, {len(SEEDS)} seeds, virtual time (`python -m lab.bench.tools`)."
    )


def main() -> None:
    """Print the table, or write the page."""
    found = table()
    print(found)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(markdown_filled(PAGE.read_text(encoding="utf-8"), {"fleet": found}), encoding="utf-8")


if __name__ == "__main__":
    main()
