"""How the simulated provider's answer goes in time: when its head comes, when and how it ends. Pure."""

from dataclasses import dataclass

from hivemind_addon.lab.sim import faults
from hivemind_addon.lab.sim.call import SimAnswer
from hivemind_addon.lab.sim.plan import GAP_S
from hivemind_addon.proxy.wire.error import ErrorFacts
from hivemind_addon.proxy.wire.outcome import TransportTrouble


@dataclass(frozen=True, slots=True)
class Course:
    """How one answer goes, in seconds from its call's arrival at the provider."""

    end_s: float
    head_s: float | None
    trouble: TransportTrouble | None = None
    error: ErrorFacts | None = None
    """Inside a stream."""
    share: float = 1.0
    """Of the output, that is generated."""
    silent_from_s: float = 0.0
    silent_s: float = 0.0
    """The longest silence."""

    @property
    def shows_content(self) -> bool:
        """Whether some of it reaches a streaming client before it fails."""
        return self.share > 0


def course_of(answer: SimAnswer) -> Course:
    """What the answer's fault, if it has one, makes of it."""
    head_s = answer.latency_s
    tokens = answer.reply.output_tokens if answer.reply else 1
    generation_s = (tokens - 1) * answer.interval_s if answer.streamed else 0.0
    whole = Course(head_s + generation_s, head_s, silent_s=head_s)
    match answer.fault:
        case faults.NoHead():
            return Course(head_s, None, TransportTrouble.CLOSED_BEFORE_HEAD, share=0.0, silent_s=head_s)
        case faults.RefusedStream():
            return Course(head_s, None, TransportTrouble.REFUSED_STREAM, share=0.0, silent_s=head_s)
        case faults.HeadThenReset():
            return Course(head_s + GAP_S, head_s, TransportTrouble.CUT, share=0.0, silent_s=head_s)
        case faults.BodyCut() | faults.StreamCut() | faults.ResetStream() | faults.GoAway(error=True):
            return Course(head_s + generation_s / 2 + GAP_S, head_s, TransportTrouble.CUT, share=0.5)
        case faults.StreamError(at_event=place) if answer.streamed:
            early = place is not None
            end_s = head_s + (0.0 if early else generation_s / 2)
            return Course(end_s, head_s, error=ErrorFacts(type="overloaded_error"), share=0.0 if early else 0.5)
        case faults.Stall(stall_s):
            from_s = head_s + generation_s / 2
            return Course(whole.end_s + stall_s, head_s, silent_from_s=from_s, silent_s=stall_s)
        case _:
            return whole
