"""Any order of requests, ends, commands, jumps and restarts: the books agree with ones that are kept beside them.

The reference is plain numbers by holder and period, kept from what is asked and decided alone. An account's period is
over when it is; the next change of the account begins a new one, and one of an untouched account begins it anew.
"""

import itertools
import json
import random
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.command import AddBudget, ResetBudget, SetBudget
from hivemind_addon.kernel.values.decision import Admitted, Refused
from hivemind_addon.kernel.values.events import AttemptEnded, BudgetBooked, OddityNoted
from hivemind_addon.kernel.values.spend import AccountState, Budget, Period, Price, Scope, Spend
from hivemind_addon.kernel.values.ticket import AttemptResult, PoolKey, Usage
from tests.kernel.samples import CANCELLED, IGNORED, POOL, SUCCESS, ticket

EPOCH = 1_800_000_000.0
LENGTH_S = {Period.RUN: float("inf"), Period.HOUR: 3600, Period.DAY: 86_400, Period.MONTH: 30 * 86_400}
PRICE = Price(input=1_000_000, cache_write=1_000_000, cache_read=1_000_000, output=2_000_000)
"""A micro-dollar for a token of input, two for one of output."""
FILE = {
    (Scope.AGENT, "ann", Period.HOUR): (1000, None),
    (Scope.AGENT, "ann", Period.DAY): (None, 3000),
    (Scope.AGENT, "bob", Period.RUN): (700, 1500),
    (Scope.GROUP, "g", Period.RUN): (2500, None),
    (Scope.EVERYONE, "", Period.MONTH): (6000, 9000),
}
GROUP_OF = {"ann": "g", "bob": "g", "carl": ""}
HOLDERS = st.sampled_from([
    (Scope.AGENT, "ann"), (Scope.AGENT, "*"), (Scope.AGENT, "carl"), (Scope.GROUP, "g"), (Scope.EVERYONE, ""),
])  # fmt: skip
PERIODS = st.sampled_from([Period.RUN, Period.HOUR, Period.DAY])
AMOUNTS = st.one_of(st.none(), st.integers(0, 3000))
POOLS = [POOL, PoolKey(host="other.test", account="key-1", model_group="m")]


class Book:
    """The reference: one holder's numbers for one period, tokens and micro-dollars."""

    def __init__(self, began_at):
        self.began_at = began_at
        self.spent, self.reserved, self.added = [0, 0], [0, 0], [0, 0]
        self.was_booked = False
        self.is_filed = False
        """The file's limits came with a ticket, or were left by a process for which they counted."""

    def is_over(self, per, now):
        return now >= self.began_at + LENGTH_S[per]

    def is_untouched(self):
        return self.spent == self.reserved == self.added == [0, 0]

    def clear(self, now):
        self.began_at, self.spent, self.added = now, [0, 0], [0, 0]


class BudgetMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.scheduler = Scheduler(rng=random.Random(0))
        self.settings = PoolSettings(concurrency=ConcurrencySettings(initial=500, maximum=500))
        self.now = 1000.0
        self.ids = itertools.count()
        self.books = {}
        self.given = []
        """Scope, glob, period, limits; the newest last."""
        self.waiting = {}
        self.flying = {}
        """Ticket → its attempt, the keys of the books that it is booked in."""
        self.booked = {}
        """The last event of each account: what a journal keeps."""
        self.totals = Counter()

    # What happens ------------------------------------------------------------------------------------------------------

    @rule(
        agent=st.sampled_from(sorted(GROUP_OF)),
        tokens=st.one_of(st.integers(0, 60), st.integers(0, 800)),
        is_priced=st.booleans(),
        pool=st.sampled_from(POOLS),
    )
    def submit(self, agent, tokens, is_priced, pool):
        made = ticket(f"t{next(self.ids)}", session=agent, at=self.now, patience_s=1e9, pool=pool)
        group = GROUP_OF[agent]
        holders = ((Scope.AGENT, agent), (Scope.GROUP, group), (Scope.EVERYONE, ""))
        made = replace(
            made,
            group=group,
            budgets=tuple(Budget(*key, *limits) for key, limits in FILE.items() if key[:2] in holders),
            price=PRICE if is_priced else None,
            expected=Spend(tokens, 2 * tokens if is_priced else 0),
        )
        self.scheduler.submit(made, self.settings, self.now)
        self.waiting[made.id] = made

    @precondition(lambda self: self.flying)
    @rule(
        data=st.data(),
        used=st.one_of(st.none(), st.integers(0, 900)),
        outcome=st.sampled_from([SUCCESS, CANCELLED, IGNORED]),
    )
    def settle(self, data, used, outcome):
        name = data.draw(st.sampled_from(sorted(self.flying)))
        attempt, keys = self.flying.pop(name)
        its = attempt.ticket
        usage = None if used is None else Usage(output_tokens=used, reported=True)
        self.scheduler.settle(attempt, AttemptResult(outcome, usage), self.now)
        if used is not None:
            actual = (used, 2 * used if its.price else 0)
        else:
            actual = (0, 0) if outcome is IGNORED else (its.expected.tokens, its.expected.micro_usd)
        for key in keys:
            book = self.current(key)
            for unit, (amount, expected) in enumerate(
                zip(actual, (its.expected.tokens, its.expected.micro_usd), strict=True)
            ):
                book.reserved[unit] -= expected
                book.spent[unit] += amount
                self.totals[unit] += amount
        holders = [(Scope.AGENT, its.agent), (Scope.EVERYONE, "")] + [(Scope.GROUP, its.group)] * bool(its.group)
        opened_since = [key for key in self.books if key[:2] in holders and key not in keys]
        for key in opened_since:
            book = self.current(key)
            for unit, amount in enumerate(actual):
                book.spent[unit] += amount

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data):
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        assert self.scheduler.cancel(name, self.now)
        del self.waiting[name]

    @rule(holder=HOLDERS, per=PERIODS, tokens=AMOUNTS, micro_usd=AMOUNTS)
    def give(self, holder, per, tokens, micro_usd):
        scope, name = holder
        said = self.scheduler.command(SetBudget(scope, name, per, tokens, micro_usd), self.now)
        known = any(one[:3] == (scope, name, per) and one[3] is not None for one in self.given)
        older = [one for one in self.given if one[:3] != (scope, name, per)]
        if tokens is None and micro_usd is None:
            assert said.done == known
            if name == "*":
                older = [one for one in older if (one[0], one[2]) != (scope, per)]
            self.given = [*older, (scope, name, per, None)] if known else self.given
            # Nothing older is taken back by it: it is forgotten.
            while self.given and self._is_idle_rule():
                continue
            return
        assert said.done
        if name == "*":
            older = [one for one in older if (one[0], one[2]) != (scope, per)]
        else:
            self.book((scope, name, per))
        self.given = [*older, (scope, name, per, (tokens, micro_usd))]

    def _is_idle_rule(self):
        """Drop one rule that takes back where no older one of its kind is left."""
        for index, (scope, _, per, limits) in enumerate(self.given):
            if limits is None and not any(one[0] is scope and one[2] is per for one in self.given[:index]):
                del self.given[index]
                return True
        return False

    @rule(holder=HOLDERS, per=st.one_of(st.none(), PERIODS), tokens=st.integers(-5, 900), micro_usd=st.integers(0, 900))
    def add(self, holder, per, tokens, micro_usd):
        scope, name = holder
        said = self.scheduler.command(AddBudget(scope, name, per, tokens, micro_usd), self.now)
        done = False
        for key in self.meant(scope, name, per) if tokens >= 0 else []:
            limits = self.shown(key)
            more = [
                amount if limit is not None else 0 for amount, limit in zip((tokens, micro_usd), limits, strict=True)
            ]
            if any(more):
                done = True
                book = self.current(key)
                if book.is_untouched():
                    book.began_at = self.now
                book.added = [old + new for old, new in zip(book.added, more, strict=True)]
        assert said.done == done

    @rule(holder=HOLDERS, per=st.one_of(st.none(), PERIODS))
    def reset(self, holder, per):
        keys = self.meant(*holder, per)
        assert self.scheduler.command(ResetBudget(*holder, per), self.now).done == bool(keys)
        for key in keys:
            self.books[key].clear(self.now)

    # Quarters of seconds: sums of them are exact, so that both books see the same end of a period.
    @rule(
        seconds=st.one_of(
            st.integers(0, 240).map(lambda quarters: quarters / 4),
            st.sampled_from([1800.0, 3600.0, 43_200.0, 86_400.0]),
        )
    )
    def advance(self, seconds):
        self.now += seconds

    @rule()
    def advance_to_wakeup(self):
        wakeup_at = self.scheduler.next_wakeup()
        if wakeup_at is not None and wakeup_at < 1e8:
            self.now = max(self.now, wakeup_at)

    @rule(slept_s=st.sampled_from([60.0, 1800.0, 3600.0, 86_400.0]))
    def sleep(self, slept_s):
        self.now += slept_s
        self.scheduler.wake_up(slept_s, self.now)

    @rule(goes_on=st.booleans())
    def die_and_come_back(self, goes_on):
        """A new process has what the journal kept: the last event of each account, and the orders."""
        standings = [
            AccountState(event.budget, max(0.0, self.now - event.began_at), event.spent + event.reserved, event.added)
            for (_, _, per), event in self.booked.items()
            if goes_on or per is not Period.RUN
        ]
        overrides = json.loads(json.dumps(self.scheduler.export_overrides(self.now, EPOCH)))
        self.scheduler = Scheduler(rng=random.Random(0))
        booked, self.booked = self.booked, {}
        self.waiting, self.flying = {}, {}
        if goes_on:
            self.scheduler.restore_budgets(standings, self.now)
            self.scheduler.restore_overrides(overrides, self.now, EPOCH)
        else:
            self.scheduler.restore_overrides(overrides, self.now, EPOCH)
            self.scheduler.restore_budgets(standings, self.now)
        assert self.scheduler.export_overrides(self.now, EPOCH) == overrides
        for key, book in list(self.books.items()):
            if book.is_untouched() and key in booked:
                book.began_at = booked[key].began_at  # whatever it was: its period begins with what happens next
            if not book.was_booked or book.is_over(key[2], self.now) or (key[2] is Period.RUN and not goes_on):
                del self.books[key]
                continue
            book.spent = [spent + reserved for spent, reserved in zip(book.spent, book.reserved, strict=True)]
            book.reserved = [0, 0]
            book.is_filed &= self.ordered(key) is None

    # What must hold ----------------------------------------------------------------------------------------------------

    @invariant()
    def the_books_agree(self):
        if not hasattr(self, "scheduler"):
            return
        for its in self.waiting.values():
            for key in self.payers(its):
                self.book(key).is_filed |= key in FILE
        for decision in self.scheduler.poll(self.now):
            match decision:
                case Admitted(attempt):
                    self.admitted(attempt)
                case Refused(its, short):
                    del self.waiting[its.id]
                    assert self.is_hopeless(its), "refused with room"
                    assert not short.may_pass
                case _:
                    raise AssertionError(decision)
        for its in self.waiting.values():
            assert self.is_short(its), "a ticket waits on budgets that have room"
            assert not self.is_hopeless(its), "it waits for what will never be"
        self.read_events()
        assert self.scheduler.poll(self.now) == []
        assert self.scheduler.drain_events() == []
        seen = {
            (one.budget.scope, one.budget.name, one.budget.per): one
            for one in self.scheduler.snapshot(self.now).budgets
        }
        assert self.scheduler.drain_events() == [], "who looks changes nothing"
        limited = {key for key in self.books if self.shown(key) != (None, None)}
        assert set(seen) == limited
        for key, view in seen.items():
            book = self.books[key]
            spent, added = ([0, 0], [0, 0]) if book.is_over(key[2], self.now) else (book.spent, book.added)
            assert [view.spent.tokens, view.spent.micro_usd] == spent
            assert [view.added.tokens, view.added.micro_usd] == added
            limits = [
                None if limit is None else limit + more for limit, more in zip(self.shown(key), added, strict=True)
            ]
            assert [view.budget.tokens, view.budget.micro_usd] == limits
            flying = [one.ticket.expected for one, keys in self.flying.values() if key in keys]
            assert view.reserved == sum(flying, Spend())

    def admitted(self, attempt):
        its = attempt.ticket
        del self.waiting[its.id]
        assert not self.is_short(its), "beyond a limit, or what others have set aside"
        keys = self.payers(its)
        for key in keys:
            book = self.current(key)
            if book.is_untouched():
                book.began_at = self.now
            book.reserved[0] += its.expected.tokens
            book.reserved[1] += its.expected.micro_usd
        self.flying[its.id] = attempt, keys

    def read_events(self):
        for event in self.scheduler.drain_events():
            if isinstance(event, AttemptEnded):
                assert event.spend.tokens >= 0
            assert not isinstance(event, OddityNoted)
            if isinstance(event, BudgetBooked):
                key = (event.budget.scope, event.budget.name, event.budget.per)
                if event.began_at == self.now:
                    self.current(key)  # it was looked at after the end of its period
                self.books[key].was_booked = True
                before = self.booked.get(key)
                if before is not None and before.began_at == event.began_at and event.began_at != self.now:
                    assert event.spent.tokens >= before.spent.tokens
                    assert event.spent.micro_usd >= before.spent.micro_usd
                self.booked[key] = event
        for key, event in self.booked.items():
            book = self.books[key]
            if not book.is_over(key[2], self.now):
                assert [event.spent.tokens, event.spent.micro_usd] == book.spent
                assert [event.reserved.tokens, event.reserved.micro_usd] == book.reserved
                assert [event.added.tokens, event.added.micro_usd] == book.added
                assert book.is_untouched() or event.began_at == pytest.approx(book.began_at, abs=1e-6)

    # The reference -----------------------------------------------------------------------------------------------------

    def book(self, key):
        if key not in self.books:
            self.books[key] = Book(self.now)
        return self.books[key]

    def current(self, key):
        book = self.book(key)
        if book.is_over(key[2], self.now):
            book.clear(self.now)
        return book

    def ordered(self, key):
        """The newest order that means the holder; None: there is none, or it takes back."""
        scope, name, per = key
        for whose, glob, when, limits in reversed(self.given):
            if (whose, when) == (scope, per) and (glob == name or (scope is Scope.AGENT and glob == "*")):
                return limits
        return None

    def limits(self, key):
        """What counts for a ticket."""
        return self.ordered(key) or FILE.get(key, (None, None))

    def shown(self, key):
        """What is known to count for a holder."""
        return self.ordered(key) or (FILE[key] if self.books[key].is_filed else (None, None))

    def payers(self, its):
        holders = [(Scope.AGENT, its.agent), (Scope.EVERYONE, "")] + [(Scope.GROUP, its.group)] * bool(its.group)
        keys = [(scope, name, per) for scope, name in holders for per in Period]
        return [key for key in keys if self.limits(key) != (None, None)]

    def room(self, its):
        """Of each limit that binds it: the limit, what is spent and reserved, and what it needs."""
        for key in self.payers(its):
            book = self.books.get(key) or Book(self.now)
            is_over = book.is_over(key[2], self.now)
            for unit, needed in enumerate((its.expected.tokens, its.expected.micro_usd)):
                limit = self.limits(key)[unit]
                if limit is not None and (unit == 0 or its.price):
                    spent = 0 if is_over else book.spent[unit]
                    yield limit + (0 if is_over else book.added[unit]), spent, book.reserved[unit], needed

    def is_short(self, its):
        return any(
            spent >= limit or spent + reserved + needed > limit for limit, spent, reserved, needed in self.room(its)
        )

    def is_hopeless(self, its):
        return any(spent >= limit or spent + needed > limit for limit, spent, _, needed in self.room(its))

    def meant(self, scope, name, per):
        """Those that a command finds: holders that were seen and have a limit."""
        return [
            key
            for key in self.books
            if key[0] is scope and name in (key[1], "*") and per in (None, key[2]) and self.shown(key) != (None, None)
        ]

    def teardown(self):
        """When everything has ended nothing is set aside, and nobody waits."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(len(self.waiting) + 1):
            for name in sorted(self.flying):
                attempt, keys = self.flying.pop(name)
                self.scheduler.settle(attempt, AttemptResult(IGNORED), self.now)
                for key in keys:
                    book = self.current(key)
                    book.reserved[0] -= attempt.ticket.expected.tokens
                    book.reserved[1] -= attempt.ticket.expected.micro_usd
            self.the_books_agree()
        assert self.waiting == self.flying == {}
        assert self.scheduler.is_idle
        assert all(view.reserved == Spend() for view in self.scheduler.snapshot(self.now).budgets)


TestBudgets = BudgetMachine.TestCase
