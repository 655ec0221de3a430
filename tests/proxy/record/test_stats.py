from hivemind_addon.kernel.values.events import BackedOff, ConcurrencyChanged, PoolsMerged
from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.kernel.values.ticket import OutcomeKind, PoolKey
from hivemind_addon.proxy.record.stats import SESSIONS_TOLD, Stats, quantile
from hivemind_addon.proxy.record.sums import SAMPLES, SESSIONS, Sums
from tests.proxy.record.samples import POOL, USAGE, ended, held, over, started, submitted


def told(*events):
    sums = Sums()
    for event in events:
        sums(event)
    return Stats(sums)


def test_a_session_shows_what_came_of_it():
    view = told(
        submitted(parent="mother"),
        started(),
        ended(at=2, kind=OutcomeKind.THROTTLED, usage=None),
        BackedOff(at=2, ticket_id="t", pool=POOL, attempt=1, until=4, reason="429"),
        held(at=2),
        started(at=4, attempt=2, waited_s=2),
        ended(at=9, attempt=2),
        over(at=9, attempts=2, waited_s=2),
    ).view(10)
    (session,) = view.sessions
    assert (session.agent, session.session, session.parent_session) == ("a", "s", "mother")
    assert (session.tickets, session.delivered, session.retries_absorbed, session.waited_s) == (1, 1, 1, 2)
    assert session.usage == USAGE
    assert session.micro_usd == 3000 + 600 + 1500
    assert session.seen_ago_s == 1


def test_what_came_to_nothing_is_a_part_of_what_was_booked():
    view = told(
        submitted(),
        started(),
        ended(kind=OutcomeKind.FAILED, usage=None, spend=Spend(900, 90)),
        started(attempt=2),
        ended(attempt=2, spend=Spend(500, 50)),
        over(attempts=2),
    ).view(0)
    for one in (*view.sessions, *view.pools):
        assert (one.tokens, one.micro_usd) == (1400, 140)
        assert (one.wasted_tokens, one.wasted_micro_usd) == (900, 90)


def test_a_session_counts_what_has_not_ended():
    assert told(submitted(), submitted("u"), over()).view(0).sessions[0].live == 1


def test_a_refused_request_is_no_lost_one():
    (session,) = told(submitted(), submitted("u"), over(end="refused"), over("u", end="gave up")).view(0).sessions
    assert (session.lost, session.refused) == (1, 1)


def test_a_model_without_a_price_makes_the_cost_a_part_of_it():
    view = told(submitted(), submitted("u", price=None)).view(0)
    assert not view.sessions[0].is_priced


def test_a_pool_counts_attempts_by_their_end():
    view = told(
        submitted(),
        started(),
        ended(kind=OutcomeKind.THROTTLED, usage=None),
        started(attempt=2),
        ended(kind=OutcomeKind.FAILED, usage=None, attempt=2),
        started(attempt=3),
        ended(attempt=3),
        over(attempts=3),
    ).view(0)
    (pool,) = view.pools
    assert (pool.admitted, pool.throttled, pool.failed, pool.delivered, pool.retries_absorbed) == (3, 1, 1, 1, 2)


def test_history_keeps_the_most_of_each_ten_seconds():
    view = told(
        submitted("a"), held("a"), submitted("b"), held("b"), started("a", at=3, in_flight=1), started("b", at=25)
    ).view(30)
    assert [(sample.queued, sample.in_flight) for sample in view.pools[0].history] == [(2, 1), (1, 1), (1, 1), (0, 1)]


def test_a_long_silence_is_filled_in_and_bounded():
    view = told(submitted(), held(), started(at=1e6)).view(1e6)
    assert len(view.pools[0].history) == SAMPLES


def test_a_ticket_that_goes_at_once_was_never_in_the_queue():
    view = told(submitted(), started()).view(0)
    assert [sample.queued for sample in view.pools[0].history] == [0]


def test_who_is_cancelled_while_it_waits_leaves_the_queue():
    view = told(submitted(), held(), over(at=11, end="cancelled", attempts=0)).view(12)
    assert [sample.queued for sample in view.pools[0].history] == [1, 1]
    assert told(submitted(), held(), over(end="cancelled")).view(40).pools[0].history[-1].queued == 0


def test_waits_are_the_newest_and_of_the_last_ten_minutes():
    events = [started(at=0, waited_s=99), *(started(at=700 + n, waited_s=n) for n in range(100))]
    (pool,) = told(*events).view(800).pools
    assert (pool.wait_p50_s, pool.wait_p95_s) == (49, 94)


def test_moves_of_the_limit_come_newest_first():
    moves = [ConcurrencyChanged(at=n, pool=POOL, limit=n, reason="success") for n in range(20)]
    (pool,) = told(*moves).view(20).pools
    assert [move.limit for move in pool.moves][:2] == [19, 18]
    assert pool.history[-1].limit == 19


def test_pools_of_one_account_are_counted_together():
    other = PoolKey("host.test", "key-2", "model")
    first = ConcurrencyChanged(at=0, pool=other, limit=3, reason="")
    view = told(submitted(), started(), ended(), over(), first, PoolsMerged(at=1, pool=other, merged=POOL)).view(1)
    (pool,) = view.pools
    assert (pool.key, pool.delivered, pool.usage) == (other, 1, USAGE)


def test_the_oldest_session_makes_room():
    stats = told(*(submitted(str(n), session=str(n)) for n in range(SESSIONS + 5)))
    view = stats.view(0)
    assert len(view.sessions) + view.more_sessions == SESSIONS


def test_a_view_has_the_newest_sessions_and_counts_the_others():
    stats = told(*(submitted(str(n), session=str(n)) for n in range(SESSIONS_TOLD + 5)))
    view = stats.view(0)
    names = [one.session for one in view.sessions]
    assert (len(names), names[0], names[-1], view.more_sessions) == (SESSIONS_TOLD, "5", str(SESSIONS_TOLD + 4), 5)


def test_the_quantile_of_nothing_is_none():
    assert quantile([], 0.5) is None
