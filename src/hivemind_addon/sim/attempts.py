"""Attempts in virtual time: on their way to a provider, there, and back. Repeatable.

    send ──way──► provider.begin ──head──► observe ──end──► provider.end ──way──► settle

Answers are read by the parsers of the proxy (`formats/wire/hints.py`, `formats/wire/outcome.py`).
"""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec.structs

from hivemind_addon.formats.wire.hints import read_hints
from hivemind_addon.formats.wire.outcome import TransportTrouble, judge_answer, judge_stream_error, judge_transport
from hivemind_addon.formats.wire.watchdog import Durations, may_be_silent_s
from hivemind_addon.kernel.values.ticket import Attempt, Hints, Outcome, OutcomeKind, Usage
from hivemind_addon.sim.actor import WALL_S, ScriptedActor, SimAttempt, SimCall, SimUpstream
from hivemind_addon.sim.call import AnswerEnding, SimAnswer
from hivemind_addon.sim.plan import Course, course_of

if TYPE_CHECKING:
    from hivemind_addon.sim.agenda import Agenda
    from hivemind_addon.sim.policy import Policy
    from hivemind_addon.sim.result import RunLedger
    from hivemind_addon.sim.workload import Scenario

NOT_BEGUN = (AnswerEnding.REFUSED, AnswerEnding.OVERLOADED)


