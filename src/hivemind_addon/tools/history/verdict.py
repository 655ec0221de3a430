"""Did a request run once, twice or never, or can nobody know?

success                                        ran
ended without a status, or the proxy died      may have run: the provider may have billed it
the client or a person ended the attempt       may have run, unless never sent
an answer that broke off                       may have run
any other answer, or nobody was reached        did not run
"""

from collections.abc import Sequence
from enum import Enum

from hivemind_addon.kernel.values.ticket import OutcomeKind
from hivemind_addon.proxy.api.words import several
from hivemind_addon.proxy.journal.tables import AttemptRow, TicketRow
from hivemind_addon.tools.history.views import LOST

_TIMES = {1: "once", 2: "twice"}


class AttemptFate(Enum):
    """Whether an attempt ran at the provider."""

    RAN = "ran"
    MAY_HAVE_RUN = "may have run"
    DID_NOT_RUN = "did not run"
    RUNS = "runs"


def fate_of(attempt: AttemptRow) -> AttemptFate:
    """Whether this attempt ran."""
    match attempt.outcome:
        case "":
            return AttemptFate.RUNS
        case OutcomeKind.SUCCESS.value:
            return AttemptFate.RAN
        case "lost":
            return AttemptFate.MAY_HAVE_RUN
        case OutcomeKind.CANCELLED.value:
            # An attempt that was never sent is booked with nothing; a sent attempt, at least with the expected amounts.
            return AttemptFate.MAY_HAVE_RUN if attempt.tokens or attempt.micro_usd else AttemptFate.DID_NOT_RUN
        case _:
            broke_off = attempt.status is not None and attempt.status < 300
            return AttemptFate.MAY_HAVE_RUN if attempt.ambiguous or broke_off else AttemptFate.DID_NOT_RUN


def verdict(tickets: Sequence[TicketRow], attempts: Sequence[AttemptRow]) -> str:
    """Whether a request ran, in a sentence; several tickets are a client's repeated tries of the same request."""
    fates = [fate_of(attempt) for attempt in attempts]
    is_live = any(not ticket.end for ticket in tickets)
    head = verdict_head(attempts, is_live=is_live)
    unsure = f"; {_why_unsure(attempts)}" if AttemptFate.MAY_HAVE_RUN in fates else ""
    failed = fates.count(AttemptFate.DID_NOT_RUN)
    beside = f"; {several(failed, 'attempt')} failed without running" if failed else ""
    has_run = AttemptFate.RAN in fates or AttemptFate.MAY_HAVE_RUN in fates
    if is_live:
        now = "runs now" if AttemptFate.RUNS in fates else "waits now"
        return f"{head}, and {now}{unsure}" if has_run or now == "waits now" else now
    return head + unsure + beside if has_run else f"{head}: {_why_never(tickets[-1], len(fates))}"


def verdict_head(attempts: Sequence[AttemptRow], *, is_live: bool) -> str:
    """How often a request ran: `ran once`, `may have run once`, `never ran`."""
    fates = [fate_of(attempt) for attempt in attempts]
    ran, perhaps = fates.count(AttemptFate.RAN), fates.count(AttemptFate.MAY_HAVE_RUN)
    if ran:
        return f"ran {times(ran)}" + (f" and may have run {times(perhaps)} more" if perhaps else "")
    if perhaps:
        return "may have run once" if perhaps == 1 else f"may have run, at most {times(perhaps)}"
    return "has not run yet" if is_live else "never ran"


def times(number: int) -> str:
    """`once`, `twice`, `3 times`."""
    return _TIMES.get(number, f"{number:,} times")


def _why_unsure(attempts: Sequence[AttemptRow]) -> str:
    """The reason of the last attempt that may have run."""
    last = next(one for one in reversed(attempts) if fate_of(one) is AttemptFate.MAY_HAVE_RUN)
    if last.outcome == LOST:
        return f"{last.reason or 'its proxy died'} while attempt {last.attempt} was under way"
    return f"attempt {last.attempt}: {last.reason}" if last.reason else f"attempt {last.attempt} was {last.outcome}"


def _why_never(ticket: TicketRow, attempts: int) -> str:
    if ticket.end == LOST:
        return f"{ticket.reason or 'its proxy died'} while it waited"
    tried = f" after {several(attempts, 'failed attempt')}" if attempts else ""
    reason = f" ({ticket.reason})" if ticket.reason else ""
    return f"{ticket.end}{tried}{reason}"
