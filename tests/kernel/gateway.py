"""A key of a gateway for several models, with the scheduler before it: what it counts together is the test's."""

import random
from collections import Counter

from msgspec.structs import replace

from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.decision import Admitted, Refused, Shed
from hivemind_addon.kernel.values.ticket import Attempt, AttemptResult, Dimension, Outcome, PoolKey
from hivemind_addon.sim.limits import Limit, LimitKind, SimAllowance
from tests.kernel.samples import OVERLOADED, POOL, SUCCESS, THROTTLED, after, hints, requests_reading, ticket

MODELS = ("a", "b", "c")


def pool_of(model: str) -> PoolKey:
    return replace(POOL, model_group=model)


class Gateway:
    """Requests arrive in the instant in which they are admitted. Its headers are exact, where it tells any."""

    def __init__(
        self,
        *,
        amount: int = 5,
        window_s: float = 20.0,
        kind: LimitKind = LimitKind.WINDOW,
        cap: int | None = None,
        tells: bool = True,
        is_shared: bool = True,
        slowest_s: float = float("inf"),
        seed: int = 0,
    ) -> None:
        self.scheduler = Scheduler(rng=random.Random(seed))
        self.settings = PoolSettings(concurrency=ConcurrencySettings(initial=4))
        self.limit = Limit(Dimension.REQUESTS, amount, window_s, kind)
        self.cap, self.tells, self.is_shared = cap, tells, is_shared
        self.slowest_s = slowest_s
        self.now = 0.0
        self.tickets = 0
        self.running: dict[str, Attempt] = {}
        self.meets: dict[str, Outcome] = {}
        """What a running attempt will be told, by ticket."""
        self.ended: Counter[str] = Counter()
        self.refused: list[tuple[float, str]] = []
        self.order: list[str] = []
        """Tickets as they were admitted."""
        self._allowances: dict[str, SimAllowance] = {}
        self._told: dict[str, tuple[float, float]] = {}
        """What a running attempt's head tells, by ticket: the level, and when all is back."""

    @property
    def sharing(self):
        (sharing,) = self.scheduler._sharing.values()
        return sharing

    @property
    def shares(self):
        """The limits by refusals that the models draw on, each once."""
        return list(dict.fromkeys(member.share for member in self.sharing.members))

    def submit(self, model: str, agent: str = "") -> str:
        self.tickets += 1
        name = f"{model}{self.tickets}"
        made = ticket(name, session=agent or name, at=self.now, patience_s=3600.0, pool=pool_of(model))
        self.scheduler.submit(made, self.settings, self.now)
        self.poll()
        return name

    def poll(self) -> None:
        for decision in self.scheduler.poll(self.now):
            match decision:
                case Admitted(attempt):
                    self._arrive(attempt)
                case Shed(ticket=one) | Refused(ticket=one):
                    self.ended[one.id] += 1
        self.scheduler.drain_events()

    def answer(self, name: str) -> None:
        """An attempt's head and end arrive."""
        attempt, outcome = self.running.pop(name), self.meets.pop(name)
        level, full_in_s = self._told.pop(name)
        if self.tells:
            told = requests_reading(
                limit=self.limit.amount,
                remaining=level,
                reset_in_s=full_in_s,
                window_s=self.limit.window_s,
            )
            self.scheduler.observe(attempt, hints(told), self.now, answered=outcome is SUCCESS)
        verdict = self.scheduler.settle(attempt, AttemptResult(outcome), self.now)
        if not hasattr(verdict, "until"):
            self.ended[name] += 1
        self.poll()

    def answer_all(self) -> None:
        for name in list(self.running):
            self.answer(name)

    def answer_refused(self) -> None:
        """Refusals come at once."""
        while refused := [name for name, outcome in self.meets.items() if outcome is not SUCCESS]:
            self.answer(refused[0])

    def advance(self, seconds: float) -> None:
        """To an instant, by way of each wakeup; answers have come by `slowest_s`."""
        until = self.now + seconds
        while True:
            late = {name: one.admitted_at + self.slowest_s for name, one in self.running.items()}
            wakeup_at = self.scheduler.next_wakeup()
            at = min([*late.values(), until if wakeup_at is None else wakeup_at])
            if at > until:
                break
            self.now = max(self.now, at)
            for name in [name for name, at in late.items() if at <= self.now]:
                self.answer(name)
            self.poll()
            if self.now == until:
                break
        self.now = until
        self.poll()

    def meters(self):
        """By model: what its pool's meter of requests has, and who draws on it."""
        views = {view.key.model_group: view.meters for view in self.scheduler.snapshot(self.now).pools}
        return {model: (meters[0].level, meters[0].shared_by) for model, meters in views.items() if meters}

    def _allowance(self, one) -> SimAllowance:
        name = "" if self.is_shared else one.pool.model_group
        if name not in self._allowances:
            self._allowances[name] = self.limit.allowance(self.now)
        return self._allowances[name]

    def _arrive(self, attempt: Attempt) -> None:
        one = attempt.ticket
        self.order.append(one.id)
        beside = [other for other in self.running.values() if self.is_shared or other.ticket.pool == one.pool]
        busy = sum(self.meets[other.ticket.id] is SUCCESS for other in beside)
        allowance = self._allowance(one)
        outcome = SUCCESS
        if self.cap is not None and busy >= self.cap:
            outcome = OVERLOADED
        elif not allowance.fits(1, self.now):
            outcome = after(THROTTLED, allowance.fits_in_s(1, self.now))
        else:
            allowance.take(1, self.now)
        if outcome is not SUCCESS:
            self.refused.append((self.now, one.id))
        self._told[one.id] = max(0.0, float(int(allowance.level(self.now)))), allowance.full_in_s(self.now)
        self.running[one.id], self.meets[one.id] = attempt, outcome
