"""What an agent is told of itself, of a real scheduler over a real control socket."""

import pytest

from hivemind_addon.kernel.values.command import SetBudget, SetPriority
from hivemind_addon.kernel.values.spend import Scope
from hivemind_addon.kernel.values.ticket import Demand, Priority, Usage
from hivemind_addon.proxy.system.clock import SystemClock
from tests.kernel.samples import CUT
from tests.proxy.journal.book import journal_with
from tests.tools.dash.samples import context
from tests.tools.mcp.stage import failing, given


async def test_status_tells_what_waits_why_and_who_else_runs(stage):
    stage.bench.submit("a", session="other")
    stage.bench.submit("b", session="one")
    stage.bench.advance(3)
    async with stage.client("one") as client:
        status = await given(client, "status")
    (mine,) = status["requests"]
    assert (mine["ticket"], mine["state"], mine["position"], mine["waited_s"]) == ("b", "queued", 1, 3)
    assert mine["reason"]
    assert (
        "0 requests of yours run, 1 wait; the first of these: 1st; concurrency limit: 1 of 1 in flight, our maximum."
        in status["summary"]
    )
    assert status["others"] == [{"agent": "other", "running": 1, "waiting": 0}]
    (pool,) = status["pools"]
    assert (pool["pool"], pool["running"], pool["limit"], pool["waiting"]) == ("api.test/key-1/m", 1, 1, 1)


async def test_status_of_who_asks_for_nothing(stage):
    async with stage.client("idle") as client:
        status = await given(client, "status")
    assert status["summary"] == "None of your requests waits or runs."
    assert (status["requests"], status["budgets"], status["priority"]) == ([], [], "")


async def test_status_tells_the_budgets_that_bind_the_caller_and_no_others(stage):
    stage.bench.scheduler.command(SetBudget(Scope.AGENT, "one", tokens=1000), 0.0)
    stage.bench.scheduler.command(SetBudget(Scope.AGENT, "other", tokens=7), 0.0)
    stage.bench.scheduler.command(SetBudget(Scope.EVERYONE, micro_usd=2_500_000), 0.0)
    stage.bench.submit("a", session="one", demand=Demand(input_tokens=100, total_tokens=100))
    stage.bench.submit("x", session="other")
    async with stage.client("one") as client:
        budgets = {one["holder"]: one for one in (await given(client, "status"))["budgets"]}
    assert set(budgets) == {"agent one", "everyone"}
    assert budgets["agent one"]["left_tokens"] <= 1000
    assert budgets["agent one"]["left_usd"] is None
    assert budgets["everyone"]["left_usd"] == 2.5


async def test_status_tells_how_full_the_callers_own_contexts_are(stage):
    stage.pressures = (context("other"), context("one", "old", seen_ago_s=9_000.0), context("one", "talk"))
    async with stage.client("one") as client:
        status = await given(client, "status")
    newest, old = status["contexts"]
    assert (newest["session"], newest["full"], newest["turns_left"], newest["growth_per_turn"]) == (
        "talk",
        0.83,
        8,
        4250,
    )
    assert old["session"] == "old"
    assert status["summary"].endswith("Your conversation talk fills 83% of its model's context window.")


async def test_metrics_count_the_callers_own_sessions_only(stage):
    stage.bench.submit("a", session="one")
    stage.bench.settle("a", usage=Usage(input_tokens=10, cache_read_tokens=5, output_tokens=2, reported=True))
    stage.bench.submit("b", session="other")
    stage.bench.settle("b", usage=Usage(input_tokens=1000, output_tokens=1000))
    stage.bench.submit("c", session="one")
    stage.bench.settle("c", CUT)
    async with stage.client("one") as client:
        metrics = await given(client, "metrics")
    assert metrics["since"] == "the proxy's start, 60 s ago"
    wanted = {"requests": 2, "delivered": 1, "running_or_waiting": 1, "lost": 0, "input_tokens": 15}
    wanted |= {"cached_input_tokens": 5, "output_tokens": 2, "usd": 0}
    assert {key: metrics[key] for key in wanted} == wanted


