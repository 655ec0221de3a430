"""What Prometheus gets: true numbers, bounded labels, and everything that the dashboard asks for."""

import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hivemind_addon.kernel.values.events import (
    CommittedStreamFailed,
    GuardTripped,
    StateUnsaved,
    TicketEnded,
)
from hivemind_addon.kernel.values.snapshot import Counters, Snapshot
from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.kernel.values.ticket import OutcomeKind, PoolKey
from hivemind_addon.proxy.api.report import ClusterView
from hivemind_addon.proxy.record.contexts import Contexts
from hivemind_addon.proxy.record.metrics import MAX_POOLS, OTHER, Metrics
from hivemind_addon.proxy.record.sums import Sums
from hivemind_addon.sim.library import cases
from hivemind_addon.sim.world import World
from tests.proxy.record.samples import POOL, USAGE, ended, held, over, started, submitted

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana.json"
CLUSTER = ClusterView(name="team", me="a-1", role="member", coordinator="b-1", epoch=3)
NOTHING = Snapshot(at=0, stopping=False, pools=(), counters=Counters())


def told(*events):
    sums = Sums()
    for event in events:
        sums(event)
    return Metrics(sums, Contexts())


def samples(metrics, snapshot=lambda: NOTHING):
    """(name, label values, the pool's first) → value."""
    text = metrics.exposition(snapshot).decode()
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels, key="pool".__ne__))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def simulated():
    """The exposition after a simulated incident."""
    sums = Sums()
    sums.agents.most = 3
    world = World(cases()["stress"].scenario, seed=1, listen=sums)
    world.run()
    return Metrics(sums, Contexts()), world


def test_a_request_that_was_retried_is_counted_once_and_its_attempts_each():
    value = samples(
        told(
            submitted(),
            held(),
            started(waited_s=3),
            ended(kind=OutcomeKind.THROTTLED, usage=None),
            started(attempt=2, waited_s=1),
            ended(attempt=2),
            over(attempts=2),
        )
    )
    pool = str(POOL)
    assert value["hivemind_tickets_total", pool] == 1
    assert value["hivemind_tickets_ended_total", pool, "delivered"] == 1
    assert value["hivemind_holds_total", pool, "rate limit"] == 1
    assert value["hivemind_admissions_total", pool] == 2
    assert value["hivemind_attempts_ended_total", pool, "throttled"] == 1
    assert value["hivemind_attempts_ended_total", pool, "success"] == 1
    assert value["hivemind_retries_absorbed_total", pool] == 1
    assert value["hivemind_admission_wait_seconds_sum", pool] == 4
    assert value["hivemind_admission_wait_seconds_bucket", pool, "2.5"] == 1
    assert value["hivemind_tokens_total", pool, "cache_read"] == 2000
    assert value["hivemind_cost_dollars_total", pool] == pytest.approx(0.0051)


def test_what_came_to_nothing_is_counted_beside_what_was_booked():
    failed = ended(kind=OutcomeKind.FAILED, usage=None, spend=Spend(900, 9_000))
    value = samples(told(submitted(price=None), started(), failed, started(attempt=2), ended(spend=Spend(100, 1_000))))
    pool = str(POOL)
    assert value["hivemind_booked_tokens_total", pool] == 1000
    assert value["hivemind_wasted_tokens_total", pool] == 900
    assert value["hivemind_cost_dollars_total", pool] == pytest.approx(0.010)
    assert value["hivemind_wasted_dollars_total", pool] == pytest.approx(0.009)


def test_tokens_a_minute_are_told_of_the_last_minute():
    sums = Sums()
    for event in (submitted(), started(), ended(at=2), over(at=2)):
        sums(event)
    told_at = {now: sums.tokens_per_minute(POOL, now) for now in (5, 59.9, 60)}
    total = USAGE.total_input_tokens, USAGE.output_tokens
    assert told_at[59.9] == pytest.approx([one * 60 / 59.9 for one in total])
    assert told_at[5][0] > told_at[59.9][0], "the window is the time that has passed in it"
    assert told_at[60] == (0, 0)


def test_agents_have_no_label_unless_it_is_asked_for():
    assert "agent" not in metrics_text(told(submitted(), started(), ended(), over()))


def test_the_agents_that_use_most_have_counters_of_their_own_and_no_counter_ever_falls():
    """Anybody may call himself anything: there are as many series as were asked for, and one more."""
    sums, rng = Sums(), random.Random(7)
    sums.agents.most = 3
    metrics, before, spent = Metrics(sums, Contexts()), {}, Counter()
    for number in range(400):
        agent = rng.choice(["big", "big", "large", "large", "other", f"visitor-{number}"])
        tokens = {"big": 900, "large": 500, "other": 300}.get(agent, 20)
        name = f"t{number}"
        sums(submitted(name, agent=agent))
        sums(ended(name, spend=Spend(tokens, tokens)))
        sums(over(name))
        spent[agent] += tokens
        now = {
            key[1]: value for key, value in samples(metrics).items() if key[0] == "hivemind_agent_cost_dollars_total"
        }
        assert len(now) <= 4
        assert all(now[one] >= before[one] for one in now.keys() & before.keys())
        before = now
    assert set(before) == {"big", "large", "other_", "other"}, "one that is called `other` is told from the others"
    for agent in ("big", "large"):
        assert before[agent] == pytest.approx(spent[agent] / 1e6, rel=0.1)
    sums.agents.most = 0
    assert "agent" not in metrics_text(metrics)


