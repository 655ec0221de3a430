"""What came of a capture's replay through a real proxy, as a table: each call then and now."""

from collections import Counter
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hivemind_addon.api.words import brief, several
from hivemind_addon.lab.sim.real_replay import RealReplay, ReplayedCall
from hivemind_addon.proxy.capture.model import CapturedCall

_LONG = 40
"""Calls; of more only those are shown that differ, and those that waited longest."""


def real_view(replay: RealReplay) -> RenderableType:
    """The table and its sums."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("call")
    table.add_column("agent", overflow="ellipsis", no_wrap=True, max_width=24)
    for title in ("arrived", "attempts", "then", "waited", "then"):
        table.add_column(title, justify="right", style="dim" if title == "then" else "")
    table.add_column("end", no_wrap=True)
    table.add_column("then", no_wrap=True, style="dim")
    shown = [call for _, call in zip(range(_LONG), _in_order(replay), strict=False)]
    for call in shown:
        table.add_row(*_cells(call), style="bold red" if call.differs else "")
    return Group(table, *_left_out(replay, len(shown)), Text(), *_sums(replay))


def _in_order(replay: RealReplay) -> list[ReplayedCall]:
    """All, as they came; of many those that tell most first."""
    if len(replay.calls) <= _LONG:
        return list(replay.calls)
    return sorted(
        replay.calls, key=lambda call: (not call.differs, -abs(_waited(call.replayed) - call.recorded.waited_s))
    )


def _left_out(replay: RealReplay, shown: int) -> Iterator[Text]:
    if shown < len(replay.calls):
        yield Text(f"and {len(replay.calls) - shown} more, nearer to what was recorded", style="dim")


def _cells(call: ReplayedCall) -> tuple[str, ...]:
    then, now = call.recorded, call.replayed
    return (
        then.id[:10],
        then.agent,
        brief(then.at_s),
        str(len(now.attempts)) if now else "-",
        str(len(then.attempts)),
        brief(now.waited_s) if now else "-",
        brief(then.waited_s),
        now.end if now else "never came",
        then.end,
    )


def _sums(replay: RealReplay) -> Iterator[Text]:
    then = [call.recorded for call in replay.calls]
    now = [call.replayed for call in replay.calls if call.replayed is not None]
    pace = f", {replay.pace:g} times as fast" if replay.pace != 1 else ""
    yield Text(f"replayed in {brief(replay.elapsed_s)}{pace}: {_ends(now)}; recorded: {_ends(then)}")
    yield Text(
        f"attempts {sum(len(call.attempts) for call in now)}, recorded {sum(len(call.attempts) for call in then)}; "
        f"waited {brief(sum(call.waited_s for call in now))}, recorded {brief(sum(call.waited_s for call in then))}"
    )
    if replay.guard_trips:
        yield Text(
            f"{several(replay.guard_trips, 'guard trip')}: the scheduler has failed, please report", style="bold red"
        )


def _ends(calls: list[CapturedCall]) -> str:
    return ", ".join(f"{count} {end}" for end, count in Counter(call.end for call in calls).most_common()) or "nothing"


def _waited(call: CapturedCall | None) -> float:
    return call.waited_s if call else 0.0
