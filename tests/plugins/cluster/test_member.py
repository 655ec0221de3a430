"""What a member does by itself with what its coordinator tells."""

import random

from msgspec.structs import replace

from hivemind_addon.kernel.pool import PoolSettings, PoolTold
from hivemind_addon.kernel.values.decision import Admitted, Backoff, Finished, Refused, Shed
from hivemind_addon.kernel.values.ticket import AttemptResult, Demand, Outcome, OutcomeKind, PoolKey, Reason
from hivemind_addon.plugins.cluster.member import Member
from hivemind_addon.plugins.cluster.messages import AccountsChanged, Admits, Ended, Ends, PoolsChanged, Sheds
from hivemind_addon.proxy.api.pool_words import with_words
from tests.kernel.samples import ticket as make_ticket

FAILED = AttemptResult(Outcome(OutcomeKind.FAILED, "500", status=500, retryable=True))


def admitted(member, ticket, *, attempt=1, now=1.0):
    member.hear(
        Admits(ticket.id, attempt, ticket.pool, ticket.demand, in_flight=1, is_probe=False), shift_s=0.0, now=now
    )
    (decision,) = member.poll(now)
    assert isinstance(decision, Admitted)
    return decision.attempt


def test_a_pool_that_is_down_is_known_by_the_name_that_its_account_had():
    member, sent = Member(rng=random.Random(0)), []
    member.send = sent.append
    ticket = make_ticket("t", at=0.0)
    first = PoolKey(ticket.pool.host, "org-1", ticket.pool.model_group)
    member.submit(ticket, PoolSettings(), 0.0)
    attempt = admitted(member, ticket)
    told = PoolTold(first, profile="", limit=7, in_flight=1, provider_down=True, nobody_answered=False)
    member.hear(AccountsChanged({ticket.pool.account: "org-1"}), 0.0, 1.0)
    member.hear(PoolsChanged((told,)), 0.0, 1.0)
    assert member.limit_of(ticket.pool) == 7
    verdict = member.settle(attempt, FAILED, 2.0)
    assert verdict == Backoff(until=2.0, reason="500")  # the coordinator's breaker says when
    assert isinstance(sent[-1], Ended)


def test_who_waits_until_its_client_gives_up_is_shed_whatever_the_coordinator_does():
    member = Member(rng=random.Random(0))
    ticket = replace(make_ticket("t", at=0.0), deadline_at=30.0)
    member.submit(ticket, PoolSettings(), 0.0)
    assert member.wakeup_at == 30.0
    assert member.poll(29.9) == []
    (decision,) = member.poll(30.0)
    assert isinstance(decision, Shed)
    assert member.is_idle


def waiting_member():
    member, sent = Member(rng=random.Random(0)), []
    member.send = sent.append
    ticket = make_ticket("t", at=0.0)
    member.submit(ticket, PoolSettings(), 0.0)
    return member, ticket, sent, Admits("t", 1, ticket.pool, ticket.demand, in_flight=1, is_probe=False)


def test_a_client_that_goes_before_its_admission_is_fetched_keeps_no_slot():
    member, _, sent, admits = waiting_member()
    member.hear(admits, 0.0, 1.0)
    assert member.cancel("t", 1.0)
    assert member.poll(1.0) == []
    assert member.is_idle
    assert isinstance(sent[-1], Ended)
    assert (sent[-1].verdict, sent[-1].result.charged) == (Finished(), Demand(requests=0))
    assert [event.end for event in member.events if hasattr(event, "end")] == ["cancelled"]


def test_a_client_that_goes_before_its_refusal_is_fetched_is_told_nothing():
    member, _, _, _ = waiting_member()
    member.hear(Sheds("t", Reason.DEADLINE, 5.0), 0.0, 1.0)
    assert member.cancel("t", 1.0)
    assert member.poll(1.0) == []
    assert not member.cancel("t", 1.0)


def test_who_is_cancelled_by_a_person_just_as_he_is_admitted_is_refused():
    member, ticket, sent, admits = waiting_member()
    member.hear(admits, 0.0, 1.0)
    member.hear(Ends("t", 1, called_off=True), 0.0, 1.0)
    assert member.cancelled == []
    (decision,) = member.poll(1.0)
    assert isinstance(decision, Refused)
    assert decision.ticket.id == ticket.id
    assert member.is_idle
    assert isinstance(sent[-1], Ended)


def test_who_waits_while_there_is_no_coordinator_says_so():
    member = Member(rng=random.Random(1))
    for ticket_id in ("a", "b"):
        member.submit(make_ticket(ticket_id, at=1.0), PoolSettings(), 1.0)
    (view,) = member.views(4.0)
    assert (view.queued, view.in_flight) == (2, 0)
    assert [(one.ticket.id, one.position, one.waited_s) for one in view.tickets] == [("a", 1, 3.0), ("b", 2, 3.0)]
    assert {one.why for one in with_words(view).tickets} == {Reason.COORDINATOR.value}
