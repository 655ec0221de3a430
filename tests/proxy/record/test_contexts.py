"""How full contexts are: growth, the cache, warnings with hysteresis, and what compactions cost and lost."""

import logging

from hivemind_addon.kernel.values.events import (
    AttemptEnded,
    ContextCompacted,
    ContextFull,
    ContextShrank,
    Submitted,
    TicketEnded,
)
from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.kernel.values.ticket import CallKind, Outcome, OutcomeKind, Usage
from hivemind_addon.proxy.api.event_text import level_of, line_of, text_of
from hivemind_addon.proxy.record.contexts import CONTEXTS, TOLD, Contexts
from tests.proxy.record.samples import POOL, make

ANSWERED = Outcome(OutcomeKind.SUCCESS, "200")


class Watched:
    """Contexts, and what they have told."""

    def __init__(self):
        self.told = []
        self.contexts = Contexts()
        self.contexts.tell = self.told.append
        self.now = 0.0
        self._asked = 0

    def ask(self, input_tokens, output_tokens=0, *, outcome=ANSWERED, spend=None, **ticket):
        """One request from its arrival to its end, which took ten seconds."""
        self._asked += 1
        self.now += 60.0
        name = f"t{self._asked}"
        given = {"agent": "ada", "session": "s", "model": "m", "window_tokens": 200_000} | ticket
        submitted = make(Submitted)
        fields = {name: getattr(submitted.ticket, name) for name in submitted.ticket.__struct_fields__}
        self.contexts(Submitted(self.now - 10, type(submitted.ticket)(**fields | given | {"id": name})))
        usage = Usage(100, input_tokens - 100, 0, output_tokens, reported=True)
        spend = spend or Spend(input_tokens + output_tokens)
        self.contexts(AttemptEnded(self.now, name, POOL, 1, outcome, usage, 10.0, spend))
        self.contexts(TicketEnded(self.now, name, POOL, "delivered", "", 1, 0, 0.0))

    def one(self):
        """The only conversation."""
        (view,) = self.contexts.view(self.now)
        return view


def test_a_conversation_is_as_large_as_its_provider_counted_and_grows_by_its_newest_turns():
    watched = Watched()
    watched.ask(10_000, 500, cache_s=300.0)
    assert (watched.one().tokens, watched.one().growth_per_turn) == (10_500, 0)
    watched.ask(14_000, 500, cache_s=300.0)
    assert watched.one().growth_per_turn == 4_000
    for total in (16_500, 18_500, 20_500, 22_500, 24_500, 26_500, 28_500):
        watched.ask(total - 500, 500, cache_s=300.0)
    told = watched.one()
    assert 2_000 < told.growth_per_turn < 2_300  # the newest turns count most
    assert told.share == 28_500 / 200_000
    assert told.turns_left == (200_000 - 28_500) / told.growth_per_turn
    assert told.cache_lapses_in_s == 290.0  # from the attempt's beginning
    watched.now += 1_000
    assert watched.one().cache_lapses_in_s == 0


def test_what_is_no_answered_turn_changes_nothing():
    watched = Watched()
    watched.ask(50_000)
    before = watched.one()
    watched.ask(900, kind=CallKind.AUXILIARY)
    watched.ask(900, kind=CallKind.CLASSIFIER)
    watched.ask(190_000, outcome=Outcome(OutcomeKind.THROTTLED, "429"))
    watched.now -= 180
    assert watched.one() == before
    assert not watched.told


def test_a_full_context_is_told_once_until_it_was_shorter():
    watched = Watched()
    for tokens in (150_000, 161_000, 159_000, 165_000):
        watched.ask(tokens)
    (full,) = watched.told
    assert isinstance(full, ContextFull)
    assert line_of(full).startswith("ada (session s): its context is 80% full: 161,000 of 200,000 tokens")
    assert watched.one().is_full
    watched.ask(130_000)  # shorter by less than a compaction
    assert not watched.one().is_full
    watched.ask(170_000)
    assert [type(event) for event in watched.told] == [ContextFull, ContextFull]
    watched.contexts.warn_at = 0.0
    watched.ask(199_000)
    assert not watched.one().is_full


def test_a_window_that_proves_larger_is_not_known_any_more():
    watched = Watched()
    watched.ask(210_000)
    watched.ask(190_000)
    assert watched.one().window_tokens is None
    assert not watched.told


def test_a_summary_that_was_asked_for_tells_at_once_what_the_compaction_cost_and_lost():
    watched = Watched()
    watched.ask(120_000)
    watched.ask(150_000, 2_000)
    watched.ask(153_000, 4_000, kind=CallKind.COMPACTION, spend=Spend(157_000, 520_000))
    assert watched.one().tokens == 152_000  # a call beside the conversation
    watched.ask(21_000, 1_000)
    (shrank,) = watched.told
    assert (shrank.before_tokens, shrank.after_tokens, shrank.spend) == (152_000, 21_000, Spend(157_000, 520_000))
    assert text_of(shrank).endswith("152,000 → 21,000 tokens; its summary took 157,000 tokens, $0.5200")
    told = watched.one()
    assert (told.compactions, told.lost_tokens, told.compaction_cost.micro_usd) == (1, 131_000, 520_000)
    assert (told.newest_before_tokens, told.newest_after_tokens) == (152_000, 21_000)
    assert told.growth_per_turn == 32_000  # what was lost is no growth


def test_after_a_summary_less_is_enough_since_instructions_and_tools_stay():
    watched = Watched()
    watched.ask(50_000, 3_000, kind=CallKind.COMPACTION)  # its conversation began before the proxy did
    watched.ask(32_000)
    watched.ask(52_000)
    watched.ask(54_000, 3_000, kind=CallKind.COMPACTION)
    watched.ask(53_000)  # it goes on as it was for now
    watched.ask(33_000)
    assert [(one.before_tokens, one.after_tokens) for one in watched.told] == [(50_000, 32_000), (53_000, 33_000)]
    assert watched.one().compaction_cost == Spend(110_000)


def test_a_small_call_between_two_turns_is_no_compaction_but_two_turns_that_stay_small_are():
    watched = Watched()
    for tokens in (100_000, 101_000, 2_500, 103_000):
        watched.ask(tokens)
    assert not watched.told
    assert watched.one().growth_per_turn < 2_000
    for tokens in (30_000, 32_000):
        watched.ask(tokens)
    (shrank,) = watched.told
    assert isinstance(shrank, ContextShrank)
    assert (shrank.before_tokens, shrank.after_tokens, shrank.spend) == (103_000, 30_000, Spend())


def test_what_the_proxy_takes_out_itself_counts_at_once_however_little():
    watched = Watched()
    watched.ask(100_000)
    watched.contexts(make(ContextCompacted, agent="ada", session="s"))
    watched.ask(80_000)
    watched.ask(82_000)
    (shrank,) = watched.told
    assert (shrank.before_tokens, shrank.after_tokens, shrank.by_proxy) == (100_000, 80_000, True)
    assert level_of(shrank) == logging.DEBUG  # it was told by who did it
    assert watched.one().growth_per_turn == 2_000


def test_the_number_of_conversations_is_bounded_and_the_newest_are_told():
    watched = Watched()
    for number in range(CONTEXTS + 5):
        watched.ask(5_000, session=f"s{number}")
    view = watched.contexts.view(watched.now)
    assert len(watched.contexts) == CONTEXTS
    assert (len(view), view[-1].session) == (TOLD, f"s{CONTEXTS + 4}")
    assert not watched.contexts._live