async def test_metrics_are_todays_where_there_is_a_journal(stage, monkeypatch):
    now = SystemClock().wall()
    monkeypatch.setattr(SystemClock, "wall", lambda _: now)  # no midnight meanwhile

    def fill(book):
        book.run(began=now - 100_000, seen=now)
        book.ticket("t-now", agent="one", arrived=now)
        book.attempt("t-now", began=now)
        book.ticket("t-then", agent="one", arrived=now - 90_000)
        book.attempt("t-then", began=now - 90_000)
        book.ticket("t-theirs", agent="other", arrived=now)

    journal_with(stage.journal, fill)
    async with stage.client("one") as client:
        metrics = await given(client, "metrics")
        assert metrics["since"].startswith("midnight (")
        assert (metrics["requests"], metrics["input_tokens"], metrics["usd"]) == (1, 1400, 0.03)


async def test_a_call_that_nothing_holds_would_run_at_once(stage):
    async with stage.client("one") as client:
        nothing = await given(client, "wait_estimate")
        stage.bench.submit("a", session="other")
        stage.bench.settle("a")
        free = await given(client, "wait_estimate", input_tokens=100)
    assert (nothing["starts_in_s"], nothing["pools"]) == (0, [])
    assert free["starts_in_s"] == 0
    assert free["pools"][0]["pool"] == "api.test/key-1/m"


async def test_a_call_behind_others_is_told_how_many_and_why(stage):
    stage.bench.submit("a", session="other")
    stage.bench.submit("b", session="third")
    async with stage.client("one") as client:
        behind = await given(client, "wait_estimate")
        assert "no pool 'elsewhere'" in await failing(client, "wait_estimate", pool="elsewhere")
    (pool,) = behind["pools"]
    assert pool["before"] == 1
    assert pool["why"]
    assert stage.snapshot.pools[0].tickets[-1].ticket.id == "b", "nothing was added"


def priorities(stage):
    return [(one.agent, one.priority, one.ends_in_s) for one in stage.snapshot.priorities]


async def test_a_yield_ends_by_itself(stage):
    async with stage.client("one") as client:
        done = await given(client, "yield_turn", seconds=30)
        assert done == {"done": True, "text": "Others go first for 30 s."}
        assert priorities(stage) == [("one", Priority.LOW, 30)]
        assert (await given(client, "status"))["priority"] == "low"
        stage.bench.advance(31)
        assert (await given(client, "status"))["priority"] == ""


async def test_an_agent_called_star_yields_for_itself_alone(stage):
    stage.bench.submit("a", session="other")
    async with stage.client("*") as client:
        await given(client, "yield_turn")
        assert (await given(client, "status"))["priority"] == "low"
    async with stage.client("other") as client:
        assert (await given(client, "status"))["priority"] == ""


async def test_what_an_agent_lowered_it_takes_back_and_a_persons_order_counts_again(stage):
    stage.command(SetPriority("one", Priority.HIGH))
    async with stage.client("one") as client:
        assert (await given(client, "lower_priority", restore=True))["text"].startswith("There is nothing")
        await given(client, "lower_priority")
        assert (await given(client, "status"))["priority"] == "low"
        await given(client, "lower_priority", restore=True)
        stage.bench.advance(0.01)
        assert (await given(client, "status"))["priority"] == "high"
    assert priorities(stage) == [("one", Priority.HIGH, None)]


@pytest.mark.parametrize("tool", ["yield_turn", "lower_priority"])
async def test_who_is_low_by_a_persons_order_stays_so(stage, tool):
    stage.command(SetPriority("one", Priority.LOW))
    async with stage.client("one") as client:
        assert "already" in (await given(client, tool, seconds=1))["text"]
        await given(client, "lower_priority", restore=True)
    assert priorities(stage) == [("one", Priority.LOW, None)]


async def test_a_yield_never_ends_before_the_order_whose_place_it_takes(stage):
    stage.command(SetPriority("one", Priority.NORMAL, for_s=500))
    async with stage.client("one") as client:
        await given(client, "yield_turn", seconds=5)
    assert priorities(stage) == [("one", Priority.LOW, 500)]


async def test_who_has_no_name_is_told_how_to_get_one(stage):
    async with stage.client("") as client:
        for tool in ("status", "metrics", "wait_estimate", "yield_turn", "lower_priority"):
            assert "hivemind exec --agent NAME" in await failing(client, tool)
