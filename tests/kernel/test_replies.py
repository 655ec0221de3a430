"""What people read of a command: the one place where its words are pinned."""

from hivemind_addon.kernel.values.command import (
    AddBudget,
    Cancel,
    CommandResult,
    Declined,
    ForeseeWait,
    Foresight,
    MoveToFront,
    Pause,
    ResetBudget,
    Resume,
    SetBudget,
    SetLimit,
    SetPriority,
)
from hivemind_addon.kernel.values.events import CommandDone, OverridesStand, PersonActed, PriorityEnded
from hivemind_addon.kernel.values.snapshot import BudgetView, Counters, GivenBudget, LimitNeed, PriorityView, Snapshot
from hivemind_addon.kernel.values.spend import Budget, Period, Scope, Spend
from hivemind_addon.kernel.values.ticket import PoolKey, Priority, Reason
from hivemind_addon.proxy.api.replies import person_acted, pool_overrides, reply, span_words

AGENT, GROUP, EVERYONE = Scope.AGENT, Scope.GROUP, Scope.EVERYONE
POOL, OTHER = PoolKey("api.test", "key-1", "m"), PoolKey("api.test", "key-1", "other")
ONE, BOTH, NONE = (CommandResult(pools=pools) for pools in ((POOL,), (POOL, OTHER), ()))
NOBODY, TYPO = CommandResult(nearest=""), CommandResult(nearest="agent-1")


def named(host):
    return PoolKey(host, "k", "m")


def account(name="a", tokens=1500, micro_usd=None, spent=1000, per=Period.RUN):
    budget = Budget(AGENT, name, per, tokens, micro_usd)
    return BudgetView(budget, Spend(spent, 2_000_000), Spend(), renews_in_s=None)


DONE = (
    (Pause(), BOTH),
    (Pause("api.test"), ONE),
    (Resume("x"), NONE),
    (SetLimit(3, "x"), NOBODY),
    (SetLimit(None, "api.tset"), CommandResult(nearest="api.test")),
    (SetPriority("a", Priority.LOW), NONE),
    (SetPriority("a", Priority.LOW, for_s=90.0, by="a"), NOBODY),
    (SetPriority("[*]", Priority.LOW, by="*"), NONE),
    (SetPriority("agnet-*", None, by="a"), TYPO),
    (SetBudget(AGENT, "a", tokens=1500), CommandResult(budgets=(account(),))),
    (SetBudget(AGENT, "rev-*", Period.DAY, 5, 1_000_000, by="rev-1"), CommandResult(is_new=True, nearest="")),
    (SetBudget(GROUP, "reviewer", Period.DAY, by="b"), CommandResult(nearest="reviewers")),
    (
        AddBudget(AGENT, "a", tokens=500, micro_usd=1_000_000, by="[a]"),
        CommandResult(budgets=(account(micro_usd=5_000_000), account("b", tokens=500, per=Period.HOUR))),
    ),
    (ResetBudget(EVERYONE, by="a"), CommandResult(budgets=(account(spent=0),) * 50)),
    (MoveToFront("t1"), ONE),
    (Cancel("t1"), ONE),
    (Cancel("t1"), CommandResult(pools=(POOL,), was_running=True)),
    (ForeseeWait("a"), NONE),
    (
        ForeseeWait("a"),
        CommandResult(waits=(Foresight(named("p"), 0.0, 0), Foresight(named("q"), 3.6, 1, Reason.METER))),
    ),
    (
        ForeseeWait("a"),
        CommandResult(waits=(Foresight(named("r"), None, 0, Reason.PAUSED), Foresight(named("s"), None, 0))),
    ),
)

DECLINED = (
    (Declined.NO_POOL_NAMED, Pause("")),
    (Declined.NO_AGENT_NAMED, SetPriority("", None)),
    (Declined.NO_HOLDER_NAMED, AddBudget(AGENT)),
    (Declined.EVERYONE_NAMED, AddBudget(EVERYONE, "x")),
    (Declined.NO_CALL_NAMED, ForeseeWait("")),
    (Declined.NEGATIVE_TOKENS, ForeseeWait("a", input_tokens=-1)),
    (Declined.NEGATIVE_AMOUNT, AddBudget(AGENT, "a", tokens=-1)),
    (Declined.HUGE_AMOUNT, AddBudget(AGENT, "a", tokens=10**16)),
    (Declined.NOTHING_ADDED, AddBudget(AGENT, "a")),
    (Declined.LIMIT_TOO_LOW, SetLimit(0)),
    (Declined.BAD_SPAN, SetPriority("a", None, for_s=0)),
    (Declined.NOT_PAUSED, Resume("{x}")),
    (Declined.NO_SUCH_POOL, ForeseeWait("a", pool="x")),
    (Declined.NOT_WAITING, MoveToFront("t1")),
    (Declined.NOT_ALIVE, Cancel("t1")),
    (Declined.NEVER_GIVEN, SetBudget(AGENT, "a", Period.DAY)),
    (Declined.NO_BUDGET, AddBudget(GROUP, "g", Period.HOUR, tokens=5)),
    (Declined.NO_SUCH_UNIT, AddBudget(AGENT, "a", micro_usd=5)),
    (Declined.HUGE_SUM, AddBudget(AGENT, "a", tokens=5)),
)


