"""Any order of calls, any outcome, any header: the promises of the scheduler hold after each step."""

import json
import math
import random
from collections import defaultdict

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from hivemind_addon.kernel.inference.limiter_models import HiddenLimit
from hivemind_addon.kernel.limits.breaker import BreakerSettings
from hivemind_addon.kernel.limits.learned import MeterKind
from hivemind_addon.kernel.limits.machine import MachineSettings
from hivemind_addon.kernel.limits.owner import as_block, plan_wait_s
from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.command import (
    AddBudget,
    Cancel,
    ForeseeWait,
    MoveToFront,
    Pause,
    ResetBudget,
    Resume,
    SetBudget,
    SetLimit,
    SetPriority,
)
from hivemind_addon.kernel.values.decision import Admitted, Backoff, Refused, Shed
from hivemind_addon.kernel.values.events import (
    AttemptEnded,
    AttemptStarted,
    Held,
    OverridesStand,
    Submitted,
    TicketEnded,
)
from hivemind_addon.kernel.values.spend import Budget, Period, Scope, Shortage, Spend
from hivemind_addon.kernel.values.ticket import (
    Attempt,
    AttemptResult,
    CallKind,
    Demand,
    Dimension,
    Endpoint,
    Hints,
    Outcome,
    OutcomeKind,
    Priority,
    Reading,
    Reason,
    Usage,
)
from hivemind_addon.sim.limits import LimitKind
from tests.kernel.gateway import MODELS, Gateway
from tests.kernel.samples import CANCELLED, POOL, SUCCESS, ticket

EPOCH = 1_800_000_000.0
_ORDERS = ("pauses", "caps", "priorities", "budgets")

