"""What one request makes the proxy do, counted in a real mitmdump beside a bare one: the same numbers on every machine."""

import pytest

from lab.bench import calls, stack
from lab.bench.plan import FORWARD_TLS, HTTP2, SMALL_BYTES, STREAM_FORMATS, Cell
from tests.cases import each
from tests.e2e.proxy import free_port

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("price")]

REQUESTS = 4
CELLS = (
    Cell(SMALL_BYTES, False, 1, REQUESTS),
    Cell(SMALL_BYTES, True, 1, REQUESTS, interval_ms=10),
    Cell(SMALL_BYTES, True, 1, REQUESTS, FORWARD_TLS, interval_ms=10),
    Cell(SMALL_BYTES, False, 1, REQUESTS, HTTP2),
    *(Cell(SMALL_BYTES, True, 1, REQUESTS, interval_ms=10, format=api) for api in STREAM_FORMATS),
)
MADE = ("tasks", "futures", "timers", "callbacks")
EACH_SECOND = ("Script.watcher", "LiveSettings._look_again")
"""What makes them beside every request."""


@pytest.fixture(scope="module")
def counted():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack, "free_port", free_port)
        with calls.counting() as (proxies, questions):
            return calls.count(proxies, questions, CELLS)


def complaint(counted, cell):
    return f"{cell.name}\n{calls.table({cell: counted[cell]})}\n{calls.details({cell: counted[cell]}, 30)}"


@each("cell", CELLS)
def test_only_listeners_are_called_for_a_hook_and_each_once(counted, cell):
    ours = counted[cell]["addon"].numbers
    assert (ours.get("addons asked", 0), ours["hooks called"]) == (0, ours["listeners"]), complaint(counted, cell)


def made(counts):
    """In each request, by kind."""
    every = dict.fromkeys(MADE, 0)
    for origin, number in counts.origins.items():
        kind, _, place = origin.partition(": ")
        if kind in every and not place.endswith(EACH_SECOND):
            every[kind] += int(number)
    return every


@each(
    ("cell", "alarms"),
    # An answer that comes in pieces may fall silent: mitmproxy is asked once to wake its layer then.
    [(cell, int(cell.streamed or cell.mode == HTTP2)) for cell in CELLS],
)
def test_a_request_that_meets_no_contention_makes_no_more_than_through_bare_mitmdump(counted, cell, alarms):
    bare, ours = (made(counted[cell][variant]) for variant in ("bare", "addon"))
    allowed = bare | {"tasks": alarms, "timers": alarms}
    assert {kind: number for kind, number in ours.items() if number > allowed[kind]} == {}, complaint(counted, cell)
    for side in ("client", "provider"):
        bare, ours = (counted[cell][variant].numbers[f"writes, {side}"] for variant in ("bare", "addon"))
        assert ours <= bare, complaint(counted, cell)


@each("cell", CELLS)
def test_a_request_makes_fewer_calls_than_through_bare_mitmdump(counted, cell):
    bare, ours = (counted[cell][variant].numbers[calls.CALLS] for variant in ("bare", "addon"))
    assert ours < 0.75 * bare, complaint(counted, cell)


@each("cell", CELLS)
def test_nothing_of_an_ended_request_waits_for_the_collector(counted, cell):
    """One in each request, that is: what the loop leaves now and then is not a request's."""
    assert [name for name, number in counted[cell]["addon"].left.items() if number >= 1] == [], complaint(counted, cell)
