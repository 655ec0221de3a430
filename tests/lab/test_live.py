"""`hivemind lab prove --live`: what counts as agreement, what is printed, and the peer without the network."""

import asyncio
import dataclasses
import subprocess
import sys
from collections import Counter

import pytest

from hivemind_addon.sim.bound import Bound
from hivemind_addon.sim.library import cases
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.mitmdump import MitmdumpNotStarted
from hivemind_addon.sim.result import CrowdResult, Result
from lab import live
from lab.live import Comparison, text_of, through_peer
from tests.cases import each
from tests.e2e.proxy import free_port


def result(*, lost=0, end_s=11.0, refused=0, cost=100.0, turns_done=80, failed=0):
    return Result(
        makespan_s=end_s,
        bound=Bound(10.0, "a limit"),
        attempts=100,
        statuses=Counter({200: 100 - refused, 429: refused // 2, 529: refused - refused // 2, 502: failed}),
        crowds={"agent": CrowdResult(20, lost, turns_done, (1.0, 2.0), (end_s,))},
        deaths=Counter({"status 502": lost} if lost else {}),
        cost=cost,
        ideal_cost=100.0,
        cap_used=0.0,
        breaker_opened=0,
        sheds=0,
        neighbour_calls=0,
        shared_bound_s=10.0,
    )


def comparison(ours, virtual=None, guard_trips=0):
    return Comparison("stress", LimitKind.BUCKET, virtual or result(), ours, guard_trips, {"direct": result(lost=20)})


@each(
    ("ours", "virtual", "words"),
    [
        (result(), None, ""),
        (result(refused=6), None, ""),
        (result(refused=7), None, "7 more attempts refused"),
        (result(end_s=11.9), None, ""),
        (result(end_s=12.5), None, "time ÷ bound 1.250, 1.100 in virtual time"),
        (result(end_s=9.5), None, "time ÷ bound 0.950"),
        (result(end_s=12.4), result(turns_done=400), ""),
        (result(end_s=13.5), result(failed=10), ""),
        (result(cost=108), None, ""),
        (result(cost=115), None, "input cost ÷ ideal 1.150"),
        (result(lost=1), None, "1 agents lost, 0 in virtual time: {'status 502': 1}"),
        (result(lost=6), result(lost=3), ""),
        (result(lost=7), result(lost=3), "7 agents lost"),
    ],
)
def test_small_differences_are_agreement_and_large_ones_are_named(ours, virtual, words):
    found = comparison(ours, virtual).disagreements()
    assert len(found) == bool(words)
    assert all(line.startswith(f"stress, bucket: {words}") for line in found)


def test_the_text_has_a_row_for_each_way_and_the_verdict():
    text = text_of([comparison(result())])
    assert text.endswith("`hivemind` agrees with `virtual` everywhere.\n")
    assert "| stress | bucket | virtual | 0 of 20 | 100 | 0 | 1.100 | 1.000 |  |" in text
    assert "| stress | bucket | direct | 20 of 20 | 100 | 0 |  | 1.000 | status 502 (20) |" in text
    assert "- stress, bucket: 2 guard trips\n" in text_of([comparison(result(), guard_trips=2)])


# The peer -------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """The peer may take long to start, and meanwhile no connection of other tests gets its port."""
    monkeypatch.setattr(live, "_START_S", 120.0)
    monkeypatch.setattr(live, "free_port", lambda _: free_port())
    monkeypatch.setattr(live.venv, "create", lambda folder, **_: None)


def test_where_the_peer_cannot_be_installed_one_line_says_why(monkeypatch, capsys):
    for error, words in (
        (subprocess.CalledProcessError(1, "pip", stderr="noise\nERROR: no matching distribution\n"), "no matching"),
        (subprocess.TimeoutExpired("pip", 300), "timed out"),
        (OSError("no space left"), "no space left"),
    ):

        def pip(*_, error=error, **__):
            raise error

        monkeypatch.setattr(live.subprocess, "run", pip)
        with live._peer() as ways:
            assert ways == {}
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line


FAKE = """\
#!{python}
import sys, socket
port = int(sys.argv[sys.argv.index("--port") + 1])
assert sys.argv[sys.argv.index("--max-concurrency") + 1] == "3"
server = socket.create_server(("127.0.0.1", port))
while True:
    server.accept()[0].close()
"""


async def test_the_peer_stands_before_the_provider_with_the_true_cap_until_the_block_ends(tmp_path):
    program = tmp_path / "hivemind"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(0o755)
    async with through_peer(program, cases()["stress"].scenario, 0) as stage:
        url = stage.route.base_url
        assert url.startswith("http://127.0.0.1:")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    program.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(MitmdumpNotStarted, match="does not listen"):
        async with through_peer(program, cases()["stress"].scenario, 0):
            pytest.fail("it never listened")


@pytest.mark.slow
@pytest.mark.xdist_group("live")
async def test_the_scheduler_keeps_agents_alive_that_die_on_their_own():
    scenario = cases()["replay-11"].scenario
    (crowd,) = scenario.crowds
    # Three turns each: 33 calls at a cap of 5, a seventh of which fails.
    small = live.scaled(dataclasses.replace(scenario, crowds=(dataclasses.replace(crowd, turns=3),)), 5)
    one = await live.compare(small, LimitKind.BUCKET, seed=0, others={"direct": live.straight})
    assert (one.live.lost, one.live.turns_done) == (0, 33), one.live.deaths
    assert one.others["direct"].lost > 2