def metrics_text(metrics):
    return metrics.exposition(lambda: NOTHING).decode()


def test_rare_events_are_counted():
    ambiguous = TicketEnded(
        at=0, ticket_id="t", pool=POOL, end="gave up", reason="", attempts=3, ambiguous_resends=2, waited_s=0
    )
    value = samples(
        told(
            ambiguous,
            CommittedStreamFailed(at=0, ticket_id="t", pool=POOL, reason="cut"),
            GuardTripped(at=0, ticket_id=None, where="layer", error="Boom()"),
            StateUnsaved(at=0, reason="disk full"),
        )
    )
    assert value["hivemind_ambiguous_resends_total", str(POOL)] == 2
    assert value["hivemind_committed_failures_total", str(POOL)] == 1
    assert value[("hivemind_guard_trips_total",)] == 1
    assert value[("hivemind_state_unsaved",)] == 1


def test_pools_beyond_the_first_hundred_share_a_label():
    ends = [
        TicketEnded(
            at=0, ticket_id="t", pool=key, end="delivered", reason="", attempts=1, ambiguous_resends=0, waited_s=0
        )
        for key in (PoolKey(f"host-{number}", "key", "*") for number in range(MAX_POOLS + 50))
    ]
    value = samples(told(*ends))
    assert value["hivemind_tickets_ended_total", OTHER, "delivered"] == 50
    assert len([key for key in value if key[0] == "hivemind_admissions_total"]) == MAX_POOLS + 1


def test_a_name_cannot_break_out_of_its_label():
    evil = PoolKey('a"b', "c\\d\n", "# HELP x")
    metrics = told(CommittedStreamFailed(at=0, ticket_id="t", pool=evil, reason=""))
    assert samples(metrics)["hivemind_committed_failures_total", str(evil)] == 1


def test_counters_are_told_even_when_the_scheduler_fails():
    def fails():
        raise RuntimeError("injected")

    metrics = told(submitted())
    value = samples(metrics, fails)
    assert value[("hivemind_scheduler_up",)] == 0
    assert value["hivemind_tickets_total", str(POOL)] == 1
    assert samples(metrics)[("hivemind_scheduler_up",)] == 1


def test_a_simulated_night_adds_up(simulated):
    metrics, world = simulated
    value = samples(metrics, lambda: world.scheduler.snapshot(world.now))
    counters = world.scheduler.snapshot(world.now).counters

    def total(name, *labels):
        return sum(amount for key, amount in value.items() if key[0] == name and set(labels) <= set(key))

    assert total("hivemind_tickets_total") == counters.tickets > 0
    assert total("hivemind_tickets_ended_total", "delivered") == counters.delivered
    assert total("hivemind_admissions_total") == counters.attempts
    assert total("hivemind_attempts_ended_total", "throttled") == counters.throttled
    assert total("hivemind_retries_total") == counters.retries
    assert total("hivemind_tokens_total", "output") == counters.output_tokens
    assert total("hivemind_breaker_state", "closed") >= 1


def test_every_metric_is_named_as_prometheus_wants(simulated):
    metrics, _ = simulated
    for one in metrics.described():
        assert re.fullmatch(r"hivemind_[a-z_]+", one.name)
        assert one.name.endswith("_total") is (one.type == "counter")
        assert one.help.endswith(".")
        assert not one.name.endswith(("_ms", "_s", "_minutes"))


def test_what_is_described_is_what_is_told(simulated):
    metrics, world = simulated
    text = metrics.exposition(lambda: world.scheduler.snapshot(world.now), cluster=CLUSTER).decode()
    told = {name: kind for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE) if _is_ours(name)}
    helps = {name: said for name, said in re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE) if _is_ours(name)}
    labels: dict[str, set[str]] = {}
    for name, selector in re.findall(r"^(\w+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? \S+$", text, re.MULTILINE):
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', selector))
    described = metrics.described()
    assert told == {one.name: one.type for one in described}
    assert helps == {one.name: one.help for one in described}
    for one in described:
        if one.name in labels:
            assert labels[one.name] - {"le"} == set(one.labels), one.name


def _is_ours(name):
    return name.startswith("hivemind_")


def test_everything_in_the_dashboard_is_told(simulated):
    metrics, world = simulated
    text = metrics.exposition(lambda: world.scheduler.snapshot(world.now), cluster=CLUSTER).decode()
    typed = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    known = {name for name in typed if typed[name] != "histogram"}
    known |= {f"{name}{end}" for name in typed if typed[name] == "histogram" for end in ("_bucket", "_sum", "_count")}
    labels = {one.name: {*one.labels, "le"} for one in metrics.described()}
    asked = [
        target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel.get("targets", [])
    ]
    assert len(asked) > 20
    for expression in asked:
        for name, selector in re.findall(r"\b((?:hivemind|process)_\w+)(\{[^}]*\})?", expression):
            assert name in known, expression
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert set(re.findall(r"(\w+)\s*(?:=~|!=|=)", selector)) <= labels.get(base, set()), expression