POOLS = [POOL, replace(POOL, model_group="other"), replace(POOL, account="key-2")]
GLOBS = ["*", "api.test", "*/other", str(POOLS[2])]
NUMBERS = st.one_of(
    st.none(),
    st.floats(),
    st.floats(0, 120),
    st.sampled_from([0.0, -1.0, 1.0, 1e-9, 50.0, 1e18, math.inf, math.nan]),
)
DEMANDS = st.builds(
    Demand,
    input_tokens=st.integers(0, 100),
    output_tokens=st.integers(0, 100),
    total_tokens=st.integers(0, 10**7),
)
OUTCOMES = st.builds(
    Outcome,
    kind=st.sampled_from(list(OutcomeKind)),
    reason=st.just("made up"),
    retryable=st.booleans(),
    ambiguous=st.booleans(),
    retry_after_s=st.one_of(st.none(), st.floats(), st.floats(0, 60)),
    account_block_s=st.one_of(st.none(), st.none(), st.none(), st.floats(), st.floats(0, 300)),
)
READINGS = st.builds(
    lambda dimension, **numbers: Reading(meter=dimension.value, dimension=dimension, **numbers),
    st.sampled_from(list(Dimension)),
    window_s=st.sampled_from([1.0, 60.0, 60.0, 60.0, 0.0, math.nan]),
    limit=NUMBERS,
    remaining=NUMBERS,
    reset_in_s=NUMBERS,
    granularity=st.sampled_from([0.0, 10.0, math.nan]),
)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        seed=st.integers(0, 2**16),
        slots=st.integers(1, 4),
        failures=st.integers(2, 6),
        machine=st.sampled_from([None, None, MachineSettings(), MachineSettings(models=2, shares_slots=True)]),
    )
    def start(self, seed, slots, failures, machine):
        self.scheduler = Scheduler(rng=random.Random(seed))
        self.settings = PoolSettings(
            concurrency=ConcurrencySettings(initial=slots, maximum=6),
            breaker=BreakerSettings(failures_to_open=failures),
            machine=machine,
        )
        self.now = 100.0
        self.submitted = 0
        self.queued: set[str] = set()
        self.running: dict[str, Attempt] = {}
        self.expedited: set[str] = set()
        self.bypassing = dict.fromkeys(POOLS, 0)
        self.closed = False
        self.is_paid = False
        """Somebody has a budget."""
        self.lends = False
        """An order ends by itself."""
        self.starts: dict[str, int] = defaultdict(int)
        self.ends: dict[str, int] = defaultdict(int)
        self.attempts_ended: dict[str, int] = defaultdict(int)
        self.lanes: dict[tuple, list[str]] = defaultdict(list)

    @rule(
        pool=st.sampled_from(POOLS),
        session=st.sampled_from("abc"),
        patience_s=st.sampled_from([0.0, 20.0, 600.0, 1e5]),
        demand=DEMANDS,
    )
    def submit(self, pool, session, patience_s, demand):
        self.submitted += 1
        ticket_id = f"t{self.submitted}"
        made = ticket(ticket_id, session=session, at=self.now, patience_s=patience_s, demand=demand, pool=pool)
        self.scheduler.submit(made, self.settings, self.now)
        self.queued.add(ticket_id)
        # One that is about to be shed goes before others.
        self.lanes[pool, session, patience_s].append(ticket_id)

    @rule(
        session=st.sampled_from("abc"),
        request_hash=st.sampled_from("xy"),
        patience_s=st.sampled_from([1.0, 30.0, 600.0]),
        client=st.sampled_from(["", "cli"]),
    )
    def submit_again(self, session, request_hash, patience_s, client):
        """The same few requests over and over: comebacks of those that were shed, or are still running."""
        self.submitted += 1
        ticket_id = f"t{self.submitted}"
        made = ticket(ticket_id, session=session, at=self.now, patience_s=patience_s, request_hash=request_hash)
        made = replace(made, client=client)
        self.scheduler.submit(made, self.settings, self.now)
        self.queued.add(ticket_id)

    @precondition(lambda self: self.submitted)
    @rule(slept_s=st.sampled_from([6.0, 60.0, 3600.0, 8 * 3600.0]))
    def sleep(self, slept_s):
        self.now += slept_s
        self.scheduler.wake_up(slept_s, self.now)

    @precondition(lambda self: self.submitted)
    @rule()
    def export_and_restore(self):
        saved = json.loads(json.dumps(self.scheduler.export()))
        fresh = Scheduler(rng=random.Random(0))
        fresh.restore(saved, self.now)
        assert fresh.drain_events() == []
        assert json.loads(json.dumps(fresh.export())) == saved
        overrides = json.loads(json.dumps(self.scheduler.export_overrides(self.now, EPOCH)))
        fresh.restore_overrides(overrides, self.now, EPOCH)
        told = fresh.drain_events()
        assert [type(event) for event in told] == ([OverridesStand] if any(overrides[kind] for kind in _ORDERS) else [])
        assert fresh.export_overrides(self.now, EPOCH) == overrides

    @rule(
        session=st.sampled_from("abcdef"),
        agent=st.sampled_from(["one", "two"]),
        priority=st.sampled_from(list(Priority)),
        kind=st.sampled_from([CallKind.TURN, CallKind.TURN, CallKind.AUXILIARY, CallKind.COMPACTION]),
        parent_session=st.sampled_from(["", "", "a", "d"]),
        prefix=st.sampled_from(["", "p", "q"]),
        cached_tokens=st.sampled_from([0, 50_000]),
        max_fan_out=st.sampled_from([None, 1, 2]),
    )
    def submit_related(self, session, agent, priority, kind, parent_session, prefix, cached_tokens, max_fan_out):
        """Sessions of few agents, with everything that moves a ticket or lets others pass it."""
        self.submitted += 1
        ticket_id = f"t{self.submitted}"
        made = replace(
            ticket(ticket_id, session=session, at=self.now, demand=Demand(input_tokens=2000)),
            agent=agent,
            priority=priority,
            kind=kind,
            parent_session=parent_session,
            prefix=prefix,
            prefix_tokens=2000 if prefix else 0,
            cached_tokens=cached_tokens,
            max_fan_out=max_fan_out,
        )
        self.scheduler.submit(made, self.settings, self.now)
        self.queued.add(ticket_id)
        if not prefix:  # a follower lets others pass
            name = (agent, session, priority, kind is CallKind.AUXILIARY, bool(parent_session))
            self.lanes[POOL, name].append(ticket_id)

    @rule(
        session=st.sampled_from("abcdef"),
        parent_session=st.sampled_from(["", "a"]),
        cached_tokens=st.sampled_from([0, 50_000]),
        patience_s=st.sampled_from([20.0, 600.0]),
        equal=st.sampled_from([(POOLS[0], POOLS[2]), (POOLS[2], POOLS[1]), tuple(POOLS)]),
    )
    def submit_to_either(self, session, parent_session, cached_tokens, patience_s, equal):
        """It may go to several pools, and moves from one to another while it waits."""
        self.submitted += 1
        ticket_id = f"t{self.submitted}"
        made = replace(
            ticket(ticket_id, session=session, at=self.now, patience_s=patience_s, demand=Demand(input_tokens=100)),
            pool=equal[0],
            parent_session=parent_session,
            cached_tokens=cached_tokens,
            endpoints=tuple(Endpoint(pool) for pool in equal),
        )
        self.scheduler.submit(made, self.settings, self.now)
        self.queued.add(ticket_id)

    @rule(key=st.sampled_from(POOLS), amount=st.sampled_from([1.0, 3.0]), window_s=st.sampled_from([30.0, 3600.0]))
    def believe(self, key, amount, window_s):
        """An earlier run has learned a limit, right or wrong."""
        pool = self.scheduler._pools.get(key)
        if pool is not None and pool.capacity.throttles.limit is None:
            pool.capacity.throttles.resume(HiddenLimit(0, amount, window_s), self.now)
            self.scheduler._changed[pool] = None

    @rule(count=st.integers(2, 12), session=st.sampled_from("abc"))
    def submit_many(self, count, session):
        for _ in range(count):
            self.submit(POOL, session, 600.0, Demand(input_tokens=10, output_tokens=5))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=OUTCOMES, charged=st.one_of(st.none(), DEMANDS), saw=st.booleans())
    def settle(self, data, outcome, charged, saw):
        ticket_id = data.draw(st.sampled_from(sorted(self.running)))
        usage = data.draw(st.sampled_from([None, Usage(output_tokens=5), Usage(output_tokens=70, reported=True)]))
        self._settle(ticket_id, outcome, charged=charged, client_saw_bytes=saw, usage=usage)

    @precondition(lambda self: self.running)
    @rule(kind=st.sampled_from(list(OutcomeKind)))
    def settle_all_alike(self, kind):
        for ticket_id in sorted(self.running):
            self._settle(ticket_id, Outcome(kind=kind, reason="alike", retryable=True))

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(),
        readings=st.lists(READINGS, max_size=3),
        account=st.sampled_from([None, "x", "y"]),
        answered=st.booleans(),
    )
    def observe(self, data, readings, account, answered):
        ticket_id = data.draw(st.sampled_from(sorted(self.running)))
        told = Hints(readings=tuple(readings), account=account)
        self.scheduler.observe(self.running[ticket_id], told, self.now, answered=answered)

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def cancel(self, data):
        ticket_id = data.draw(st.sampled_from(sorted(self.queued)))
        assert self.scheduler.cancel(ticket_id, self.now)
        self.queued.remove(ticket_id)

    @rule(glob=st.sampled_from(GLOBS), paused=st.booleans())
    def pause_or_resume(self, glob, paused):
        self.scheduler.command(Pause(glob) if paused else Resume(glob), self.now)

    @rule(glob=st.sampled_from(GLOBS), limit=st.sampled_from([None, None, -1, 0, 1, 2, 5]))
    def set_limit(self, glob, limit):
        assert self.scheduler.command(SetLimit(limit, glob), self.now).done == (limit is None or limit > 0)

    @rule(agent=st.sampled_from(["*", "a", "one", "t*"]), priority=st.sampled_from([None, *Priority]))
    def set_priority(self, agent, priority):
        assert self.scheduler.command(SetPriority(agent, priority), self.now).done
        self.lanes.clear()  # one session's tickets may have changed their class on the way

    @rule(
        agent=st.sampled_from(["*", "a", "one", "t*"]),
        priority=st.sampled_from([None, *Priority]),
        for_s=st.sampled_from([0.5, 30.0, 3600.0]),
    )
    def set_priority_for_a_while(self, agent, priority, for_s):
        assert self.scheduler.command(SetPriority(agent, priority, for_s), self.now).done
        self.lanes.clear()
        self.lends = True  # it ends by itself, and classes change again

    @rule(
        session=st.sampled_from("abc"),
        group=st.sampled_from(["", "g"]),
        tokens=st.integers(0, 60),
        limit=st.sampled_from([None, 100, 200]),
    )
    def submit_paid(self, session, group, tokens, limit):
        """A ticket that the agents file gives a budget, and one that is expected to spend."""
        self.submitted += 1
        ticket_id = f"t{self.submitted}"
        budget = Budget(Scope.AGENT, session, Period.HOUR, tokens=limit)
        made = replace(
            ticket(ticket_id, session=session, at=self.now, demand=Demand(input_tokens=10)),
            budgets=() if limit is None else (budget,),
            expected=Spend(tokens),
            group=group,
        )
        self.scheduler.submit(made, self.settings, self.now)
        self.queued.add(ticket_id)
        self.is_paid = True

    @rule(
        holder=st.sampled_from([(Scope.AGENT, "*"), (Scope.AGENT, "a"), (Scope.GROUP, "g"), (Scope.EVERYONE, "")]),
        per=st.sampled_from(list(Period)),
        tokens=st.sampled_from([None, None, 0, 50, 10_000]),
    )
    def set_budget(self, holder, per, tokens):
        said = self.scheduler.command(SetBudget(*holder, per, tokens), self.now)
        assert said.done or tokens is None
        self.is_paid = True

    @rule(
        holder=st.sampled_from([(Scope.AGENT, "*"), (Scope.AGENT, "a"), (Scope.EVERYONE, "")]),
        tokens=st.integers(-1, 99),
    )
    def add_to_budget(self, holder, tokens):
        self.scheduler.command(AddBudget(*holder, None, tokens) if tokens else ResetBudget(*holder), self.now)

    @precondition(lambda self: self.submitted)
    @rule(number=st.integers(1, 60), front=st.booleans())
    def move_or_call_off(self, number, front):
        ticket_id = f"t{1 + number % self.submitted}"
        if front:
            assert self.scheduler.command(MoveToFront(ticket_id), self.now).done == (ticket_id in self.queued)
            self.expedited.add(ticket_id)
            return
        known = ticket_id in self.queued or ticket_id in self.running
        assert self.scheduler.command(Cancel(ticket_id), self.now).done == known
        for attempt in self.scheduler.drain_cancelled():
            assert self.running[ticket_id] == attempt
            self._settle(ticket_id, CANCELLED)

    @rule(
        agent=st.sampled_from(["a", "one", "new"]),
        session=st.sampled_from(["", "a", "d"]),
        glob=st.sampled_from(GLOBS),
        tokens=st.sampled_from([0, 7, 10_000_000]),
    )
    def foresee(self, agent, session, glob, tokens):
        """Asking changes nothing, and what is answered is an instant to come, or that nobody can tell."""
        events = list(self.scheduler._events)
        before, wakeup_at = self.scheduler.snapshot(self.now), self.scheduler.next_wakeup()
        result = self.scheduler.command(ForeseeWait(agent, session, glob, input_tokens=tokens), self.now)
        assert (self.scheduler.snapshot(self.now), self.scheduler.next_wakeup()) == (before, wakeup_at)
        assert self.scheduler._events == events
        for view in result.waits:
            assert view.starts_in_s is None or 0 <= view.starts_in_s < float("inf")
            assert 0 <= view.before <= len(self.queued)
            assert view.reason or view.starts_in_s == 0

    @rule(pool=st.sampled_from(POOLS), change=st.sampled_from([1, -1]))
    def bypass(self, pool, change):
        if self.bypassing[pool] + change >= 0:
            self.bypassing[pool] += change
            self.scheduler.bypass(pool, change)

    @rule(seconds=st.one_of(st.floats(0, 2), st.floats(0, 200)))
    def advance(self, seconds):
        self.now += seconds

    @rule()
    def advance_to_wakeup(self):
        wakeup_at = self.scheduler.next_wakeup()
        if wakeup_at is not None:
            self.now = wakeup_at

    @precondition(lambda self: self.submitted > 15)
    @rule()
    def close(self):
        self.scheduler.close(self.now)
        self.closed = True

    @invariant()
    def poll_keeps_every_promise(self):
        if not hasattr(self, "scheduler"):
            return
        self._poll()
        before = self.scheduler.snapshot(self.now)
        assert self.scheduler.poll(self.now) == []
        assert self.scheduler.snapshot(self.now) == before
        assert self.scheduler.drain_events() == []
        wakeup_at = self.scheduler.next_wakeup()
        assert wakeup_at is None or wakeup_at > self.now
        for attempt in self.scheduler.drain_superseded():
            assert self.running[attempt.ticket.id] == attempt
            self._settle(attempt.ticket.id, CANCELLED)
            self._poll()
            before = self.scheduler.snapshot(self.now)
            wakeup_at = self.scheduler.next_wakeup()
        for view in before.pools:
            assert view.cap is None or view.limit <= view.cap
            for one in view.tickets:
                assert one.starts_in_s is None or one.starts_in_s >= 0
                assert one.starts_in_s is None or (one.state != "in flight" and not view.paused)
            assert view.queued == sum(state.state != "in flight" for state in view.tickets)
            assert view.in_flight - view.bypassing == sum(state.state == "in flight" for state in view.tickets)
            if view.queued and not view.in_flight:
                assert wakeup_at is not None, "stuck"  # paused, too: clients are told before they give up
            pool = self.scheduler._pools[view.key]
            if pool.gate and pool.gate.reason is not Reason.ORDER and not pool.capacity.is_full:
                trusted = pool._selector.trusted(pool._next.ticket, self.now)
                due_at = max(trusted.opens_at, self.now + 16)
                assert pool.gate.opens_at <= due_at, "held by advice alone"
                assert due_at == math.inf or pool.wakeup_at <= due_at
            if self.closed:
                assert not view.queued
            for meter in view.meters:
                assert 0 <= meter.level <= meter.limit
            for meter in pool.capacity.meters:
                assert meter.reserved >= 0
                is_shared = len(pool.capacity.share.members) > 1
                assert is_shared or view.in_flight > view.bypassing or meter.reserved == 0
        self._first_come_first_served()

    def teardown(self):
        """Whatever happened: the wakeups alone, and ends of what runs, bring every ticket to its end."""
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.command(Resume(), self.now)
        self.scheduler.command(SetPriority("*", None), self.now)
        for pool, count in self.bypassing.items():
            for _ in range(count):
                self.scheduler.bypass(pool, -1)
        for _ in range(20 * self.submitted + 20):
            self._poll()
            if self.scheduler.is_idle:
                break
            for ticket_id in sorted(self.running):
                self._settle(ticket_id, SUCCESS)
            self._poll()
            if not self.running and self.queued:
                self.now = self.scheduler.next_wakeup()
        assert self.scheduler.is_idle
        assert self.scheduler.next_wakeup() is None
        assert not self.queued
        assert all(view.reserved == Spend() for view in self.scheduler.snapshot(self.now).budgets)
        assert dict(self.ends) == {f"t{n}": 1 for n in range(1, self.submitted + 1)}
        assert self.attempts_ended == self.starts
        for pool in self.scheduler._pools.values():
            assert all(meter.reserved == 0 for meter in pool.capacity.meters)

    def _settle(self, ticket_id, outcome, **more):
        attempt = self.running.pop(ticket_id)
        result = AttemptResult(outcome, **more)
        verdict = self.scheduler.settle(attempt, result, self.now)
        if isinstance(verdict, Backoff):
            is_held = plan_wait_s(outcome, math.inf) is not None  # the client outlives the block
            assert (
                outcome.retryable or is_held or (attempt.ticket.endpoints and as_block(result, math.inf) is not result)
            )
            assert not more.get("client_saw_bytes")
            self.queued.add(ticket_id)

    def _poll(self):
        paused = {pool.key for pool in self.scheduler.snapshot(self.now).pools if pool.paused}
        for decision in self.scheduler.poll(self.now):
            match decision:
                case Admitted(attempt):
                    assert not self.closed
                    assert self.scheduler._pool_of_ticket[attempt.ticket.id].key not in paused
                    assert attempt.admitted_at == self.now
                    self.queued.remove(attempt.ticket.id)
                    self.running[attempt.ticket.id] = attempt
                case Shed():
                    assert self.closed or decision.ticket.shed_at <= self.now
                    assert decision.come_back_s >= 1
                    self.queued.remove(decision.ticket.id)
                case Refused(ticket, Cancel()):
                    self.queued.remove(ticket.id)
                case Refused(ticket, Shortage()):
                    assert self.is_paid
                    self.queued.remove(ticket.id)
                case Refused():
                    assert decision.cause.until > self.now, "only a wall and a budget refuse"
                    self.queued.remove(decision.ticket.id)
        self._read_events()

    def _read_events(self):
        for event in self.scheduler.drain_events():
            match event:
                case AttemptStarted():
                    # What all models of the account proved, and a person's cap of this one.
                    capacity = self.scheduler._pools[self.scheduler._merged.get(event.pool, event.pool)].capacity
                    assert event.in_flight <= capacity.slots.limit
                    assert capacity.cap is None or capacity.in_flight <= capacity.cap
                    self.starts[event.ticket_id] += 1
                    assert event.attempt == self.starts[event.ticket_id]
                case AttemptEnded():
                    self.attempts_ended[event.ticket_id] += 1
                    assert self.attempts_ended[event.ticket_id] == event.attempt
                case TicketEnded():
                    self.ends[event.ticket_id] += 1
                case Submitted() | Held():
                    assert not self.ends.get(getattr(event, "ticket_id", ""))

    def _first_come_first_served(self):
        """In one lane nobody starts for the first time before an older one has, or has gone."""
        if self.lends or self.is_paid:
            return  # classes change on the way, and a ticket that fits into its budget passes one that does not
        for lane in self.lanes.values():
            late = False
            for ticket_id in lane:
                if ticket_id in self.expedited:
                    continue
                never_started = not self.starts.get(ticket_id)
                if never_started and ticket_id in self.queued:
                    late = True
                elif late:
                    assert never_started, f"{ticket_id} passed an older ticket of its lane"


