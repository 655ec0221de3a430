"""`python -m lab.bench.compaction`: what compaction keeps and costs; writes the table of docs/compaction.md.

In virtual terms: the same numbers on every machine. Half a minute.
"""

import sys
from pathlib import Path

from lab.compaction import rows, section

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compaction.md"
BEGIN, END = "<!-- measured: python -m lab.bench.compaction -->\n", "<!-- end -->\n"


def main() -> None:
    """Write the table, and print what stands beside AgentRM's."""
    before, mark, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        sys.exit(f"{PAGE}: the lines {BEGIN.strip()} and {END.strip()} are missing")
    PAGE.write_text(f"{before}{BEGIN}\n{section()}\n{END}{after}", encoding="utf-8")
    for what, theirs, ours in rows():
        print(f"{what}: {theirs}; ours: {ours}")


if __name__ == "__main__":
    main()
