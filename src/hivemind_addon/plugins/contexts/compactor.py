"""A request whose context has become too long is made shorter in its flow, before it is estimated and queued.

So all that comes later sees what is sent: estimates and budgets, retries and endpoints, captures and the views. What
its client sent goes on with the exchange, for the context that is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from msgspec import Struct

from hivemind_addon.formats.base.patterns import glob_matches
from hivemind_addon.formats.profile.grants import Compaction, CompactionBy
from hivemind_addon.formats.wire.decoding import DecodeError, decode
from hivemind_addon.formats.wire.request import MAX_BODY_BYTES, lasting_weight
from hivemind_addon.kernel.values.events import ContextCompacted, OddityNoted
from hivemind_addon.plugins.contexts.compaction import TakenOut, ask_provider, is_edited_elsewhere, shorten
from hivemind_addon.proxy.gate.upstream_request import is_signed, put_body

if TYPE_CHECKING:
    from mitmproxy import http

    from hivemind_addon.formats.profile.model import ContextEditing, Profile
    from hivemind_addon.formats.wire.answer_in_progress import AnswerInProgress
    from hivemind_addon.formats.wire.description import Description, PlainRequest
    from hivemind_addon.kernel.values.ticket import Ticket
    from hivemind_addon.plugins.contexts.keeper import ConversationKeeper
    from hivemind_addon.proxy.run.driver import Driver

_BOUND_TO_BODY = frozenset(("content-digest", "content-md5", "digest", "repr-digest", "signature", "x-signature"))
"""Headers that are wrong as soon as a byte of the body is another one."""
_MOST_TOLD = 100
_SESSIONS = 4096


class EditedRequest(Struct, frozen=True):
    """What was done to a request."""

    came: PlainRequest
    """As its client sent it."""
    taken: tuple[TakenOut, ...]
    """What stubs stand for; empty: the provider was asked."""
    tokens_before: int
    """Input as estimated."""


class Compactor:
    """Edits requests. On the event loop; what it remembers only spares work and words."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._told: set[str] = set()
        """Troubles that a person was told of."""
        self._cleared: OrderedDict[str, int] = OrderedDict()
        """Session → results that its provider said it had taken out."""

    def edit(
        self,
        flow: http.HTTPFlow,
        profile: Profile,
        request: PlainRequest,
        told: Description,
        settings: Compaction,
        keeper: ConversationKeeper | None,
    ) -> EditedRequest | None:
        """Make the flow's request shorter, or have its provider do so; None: it stays as it came."""
        headers = request.headers
        if profile.sign is not None or is_signed(headers, request.path) or not _BOUND_TO_BODY.isdisjoint(headers):
            return None
        if told.facts.continues or not told.facts.messages:
            return None
        window_tokens = settings.window_tokens or profile.window_of(told.facts.model)
        if not window_tokens:
            what = f"no context of {told.facts.model or 'a model'} is compacted: its context window is not known"
            self._tell(f"{what}; write window_tokens into compaction, or context_windows into profile {profile.name}")
            return None
        body = _plain(request)
        if body is None or is_edited_elsewhere(body, told.dialect):
            return None
        tokens_before = told.size.estimate.expected.total_input_tokens
        editing = _editing(profile, told, settings)
        if editing is not None:
            asked = ask_provider(body, editing, settings, window_tokens=window_tokens)
            if asked is None:
                return None
            put_body(flow.request, asked)
            _switch_on(flow.request, editing)
            return EditedRequest(request, (), tokens_before)
        short = shorten(
            body,
            told.dialect,
            settings,
            window_tokens=window_tokens,
            tokens=profile.tokens,
            preamble_bytes=sum(lasting_weight(raw)[0] for raw in told.facts.preamble),
        )
        if short is None:
            return None
        if keeper is None:
            self._tell("no context is compacted: what is taken out could not be kept (hivemind_journal is off)")
            return None
        if keeper.lost_results:
            self._tell(f"no context is compacted: what is taken out cannot be kept: {keeper.lost_results}")
            keeper.keep_results(told.who.agent, told.who.session, short.taken)  # until it can be again
            return None
        put_body(flow.request, short.body)
        return EditedRequest(request, tuple(short.taken), tokens_before)

    def keep(self, edited: EditedRequest, ticket: Ticket, tokens_after: int, keeper: ConversationKeeper | None) -> None:
        """Have what was taken out written, and tell what it was."""
        if not edited.taken or keeper is None:
            return
        new = keeper.keep_results(ticket.agent, ticket.session, edited.taken)
        if new:
            self._note(ticket, new, edited.tokens_before, tokens_after)

    def heard(self, ticket: Ticket, profile: Profile, answer: AnswerInProgress, input_tokens: int) -> bool:
        """A provider that was asked has answered: tell what it took out, when that is more than before.

        Answers whether it took anything out.
        """
        editing = profile.context_editing
        if editing is None or not editing.results:
            return False
        results = answer.sum_at(editing.results)
        more = results - self._cleared.get(ticket.session, 0)
        self._cleared[ticket.session] = results
        self._cleared.move_to_end(ticket.session)
        if len(self._cleared) > _SESSIONS:
            self._cleared.popitem(last=False)
        if more > 0:
            self._note(ticket, more, input_tokens + answer.sum_at(editing.tokens), input_tokens)
        return results > 0

    def _note(self, ticket: Ticket, results: int, tokens_before: int, tokens_after: int) -> None:
        event = ContextCompacted(
            at=self._driver.clock.monotonic(),
            ticket_id=ticket.id,
            pool=ticket.pool,
            agent=ticket.agent,
            session=ticket.session,
            results=results,
            tokens_before=tokens_before,
            tokens_after=tokens_after,
        )
        self._driver.note(event)

    def _tell(self, what: str) -> None:
        if what in self._told or len(self._told) >= _MOST_TOLD:
            return
        self._told.add(what)
        self._driver.note(OddityNoted(at=self._driver.clock.monotonic(), pool=None, ticket_id=None, what=what))


def _plain(request: PlainRequest) -> bytes | None:
    encoding = request.headers.get("content-encoding", "")
    if not encoding:
        return request.body if len(request.body) <= MAX_BODY_BYTES else None
    try:
        return decode(request.body, encoding, MAX_BODY_BYTES)
    except DecodeError:
        return None


def _editing(profile: Profile, told: Description, settings: Compaction) -> ContextEditing | None:
    """How the provider is to be asked; None: it would not understand, or is not to be.

    Hosts that only speak its format are not it, and neither are endpoints of the user's own.
    """
    editing = profile.context_editing
    if editing is None or settings.by is not CompactionBy.AUTO or profile.upstreams or not told.facts.has_tools:
        return None
    is_own = any(glob_matches(glob, told.pool.host) for glob in profile.hosts)
    return editing if is_own and any(glob_matches(glob, told.facts.model) for glob in editing.models) else None


def _switch_on(request: http.Request, editing: ContextEditing) -> None:
    if not editing.header:
        return
    listed = [one.strip() for one in ",".join(request.headers.get_all(editing.header)).split(",") if one.strip()]
    if editing.feature not in listed:
        request.headers[editing.header] = ",".join((*listed, editing.feature))