class SharedLimitMachine(RuleBasedStateMachine):
    """Three models on a key that counts them together, and tells so: nobody is refused once the scheduler knows.

    Its windows are long beside the age of a header (2 s at most) and the rounding of instants that a meter allows for.
    """

    @initialize(amount=st.integers(1, 8), kind=st.sampled_from(list(LimitKind)), window_s=st.sampled_from([20.0, 60.0]))
    def begin(self, amount, kind, window_s):
        self.key = Gateway(amount=amount, window_s=window_s, kind=kind, slowest_s=2.0)
        for model in MODELS * 3:
            self.key.submit(model)
            self.key.advance(0.1)
            self.key.answer_all()
        self.seen = len(self.key.refused)

    @rule(model=st.sampled_from(MODELS), agent=st.sampled_from(["", "x", "y"]), count=st.integers(1, 4))
    def submit(self, model, agent, count):
        for _ in range(count):
            known = self._is_known()
            self.key.submit(model, agent=agent)
            self._nobody_was_refused(known)

    @precondition(lambda self: self.key.running)
    @rule(data=st.data())
    def answer(self, data):
        known = self._is_known()
        self.key.answer(data.draw(st.sampled_from(sorted(self.key.running))))
        self._nobody_was_refused(known)

    @rule(seconds=st.one_of(st.floats(0, 1), st.floats(0, 100)))
    def advance(self, seconds):
        known = self._is_known()
        self.key.advance(seconds)
        self._nobody_was_refused(known)

    @rule()
    def restart(self):
        """All that runs and waits ends; what was learned comes back."""
        self._end_all()
        saved, old = self.key.scheduler.export(), self.key.scheduler
        self.key.scheduler = Scheduler(rng=random.Random(0))
        self.key.scheduler.restore(saved, self.key.now)
        assert self.key.scheduler.export()["pools"] == old.export()["pools"]

    def teardown(self):
        if hasattr(self, "key"):
            self._end_all()

    def _end_all(self):
        key = self.key
        for _ in range(20 * key.tickets + 20):
            if key.scheduler.is_idle:
                break
            key.answer_all()
            if not key.running and (wakeup_at := key.scheduler.next_wakeup()) is not None:
                key.now = wakeup_at
                key.poll()
        assert key.scheduler.is_idle
        assert dict(key.ended) == dict.fromkeys(key.ended, 1)
        assert len(key.ended) == key.tickets
        for pool in key.scheduler._pools.values():
            assert all(meter.reserved == 0 for meter in pool.capacity.meters)
        self.seen = len(key.refused)

    def _is_known(self):
        """All models' pools draw on the common meter; headers have told its level, and its kind, in this process.

        A window of few seconds and a bucket look the same until a header tells them apart.
        """
        views = self.key.scheduler.snapshot(self.key.now).pools
        shared = [meter.shared_by for view in views for meter in view.meters]
        commons = list(self.key.sharing.meters.users) if views else []
        kind = MeterKind(self.key.limit.kind.value)
        return shared == [MODELS] * 3 and all(common._learned_stamp >= 0 and common.kind is kind for common in commons)

    def _nobody_was_refused(self, known):
        late = self.key.refused[self.seen :]
        self.seen = len(self.key.refused)
        assert not known or not late, f"{late} at {self.key.now}: {self.key.sharing}"


TestScheduler = SchedulerMachine.TestCase
TestSharedLimit = SharedLimitMachine.TestCase
