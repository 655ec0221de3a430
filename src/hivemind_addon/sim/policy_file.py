"""A policy that a user wrote: a class in a Python file. Loads the class, and checks each answer in a run.

Every error names file, line, class, method and cure. The checks keep the run honest as well: a policy cannot admit a
ticket twice, finish a call that failed, or stop the clock.
"""

import math
import random
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import click

from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.values.decision import Admitted, Backoff, Finished, GiveUp, Refused, Shed, Verdict
from hivemind_addon.kernel.values.ticket import Attempt, AttemptResult, Hints, OutcomeKind, Reason, Ticket

_CONTRACT = {
    "__init__": "the class is called with one random.Random: def __init__(self, rng)",
    "submit": "def submit(self, ticket, settings, now) takes a ticket, which waits from now on",
    "poll": "def poll(self, now) returns a list of Admitted, Shed and Refused, at most one for each waiting ticket",
    "next_wakeup": "def next_wakeup(self) returns None or an instant later than the last poll",
    "observe": "def observe(self, attempt, hints, now, *, answered=True) takes the head of an answer",
    "settle": "def settle(self, attempt, result, now) returns Finished(), Backoff(until, reason) or GiveUp(reason)",
    "cancel": "def cancel(self, ticket_id, now) ends a waiting ticket, and returns whether the ticket waited",
}
_METHODS = tuple(_CONTRACT)[1:]
_MOST_IDLE_POLLS = 100_000
"""Polls in a row without a decision, with nothing between them."""
_MOST_SHOWN = 60


class UnknownPolicy(Exception):
    """No policy has this name, or the file has no such class. The text names the cure."""


class PolicyFault(click.ClickException):
    """A user's policy broke the contract in a run. The text names file, line, class, method and cure."""


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A class in a file, with the file's text, so that the policy travels into other processes."""

    path: str
    class_name: str
    text: str

    @staticmethod
    def is_meant(name: str) -> bool:
        """Whether a policy's name is a file's."""
        return name.endswith(".py") or ".py:" in name

    @classmethod
    def read(cls, name: str) -> "PolicyFile":
        """Read and check `FILE.py:Class`. Raises UnknownPolicy."""
        path, class_name = (name, "") if name.endswith(".py") else name.rsplit(":", 1)
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or "no text in UTF-8"
            raise UnknownPolicy(
                f"{path}: {why}; write FILE.py:Class: the path of a Python file, and a class in it"
            ) from None
        file = cls(path, class_name, text)
        made = file.policy_class
        missing = [method for method in _METHODS if not callable(getattr(made, method, None))]
        if missing:
            cure = "".join(f"\n  {_CONTRACT[method]}" for method in missing)
            raise UnknownPolicy(f"{path}: class {class_name} lacks {', '.join(missing)}; add{cure}")
        if not (file.reaps_after_s is None or (_is_number(file.reaps_after_s) and file.reaps_after_s > 0)):
            raise UnknownPolicy(f"{path}: {class_name}.reaps_after_s is {file.reaps_after_s!r}; write seconds, or None")
        try:
            file.make(random.Random(0))
        except PolicyFault as error:
            raise UnknownPolicy(error.message) from None
        return file

    @property
    def policy_class(self) -> type[Any]:
        """The class. Raises UnknownPolicy."""
        return _class_in(self)

    @property
    def about(self) -> str:
        """The first line of the class's docstring."""
        return (self.policy_class.__doc__ or "").strip().partition("\n")[0] or f"a policy in {self.path}"

    @property
    def watches(self) -> bool:
        """See Policy."""
        return bool(getattr(self.policy_class, "watches", True))

    @property
    def reaps_after_s(self) -> float | None:
        """See Policy."""
        seconds: float | None = getattr(self.policy_class, "reaps_after_s", None)
        return seconds

    def make(self, rng: random.Random) -> "CheckedPolicy":
        """The policy of one run. Raises PolicyFault."""
        try:
            policy = self.policy_class(rng)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
            self.blame("__init__", _raised(error), error)
        return CheckedPolicy(self, policy)

    def line_of(self, error: BaseException) -> int | None:
        """The last line of the file that an error passed."""
        frames = traceback.extract_tb(error.__traceback__)
        return next((frame.lineno for frame in reversed(frames) if frame.filename == self.path), None)

    def blame(self, method: str, what: str, error: BaseException | None = None) -> NoReturn:
        """Raise PolicyFault for a method of the class."""
        line = None if error is None else self.line_of(error)
        if line is None:
            code = getattr(getattr(self.policy_class, method, None), "__code__", None)
            line = getattr(code, "co_firstlineno", None)
        place = self.path if line is None else f"{self.path}:{line}"
        raise PolicyFault(f"{place}: {self.class_name}.{method} {what}\n  {_CONTRACT[method]}") from None


