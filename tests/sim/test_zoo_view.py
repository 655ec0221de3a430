"""The zoo for people: a table that fits a terminal, and a section of the proof."""

import io
from dataclasses import replace

from rich.console import Console

from hivemind_addon.lab.sim.closed_loop import Run
from hivemind_addon.lab.sim.gateway import Gateway
from hivemind_addon.lab.sim.zoo import Measure, section, table
from hivemind_addon.lab.sim.zoo_entries import ZOO, ZooEntry

RUN = Run(
    time_s=100, agents=20, lost=0, delivered=400, longest_s=9, attempts=400, refused=0, struck=0, over_cap=0, used=None
)
FREE = Measure(ZooEntry("free", "no limit at all", lambda _: Gateway()), (RUN,), (RUN,))
SLOW = replace(FREE, entry=replace(FREE.entry, name="slow"), mine=(replace(RUN, time_s=200, lost=2),))
CAPPED = Measure(
    replace(FREE.entry, name="capped", beyond="it cannot be known"),
    (replace(RUN, attempts=500, refused=100, over_cap=100, used=0.8),),
    (replace(RUN, used=1.0),),
)


def test_each_entry_has_a_row_that_says_whether_its_goals_are_reached():
    console = Console(width=80, file=io.StringIO())
    console.print(table([FREE, SLOW, CAPPED]))
    _, free, slow, capped, *_ = console.file.getvalue().splitlines()
    assert free.split() == ["free", "0", "0.0%", "0.0%", "1.00-1.00", "100", "✓"]
    assert slow.split() == ["slow", "2", "0.0%", "0.0%", "2.00-2.00", "200", "✗"]
    assert capped.split() == ["capped", "0", "20.0%", "0.0%", "1.00-1.00", "100", "80%", "20.0%", "beyond"]


def test_the_longest_name_fits_80_columns():
    longest = max((entry.name for entry in ZOO), key=len)
    worst = replace(RUN, time_s=9_800, lost=100, attempts=500, refused=100, over_cap=100, used=1.0)
    wide = replace(CAPPED, entry=replace(CAPPED.entry, name=longest), mine=(worst,))
    assert Console(width=200).measure(table([wide])).maximum <= 80


def test_the_section_says_what_each_entry_is_and_why_one_is_beyond():
    text = section([FREE, SLOW, CAPPED])
    assert "1 seeds" in text
    assert "| free | no limit at all | 0 of 20 | 0.0%, 0.0% | 1.00, 1.00 |  | met |" in text
    assert "| slow | no limit at all | 2 of 20 | 0.0%, 0.0% | 2.00, 2.00 |  | **missed** |" in text
    assert "| capped | no limit at all | 0 of 20 | 20.0%, 0.0% | 1.00, 1.00 | 80%, 20.0% | beyond |" in text
    assert text.endswith("\n- `capped` is beyond: it cannot be known\n")