def test_what_was_done_is_worded_for_its_giver_and_for_the_log(golden):
    lines = []
    for command, result in DONE:
        said = reply(command, result)
        assert said.done
        lines += [f"> {command}", said.text]
        if not isinstance(command, ForeseeWait):
            acted = person_acted(CommandDone(5.0, command, result))
            lines.append(f"log: {acted.text}")
            assert (acted.at, acted.by) == (5.0, getattr(command, "by", ""))
            assert acted.pool == (POOL if result.pools == (POOL,) else None)
            assert acted.ticket_id == getattr(command, "ticket_id", None)
    golden("replies-done.txt", "\n".join(lines))


def test_what_was_declined_is_worded_with_the_cure(golden):
    assert [why for why, _ in DECLINED] == list(Declined)
    holders = tuple(f"agent {number}" for number in range(50))
    lines = []
    for why, command in DECLINED:
        result = CommandResult(why, pools=(POOL, OTHER), budgets=(account(),), holders=holders)
        said = reply(command, result)
        assert not said.done
        lines += [f"> {command}", said.text]
    assert "known: nobody yet. " in reply(ResetBudget(AGENT, "a"), CommandResult(Declined.NO_BUDGET)).text
    golden("replies-declined.txt", "\n".join(lines))


def test_programs_get_the_values():
    (value,) = reply(AddBudget(AGENT, "a", tokens=5), CommandResult(budgets=(account(),))).value
    assert (value["holder"], value["limit_tokens"], value["left_tokens"]) == ("agent a", 1500, 500)
    assert (value["limit_micro_usd"], value["left_micro_usd"]) == (None, None)
    waits = (Foresight(POOL, 4.0, 1, Reason.METER, LimitNeed("requests", 1, 0)), Foresight(OTHER, 0.0, 0))
    assert reply(ForeseeWait("a"), CommandResult(waits=waits)).value == [
        {
            "pool": str(POOL),
            "starts_in_s": 4.0,
            "before": 1,
            "reason": "rate limit",
            "why": "requests: needs 1, 0 left",
        },
        {"pool": str(OTHER), "starts_in_s": 0.0, "before": 0, "reason": "", "why": ""},
    ]
    assert reply(ForeseeWait("a"), CommandResult()).value == []
    assert reply(Pause(), ONE).value is None


def snapshot(**more):
    return Snapshot(at=3.0, stopping=False, pools=(), counters=Counters(), **more)


def test_what_stands_after_a_restart_comes_with_what_takes_it_back(golden):
    standing = snapshot(
        pauses={"*/n": False, "a.test": True},
        caps={"a.test": None, **{f"h{number}.test": number for number in range(1, 8)}},
        priorities=(
            PriorityView("now", Priority.HIGH, ends_in_s=4.0),
            PriorityView("soon", Priority.HIGH, ends_in_s=594.1),
            PriorityView("night-*", Priority.LOW),
        ),
        given=(GivenBudget(Budget(AGENT, "a*")), GivenBudget(Budget(EVERYONE, "")), GivenBudget(Budget(AGENT, "a*"))),
    )
    told = person_acted(
        OverridesStand(3.0, standing.pauses, standing.caps, priorities=standing.priorities, given=standing.given)
    )
    assert told.at == 3.0
    golden("overrides.txt", "\n".join([told.text, "", *pool_overrides(standing)]))


def test_a_priority_that_ended_by_itself_is_told():
    text = "agent a: priority low ended, its time is over"
    ended = PriorityEnded(at=5.0, priority=PriorityView("a", Priority.LOW, ends_in_s=0.0))
    assert person_acted(ended) == PersonActed(at=5.0, text=text)


def test_spans_are_said_as_they_were_given():
    spans = (0.5, 90, 300, 299.97, 310, 3599, 3600, 5400, 5460, 172_800)
    words = "0.5 s, 90 s, 5 min, 5 min, 310 s, 1 h, 1 h, 90 min, 91 min, 2 d"
    assert ", ".join(map(span_words, spans)) == words