class Attempts:
    """All attempts of a run."""

    def __init__(
        self,
        scenario: "Scenario",
        *,
        seed: int,
        policy: "Policy",
        agenda: "Agenda",
        ledger: "RunLedger",
        own: SimUpstream,
        observe: Callable[[Attempt, Hints, bool], None],
        settle: Callable[[SimAttempt, Outcome, Usage | None, bool], None],
        before_arrival: Callable[[SimUpstream], None],
    ) -> None:
        """`own`: the scenario's own provider.

        `observe` gets what the head of an answer says, and whether it is an answer. `settle` gets each attempt that was
        not abandoned when it is over, with its outcome, what the provider charges, and whether its client has seen
        bytes of it. `before_arrival`: a request is about to arrive at a provider.
        """
        self._scenario = scenario
        self._policy = policy
        self._agenda = agenda
        self._ledger = ledger
        self._own = own
        self._observe = observe
        self._settle = settle
        self._before_arrival = before_arrival
        self._ways = random.Random(f"{seed} ways")
        self._first_bytes = Durations()

    def __repr__(self) -> str:
        return f"<Attempts of {self._scenario.name} at {self._agenda.now:.1f} s>"

    def send(self, call: SimCall, sent: Attempt | None) -> None:
        """An attempt of the call leaves; `sent`: as the scheduler admitted it."""
        attempt = SimAttempt(call, sent)
        call.attempt = attempt
        self._ledger.attempt_sent(attempt, call.agent, self._agenda.now)
        attempt.upstream.idle.sent(self._agenda.now)
        jitter_s = self._scenario.way_jitter_s
        way_s = self._scenario.way_s + (self._ways.uniform(0, jitter_s) if jitter_s else 0.0)
        self._agenda.after(way_s, self._arrive, attempt)

    def abandon(self, attempt: SimAttempt, *, client_left: bool = True) -> None:
        """Close the attempt, whose client left, or which is silent."""
        self._ledger.paid_in_vain -= attempt.is_paid and client_left
        self._over(attempt)
        if attempt.is_open and not attempt.upstream.settings.works_on:
            attempt.is_open = False
            assert attempt.answer is not None
            self._close(attempt, attempt.answer, 0, AnswerEnding.ABANDONED)

    def _over(self, attempt: SimAttempt) -> None:
        attempt.over = True
        self._ledger.attempt_over(attempt, self._agenda.now)

    def _arrive(self, attempt: SimAttempt) -> None:
        """The provider has the request."""
        if attempt.over:
            return
        upstream, agent, way_s, now = attempt.upstream, attempt.call.agent, self._scenario.way_s, self._agenda.now
        self._before_arrival(upstream)
        answer = upstream.provider.begin(now, attempt.call.request())
        self._ledger.attempt_answered(answer, upstream, now)
        attempt.answer, attempt.arrived_at, attempt.is_open = answer, now, True
        if answer.ending not in NOT_BEGUN:
            if isinstance(agent, ScriptedActor):
                agent.faults_met += 1
            self._ledger.call_began(upstream, now)
        course = course_of(answer, upstream.profile)
        if course.head_s is not None:
            self._agenda.after(course.head_s + way_s, self._head, attempt, course)
        self._agenda.after(course.end_s, self._provider_ends, attempt, course.share)
        self._agenda.after(course.end_s + course.late_s + way_s, self._ended, attempt, course)
        silent_s = math.inf if attempt.sent is None else self._may_be_silent_s(attempt.sent, attempt, course)
        if course.silent_s > silent_s:
            self._agenda.after(course.silent_from_s + silent_s + way_s, self._stalled, attempt)

    def _may_be_silent_s(self, sent: Attempt, attempt: SimAttempt, course: Course) -> float:
        """How long, until the policy closes it; infinite: never. No scenario's streams are silent after content."""
        stated_s = self._scenario.silent_s
        if self._policy.reaps_after_s is not None:
            return self._policy.reaps_after_s if stated_s is None else stated_s
        if not self._policy.watches or not attempt.call.agent.crowd.streamed:
            return math.inf
        watchdog = attempt.upstream.profile.watchdog
        if stated_s is not None:
            watchdog = replace(watchdog, silent_s=stated_s, begun_s=stated_s)
        ticket = sent.ticket
        return may_be_silent_s(
            watchdog,
            streamed=True,
            begun=bool(course.silent_from_s),
            usual_s=0 if course.silent_from_s else self._first_bytes.p99_s(ticket.pool),
            patience_s=ticket.deadline_at - ticket.arrived_at,
            stalls=0,
        )

    def _provider_ends(self, attempt: SimAttempt, share: float) -> None:
        if not attempt.is_open:
            return
        attempt.is_open = False
        answer = attempt.answer
        assert answer is not None
        tokens = round(answer.reply.output_tokens * share) if answer.reply else 0
        self._close(attempt, answer, tokens, AnswerEnding.ABANDONED if attempt.over else None)

    def _close(self, attempt: SimAttempt, answer: SimAnswer, tokens: int, ending: AnswerEnding | None) -> None:
        ending, upstream, now = ending or answer.ending, attempt.upstream, self._agenda.now
        attempt.is_paid = ending is AnswerEnding.COMPLETED
        self._ledger.paid_in_vain += attempt.is_paid
        upstream.provider.end(now, answer, output_tokens=tokens, ending=ending)
        if ending not in NOT_BEGUN:
            self._ledger.call_ended(upstream, now)
        if ending in (AnswerEnding.FAILED, AnswerEnding.CUT, AnswerEnding.ABANDONED):
            wasted_s = max(0.0, now - attempt.arrived_at - answer.queued_s)
            upstream.taken[attempt.call.agent.crowd.model].service_s += wasted_s
            # Where a call goes on without its client, the agent does not wait for all of that; of calls at once none
            # waits for the other.
            if not upstream.settings.works_on and attempt.call.agent.awaited <= 1:
                attempt.call.agent.path_s += wasted_s
        if answer.reply:
            self._ledger.book_attempt(
                attempt.call.agent, upstream, answer.reply, tokens, is_whole=ending is AnswerEnding.COMPLETED
            )

    def _head(self, attempt: SimAttempt, course: Course) -> None:
        if attempt.over:
            return
        answer, now = attempt.answer, self._agenda.now
        assert answer is not None
        upstream = attempt.upstream
        attempt.hints = read_hints(upstream.profile, dict(answer.headers), WALL_S + now)
        if upstream is not self._own:
            # All simulated providers name one account; whose theirs is, their sites say.
            attempt.hints = msgspec.structs.replace(attempt.hints, account=None)
        if attempt.sent is not None:
            self._observe(attempt.sent, attempt.hints, answer.status < 400)
            if answer.streamed and answer.status == 200:
                self._first_bytes.note(attempt.sent.ticket.pool, now - attempt.sent.admitted_at)
        # A head without content is kept back, as the proxy does that looks for errors before it.
        if answer.streamed and answer.reply is not None and course.shows_content:
            attempt.call.has_begun = True

    def _ended(self, attempt: SimAttempt, course: Course) -> None:
        """The answer is over, whole or not."""
        if attempt.over:
            return
        answer, profile = attempt.answer, attempt.upstream.profile
        assert answer is not None
        if course.trouble is not None:
            outcome = judge_transport(course.trouble)
        elif course.error is not None:
            outcome = judge_stream_error(profile, course.error)
        else:
            body, places = answer.error_body or None, profile.format.error
            headers, wall_now = dict(answer.headers), WALL_S + self._agenda.now
            outcome = judge_answer(profile, answer.status, headers, body, attempt.hints, wall_now, places=places)
        usage = None
        if answer.reply is not None and course.trouble is not TransportTrouble.CLOSED_BEFORE_HEAD:
            usage = Usage(
                input_tokens=answer.reply.input_tokens,
                cache_read_tokens=answer.reply.cached_tokens,
                cache_write_tokens=answer.reply.written_tokens,
                output_tokens=round(answer.reply.output_tokens * course.share),
                reported=outcome.kind is OutcomeKind.SUCCESS,
            )
        self._over(attempt)
        self._settle(attempt, outcome, usage, answer.streamed and course.shows_content)

    def _stalled(self, attempt: SimAttempt) -> None:
        """The layer's watchdog: the attempt is silent."""
        if attempt.over:
            return
        saw_bytes = attempt.call.has_begun
        self.abandon(attempt, client_left=False)
        self._settle(attempt, judge_transport(TransportTrouble.STALLED), None, saw_bytes)
