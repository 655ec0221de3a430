"""`python -m lab.bench.compaction`: measures compaction, and writes the table of docs/compaction.md.

In virtual terms: the same numbers on every machine. Half a minute.
"""

from pathlib import Path

from lab.compaction import rows, section
from lab.markdown import markdown_filled

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compaction.md"

if __name__ == "__main__":
    parts = {"measured: python -m lab.bench.compaction": section()}
    PAGE.write_text(markdown_filled(PAGE.read_text(encoding="utf-8"), parts), encoding="utf-8")
    for what, theirs, ours in rows():
        print(f"{what}: {theirs}; ours: {ours}")
