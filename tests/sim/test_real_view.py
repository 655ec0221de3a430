import io

from rich.console import Console

from hivemind_addon.lab.sim.real_replay import RealReplay, ReplayedCall, real_view
from tests.capture.samples import make_call
from tests.cases import over


def shown(*calls, width=80, guard_trips=0):
    console = Console(width=width, file=io.StringIO())
    console.print(real_view(RealReplay(pace=4, calls=calls, elapsed_s=8.1, attempts=9, guard_trips=guard_trips)))
    return console.file.getvalue()


@over("width", [80, 120])
def test_each_call_has_its_line_then_and_now(width):
    same = ReplayedCall(make_call("same"), make_call("x", waited_s=2.0))
    text = shown(same, ReplayedCall(make_call("lost"), None), width=width)
    assert "same" in text
    assert "never came" in text
    assert "replayed in 8.1s, 4 times as fast: 1 delivered; recorded: 2 delivered" in text
    assert max(map(len, text.splitlines())) <= width


def test_of_many_calls_those_that_differ_are_shown():
    calls = [ReplayedCall(make_call(f"call-{n}"), make_call("x")) for n in range(100)]
    odd = ReplayedCall(make_call("odd-one"), make_call("x", end="gave up"))
    text = shown(*calls, odd)
    assert "odd-one" in text
    assert "and 61 more" in text


def test_a_guard_trip_is_said():
    assert "2 guard trips" in shown(guard_trips=2)
