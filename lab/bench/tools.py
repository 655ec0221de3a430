"""What the queue before tools is worth: twenty agents that stampede a simulated GitHub and a search API.

python -m lab.bench.tools             the table, over twenty seeds of virtual time; some ten seconds
python -m lab.bench.tools --write     and into docs/tools.md
"""

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean

from lab.tool_fleet import GITHUB, SEARCH, USUAL, FleetRun, direct, scheduled

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"
BEGIN, END = "<!-- fleet -->", "<!-- end -->"
SEEDS = range(20)
ARMS: dict[str, Callable[[int], FleetRun]] = {
    "direct": direct,
    "direct, clients that send twice again as told": lambda seed: direct(seed, resends=2),
    "through hivemind": scheduled,
}


def table() -> str:
    """As Markdown: means over all seeds; the same at each run."""
    lines = [
        "| | calls lost | worst seed | lost of GitHub / of the search API | sent ÷ wanted | refused there | P50 | P95 | done after |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
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
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        (
            f"{USUAL.agents} agents, {wanted:,.0f} calls on one GitHub token and one search key, {len(SEEDS)} seeds, "
            "virtual time (`python -m lab.bench.tools`)."
        ),
    ]
    return "\n".join(lines)


def main() -> None:
    """Print it, or write it."""
    found = table()
    print(found)
    if "--write" in sys.argv[1:]:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n\n{found}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