@cache
def _class_in(file: PolicyFile) -> type[Any]:
    """Run the file, once in each process."""
    module = ModuleType(f"hivemind_policy_{Path(file.path).stem}")
    module.__file__ = file.path
    sys.modules[module.__name__] = module  # dataclasses look there
    try:
        exec(compile(file.text, file.path, "exec"), module.__dict__)  # noqa: S102 - the user's own file
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or file.line_of(error) or 1
        text = getattr(error, "msg", None) or _raised(error)
        raise UnknownPolicy(f"{file.path}:{line}: {text}; correct this line of the file") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
        line = file.line_of(error) or 1
        raise UnknownPolicy(
            f"{file.path}:{line}: {_raised(error)} while the file was loaded; correct this line"
        ) from None
    found = getattr(module, file.class_name, None) if file.class_name else None
    if isinstance(found, type):
        return found
    classes = [
        name for name, one in vars(module).items() if isinstance(one, type) and one.__module__ == module.__name__
    ]
    there_are = (
        f"write {' or '.join(f'{file.path}:{name}' for name in classes)}" if classes else "the file has no class"
    )
    lacks = f"there is no class {file.class_name!r}" if file.class_name else "the class is missing"
    raise UnknownPolicy(f"{file.path}: {lacks}; {there_are}")


class CheckedPolicy:
    """A user's policy, with the interface of `policy.Admission`. Raises PolicyFault at the first broken rule."""

    def __init__(self, file: PolicyFile, policy: object) -> None:
        self._file = file
        self._policy: Any = policy
        self._waiting: dict[str, Ticket] = {}
        self._in_flight: dict[str, Ticket] = {}
        self._polled_at = -math.inf
        self._idle_polls = 0

    def __repr__(self) -> str:
        return f"<CheckedPolicy {self._policy!r}>"

    def submit(self, ticket: Ticket, settings: PoolSettings, now: float) -> None:
        """See Admission."""
        self._waiting[ticket.id] = ticket
        self._call("submit", now, lambda: self._policy.submit(ticket, settings, now))

    def poll(self, now: float) -> Sequence[Admitted | Shed | Refused]:
        """See Admission."""
        idle_polls, most = self._idle_polls, len(self._waiting) + 1
        # A generator without end is cut where no ticket is left.
        decisions: list[Any] = self._call("poll", now, lambda: list(islice(self._policy.poll(now), most)))
        for decision in decisions:
            self._check(decision, now)
        self._polled_at = now
        self._idle_polls = 0 if decisions else idle_polls + 1
        return decisions

    def next_wakeup(self) -> float | None:
        """See Admission."""
        polled_at, idle_polls = self._polled_at, self._idle_polls
        at = self._call("next_wakeup", polled_at, self._policy.next_wakeup)
        self._idle_polls = idle_polls
        if at is None or (_is_number(at) and at == math.inf):
            return None
        if not _is_number(at) or math.isnan(at):
            self._file.blame("next_wakeup", f"returned {_shown(at)}{_at(polled_at)}")
        if at <= polled_at:
            self._file.blame("next_wakeup", f"returned {at!r}, which is not later than the poll at {polled_at!r}")
        if idle_polls > _MOST_IDLE_POLLS:
            polls = f"{_MOST_IDLE_POLLS:,} polls in a row"
            self._file.blame("next_wakeup", f"asked for {polls}, until {at:g} s of the run, and none decided anything")
        return float(at)

    def observe(self, attempt: Attempt, hints: Hints, now: float, *, answered: bool = True) -> None:
        """See Admission."""
        self._call("observe", now, lambda: self._policy.observe(attempt, hints, now, answered=answered))

    def settle(self, attempt: Attempt, result: AttemptResult, now: float) -> Verdict:
        """See Admission."""
        verdict: Verdict = self._call("settle", now, lambda: self._policy.settle(attempt, result, now))
        ticket = self._in_flight.pop(attempt.ticket.id)
        kind = result.outcome.kind
        is_over = kind is OutcomeKind.SUCCESS or kind is OutcomeKind.CANCELLED
        match verdict:
            case Finished() if is_over:
                pass
            case GiveUp(Reason()) if not is_over:
                pass
            case Backoff(until) if not is_over and not result.client_saw_bytes and _is_number(until) and until >= 0:
                self._waiting[ticket.id] = ticket
            case _:
                seen = ", of which the client has seen bytes" if result.client_saw_bytes else ""
                ended = f"for an attempt that ended as {kind.value}{seen}"
                self._file.blame("settle", f"returned {_shown(verdict)} {ended}{_at(now)}")
        return verdict

    def cancel(self, ticket_id: str, now: float) -> bool:
        """See Admission."""
        self._waiting.pop(ticket_id, None)
        return bool(self._call("cancel", now, lambda: self._policy.cancel(ticket_id, now)))

    def _call[T](self, method: str, now: float, do: Callable[[], T]) -> T:
        self._idle_polls = 0
        try:
            return do()
        except KeyboardInterrupt as error:
            self._file.blame(method, f"was interrupted by the keyboard{_at(now)}", error)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
            self._file.blame(method, f"{_raised(error)}{_at(now)}", error)

    def _check(self, decision: object, now: float) -> None:
        """One decision of `poll`."""
        match decision:
            case Admitted(Attempt(ticket=Ticket() as ticket, admitted_at=at, number=int(number))) if (
                at == now and number
            ):
                pass
            case Shed(Ticket() as ticket, Reason(), come_back_s) if (
                _is_number(come_back_s) and 0 <= come_back_s < math.inf
            ):
                pass
            case Refused(Ticket() as ticket):
                pass
            case _:
                self._file.blame("poll", f"returned {_shown(decision)}: {_flaw_of(decision)}{_at(now)}")
        known = self._waiting.pop(ticket.id, None)
        if known is None:
            has_gone = (
                "is in flight already" if ticket.id in self._in_flight else "does not wait: it ended, or never came"
            )
            self._file.blame("poll", f"decided on ticket {ticket.id!r}, which {has_gone}{_at(now)}")
        if ticket.pool not in (known.pool, *(endpoint.pool for endpoint in known.endpoints)):
            self._file.blame("poll", f"sent ticket {ticket.id!r} to {ticket.pool}, which does not serve the ticket")
        if isinstance(decision, Admitted):
            self._in_flight[ticket.id] = known


def _flaw_of(decision: object) -> str:
    match decision:
        case Admitted(Attempt(ticket=Ticket())):
            return "`admitted_at` has to be now, and `number` counts the attempts of the ticket from 1"
        case Shed(Ticket()):
            return "`reason` has to be a Reason, and `come_back_s` seconds from now"
        case Admitted() | Shed() | Refused():
            return "an Admitted has an Attempt of a Ticket, a Shed and a Refused have a Ticket"
    return "this is no decision"


def _at(now: float) -> str:
    return f", at {max(now, 0):.3f} s of the run"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _raised(error: BaseException) -> str:
    return f"raised {type(error).__name__}: {error}" if str(error) else f"raised {type(error).__name__}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
