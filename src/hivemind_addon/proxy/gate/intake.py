"""HTTPFlow → Ticket: the requester and the expected usage of a request."""

from __future__ import annotations

import os
import re
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hivemind_addon.formats.base.patterns import normal_host
from hivemind_addon.formats.profile.model import Profile
from hivemind_addon.formats.wire.description import (
    describe_plain,
    describe_request,
    may_repeat,
    only_reads,
    signed_for_s,
    size_request,
)
from hivemind_addon.formats.wire.dialect import dialect_of
from hivemind_addon.formats.wire.estimate import Estimate
from hivemind_addon.formats.wire.identity import ALONE
from hivemind_addon.formats.wire.proxy_user import DELIVERIES, ProxyWords, clean, given_id, priority_of, proxy_words
from hivemind_addon.formats.wire.request import RequestFacts
from hivemind_addon.kernel.budget import spend_of
from hivemind_addon.kernel.values.events import OddityNoted
from hivemind_addon.kernel.values.ticket import CallKind, Delivery, Demand, PoolKey, Priority, Ticket, Usage
from hivemind_addon.proxy.api.words import lasting
from hivemind_addon.proxy.gate.authentication import Authentication, basic
from hivemind_addon.proxy.gate.exchange import INTERIM, Exchange
from hivemind_addon.proxy.gate.upstream_request import endpoints_of, upstreams_of, why_without_key
from hivemind_addon.proxy.host.flow_parts import destination, peer_of, plain_headers, plain_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from mitmproxy import http
    from mitmproxy.connection import Client

    from hivemind_addon.formats.profile.grants import Compaction
    from hivemind_addon.formats.wire.description import Description, PlainRequest, Size
    from hivemind_addon.kernel.values.spend import Price
    from hivemind_addon.plugins.contexts.compactor import Compactor, EditedRequest
    from hivemind_addon.proxy.gate.settings import LiveSettings
    from hivemind_addon.proxy.gate.written_files import Files
    from hivemind_addon.proxy.run.compose import Runtime

OWN_HEADERS = "x-hivemind-"
"""Prefix of the request headers that talk to us; they never go upstream."""
DELIVERY_KEY = "hivemind_delivery"
PRIORITY_KEY = "hivemind_priority"
TASK_KEY = "hivemind_task"
_KEPT_HEADERS = {
    "x-hivemind-delivery": DELIVERY_KEY,
    "x-hivemind-priority": PRIORITY_KEY,
    "x-hivemind-task-id": TASK_KEY,
}
"""The headers that stay with the flow under these keys, so that a replay is treated the same."""
IDEMPOTENCY_HEADER = "idempotency-key"
_SIGNED_HEADERS = re.compile(r"\bSignedHeaders=([^,\s]+)")
"""In the `authorization` header of Amazon's signatures."""
_name = itemgetter(0)
"""The name of a header field, as received."""
_TOKEN_BYTES = 3
BATCHES = "batches"
"""The model group of requests that begin batches: their limits are not those of other calls."""
ID_BYTES = 6
"""Bytes of a ticket's id: among a million tickets in a journal, a duplicate has a chance of 1 : 560."""


class Intake:
    """Makes exchanges of requests, and knows the users of client connections."""

    def __init__(
        self, *, runtime: Runtime, settings: LiveSettings, files: Files, on_end: Callable[[Exchange], None]
    ) -> None:
        """`on_end` is called once for each exchange, when the ticket is over."""
        self._runtime = runtime
        self._settings = settings
        self._files = files
        self._on_end = on_end
        self._token = os.urandom(_TOKEN_BYTES).hex()
        """Separates connections to this process from those to other cluster members, even with equal names."""
        self.authentication = Authentication(
            settings.current.secrets, now=runtime.driver.clock.monotonic, guard=runtime.guard
        )
        """Asks clients for proof of their identity."""
        self._compactor: Compactor | None = None
        """Shortens contexts; None: no rule has asked for compaction."""
        self._proxy_users: dict[str, tuple[str, str]] = {}
        """Client connection id → user and password of the CONNECT."""

    # Who asks --------------------------------------------------------------------------------------------------------

    def take_own_headers(self, flow: http.HTTPFlow) -> None:
        """Keep and remove headers for the proxy: `Proxy-Authorization` and `x-hivemind-*` never go upstream."""
        headers = flow.request.headers
        # Hardly any request has these headers: a single search over all names, as received.
        names = b"\n".join(map(_name, headers.fields)).lower()
        if b"x-hivemind-" not in names and b"proxy-authorization" not in names:
            return
        plain = plain_headers(headers.fields)
        signed = _SIGNED_HEADERS.search(plain.get("authorization", ""))
        kept = signed[1].lower().split(";") if signed else ()  # without these headers the signature would be wrong
        if credentials := plain.get("proxy-authorization"):
            self.learn_proxy_user(flow, credentials)
            if "proxy-authorization" not in kept:
                del headers["proxy-authorization"]
        for name, value in plain.items():
            if name.startswith(OWN_HEADERS):
                if name not in kept:
                    del headers[name]
                if value and (key := _KEPT_HEADERS.get(name)):
                    flow.metadata[key] = value

    def learn_proxy_user(self, flow: http.HTTPFlow, credentials: str) -> None:
        """Remember the user of a `Proxy-Authorization` header for the client connection."""
        user, password = basic(credentials)
        if user or password:
            self._proxy_users[flow.client_conn.id] = (user, password)

    def name_of(self, client: Client) -> str:
        """The name of a client connection from the CONNECT, for logs."""
        user = self.authentication.name_in(client) or self._proxy_users.get(client.id, ("", ""))[0]
        return user if user and user.isprintable() else f"a client at {client.peername[0]}"

    def forget(self, client: Client) -> None:
        """The connection has ended."""
        self._proxy_users.pop(client.id, None)
        self.authentication.forget(client)

    def _proxy_user(self, flow: http.HTTPFlow) -> tuple[str, str]:
        known = flow.metadata.get("proxyauth") or self._proxy_users.get(flow.client_conn.id)
        return (str(known[0]), str(known[1])) if known else ("", "")

    # Step 2: the ticket ----------------------------------------------------------------------------------------------

    def make(self, flow: http.HTTPFlow, profile: Profile, *, is_turn: bool = False) -> Exchange:
        """The exchange of a complete request, with a ticket. `is_turn`: the request was a WebSocket frame."""
        driver, settings = self._runtime.driver, self._settings.current
        now = driver.clock.monotonic()
        user, password = self._proxy_user(flow)
        request, is_plain, patience = plain_request(flow), profile.is_plain, profile.patience
        signed_s = signed_for_s(profile, request.headers, driver.clock.wall())
        peer, machine = peer_of(flow) or "unknown", settings.machine
        if machine is not ALONE:
            peer = f"{peer}@{machine.name}-{self._token}"
        estimator = self._runtime.estimator
        if is_plain:
            told = describe_plain(profile, request, user=user, peer=peer, machine=machine)
        else:
            told = describe_request(profile, request, estimator, user=user, peer=peer, rough=True, machine=machine)
        granted = settings.agents.rules(now).granted(told.who.name, told.who.agent)
        edited = None
        if granted.compaction is not None and not is_turn and not is_plain:
            edited = self._edit(flow, profile, request, told, granted.compaction)
        if edited is not None:  # from here on the original request is not used
            request = plain_request(flow)
            told = describe_request(profile, request, estimator, user=user, peer=peer, rough=True, machine=machine)
        facts, who = told.facts, told.who
        words = proxy_words(password)
        price = profile.price_of(facts.model, driver.clock.wall(), told.pool.host)
        if price is not None and facts.tier:
            price = replace(price, tier=facts.tier)
        told_s = words.patience_s or told.requester.known_patience_s
        patience_s = told_s or patience.default_s
        # A client that receives keep-alives during the wait is not silent all that time.
        keeps_alive = bool(profile.keep_alive_s or is_turn)
        is_kept_alive = keeps_alive and facts.stream and told.dialect.may_keep_alive(request.path)
        hears_interim = told.requester.reads_interim and flow.request.is_http11 and not (is_turn or is_kept_alive)
        hears_interim = hears_interim and _FORWARDED.isdisjoint(request.headers)
        is_kept_alive |= hears_interim
        if is_kept_alive and not words.patience_s and told.requester.announced_s is None:
            patience_s = max(patience_s, patience.kept_alive_s)
        if signed_s is not None:
            patience_s = min(patience_s, max(signed_s, 0.0))
        is_silent = not (words.patience_s or told.requester.announced_s or is_kept_alive)
        ticket = Ticket(
            id=os.urandom(ID_BYTES).hex(),
            pool=PoolKey(told.pool.host, driver.account_of(told.pool.account), told.pool.model_group),
            agent=who.agent,
            session=who.session,
            model=facts.model,
            arrived_at=now,
            deadline_at=now + patience_s,
            shed_at=now + max(patience_s - patience.margin_s, 0.9 * patience_s),
            priority=_priority(flow, words, granted.max_priority),
            kind=told.kind,
            parent_session=who.parent_session,
            streamed=facts.stream,
            request_hash=told.prints.whole,
            weight=granted.weight,
            max_fan_out=granted.max_fan_out,
            budgets=granted.budgets,
            price=price,
            needs_price=settings.refuses_unpriced and not is_plain and (price is None or bool(price.guess)),
            group=granted.group,
            task=given_id(str(flow.metadata.get(TASK_KEY, ""))) or given_id(words.task),
            window_tokens=profile.window_of(facts.model, told.pool.host),
            client=clean(told.requester.product) if is_silent else "",
            idempotency_key=given_id(request.headers.get(IDEMPOTENCY_HEADER, "")),
            only_reads=is_plain and only_reads(profile, flow.request.method, request.path),
            **_sizes(told.size, price),
        )
        upstreams = upstreams_of(profile, told, request.headers, request.path)
        without = {pool: why_without_key(flow, profile, one, settings) for pool, one in upstreams.items()}
        upstreams = {pool: one for pool, one in upstreams.items() if not without[pool]}
        misdirected = "" if upstreams else next(iter(without.values()), "")
        if misdirected:
            driver.note(OddityNoted(at=now, pool=ticket.pool, ticket_id=ticket.id, what=f"refused: {misdirected}"))
        if upstreams:
            ticket = replace(ticket, pool=next(iter(upstreams)), endpoints=endpoints_of(upstreams))
        size = told.size
        if size.estimate.is_rough and driver.must_count(ticket):
            size = size_request(profile, facts, told.prints, estimator, who.session)
            ticket = replace(ticket, **_sizes(size, price))
        delivery, whole_until_at = _asked_delivery(flow, profile, words), ticket.shed_at
        if delivery is Delivery.AUTO:
            delivery = Delivery.WHOLE if told.requester.is_headless else Delivery.STREAM
            whole_until_at = min(ticket.shed_at, now + profile.peek.whole_max_s)
        if edited is not None:
            self._keep_taken(edited, ticket, size)
        for oddity in facts.oddities:
            driver.note(OddityNoted(at=now, pool=ticket.pool, ticket_id=ticket.id, what=f"request: {oddity}"))
        return Exchange(
            flow=flow,
            ticket=ticket,
            profile=profile,
            dialect=told.dialect,
            facts=facts.without_text(),
            estimate=size.estimate,
            delivery=delivery,
            whole_until_at=whole_until_at,
            runtime=self._runtime,
            settings=settings,
            on_end=self._on_end,
            tape=self._files.recorder.begin(ticket) if self._files.recorder and not is_plain else None,
            upstreams=upstreams,
            misdirected=misdirected,
            opening=told.prints.opening,
            keeper=None if is_plain else self._files.keeper,
            unedited=edited.came if edited else None,
            compactor=self._compactor if edited and not edited.taken else None,
            may_repeat=not flow.request.stream,
            interim=INTERIM if hears_interim else b"",
            is_safe=not is_plain or may_repeat(profile, flow.request.method, request.headers, request.path),
        )

    def adopt(self, flow: http.HTTPFlow, profile: Profile, model: str, body_bytes: int) -> Ticket:
        """The ticket of a request that passes by and begins a batch: described by the head, and sized by its bytes."""
        driver, settings = self._runtime.driver, self._settings.current
        now, (user, _) = driver.clock.monotonic(), self._proxy_user(flow)
        peer, machine = peer_of(flow) or "unknown", settings.machine
        told = describe_plain(profile, plain_request(flow), user=user, peer=peer, machine=machine)
        granted = settings.agents.rules(now).granted(told.who.name, told.who.agent)
        price = profile.price_of(model, driver.clock.wall(), told.pool.host)
        if price is not None:
            price = replace(price, tier="batch")
        expected = Usage(input_tokens=round(body_bytes / profile.tokens.bytes_per_token))
        return Ticket(
            id=os.urandom(ID_BYTES).hex(),
            pool=PoolKey(told.pool.host, driver.account_of(told.pool.account), BATCHES),
            agent=told.who.agent,
            session=told.who.session,
            model=model,
            demand=Demand(),
            arrived_at=now,
            deadline_at=now,
            shed_at=now,
            kind=CallKind.AUXILIARY,
            parent_session=told.who.parent_session,
            budgets=granted.budgets,
            price=price,
            expected=spend_of(expected, price),
            group=granted.group,
        )

    def _edit(
        self, flow: http.HTTPFlow, profile: Profile, request: PlainRequest, told: Description, settings: Compaction
    ) -> EditedRequest | None:
        """Shorten the context of a request, in the flow; None: the request stays unchanged."""
        if self._compactor is None:
            from hivemind_addon.plugins.contexts.compactor import Compactor  # noqa: PLC0415 - rarely used

            self._compactor = Compactor(self._runtime.driver)
        return self._compactor.edit(flow, profile, request, told, settings, self._files.keeper)

    def _keep_taken(self, edited: EditedRequest, ticket: Ticket, size: Size) -> None:
        assert self._compactor is not None
        self._compactor.keep(edited, ticket, size.estimate.expected.total_input_tokens, self._files.keeper)

    def is_lapsed(self, flow: http.HTTPFlow, profile: Profile) -> bool:
        """Whether a request was signed too long ago to be held at all; reports such a request.

        The provider refuses the request, and the client signs a new request: we can do nothing better.
        """
        if profile.sign is None:
            return False
        clock = self._runtime.driver.clock
        signed_s = signed_for_s(profile, plain_headers(flow.request.headers.fields), clock.wall())
        if signed_s is None or signed_s > 0:
            return False
        host, age_s = normal_host(destination(flow)[0]), profile.sign.valid_s - signed_s
        what = f"request to {host} passes unscheduled: signed {lasting(age_s)} ago by {profile.sign.header}"
        what += " (are the clocks right?)"
        self._runtime.driver.note(OddityNoted(at=clock.monotonic(), pool=None, ticket_id=None, what=what))
        return True

    def make_unread(self, flow: http.HTTPFlow) -> Exchange:
        """An exchange for a request that could not be read: runs under a plain semaphore of the host.

        Made of defaults only: the code that reads and counts may be broken.
        """
        now = self._runtime.driver.clock.monotonic()
        profile = Profile()
        ticket = Ticket(
            id=os.urandom(ID_BYTES).hex(),
            pool=PoolKey(host=flow.request.host, account="unread", model_group="unread"),
            agent="unread",
            session="unread",
            model="",
            demand=Demand(),
            arrived_at=now,
            deadline_at=now + profile.patience.default_s,
            shed_at=now + profile.patience.default_s,
        )
        return Exchange(
            flow=flow,
            ticket=ticket,
            profile=profile,
            dialect=dialect_of(profile.format),
            facts=RequestFacts(),
            estimate=Estimate(),
            delivery=Delivery.STREAM,
            runtime=self._runtime,
            settings=self._settings.current,
            on_end=self._on_end,
        )


_FORWARDED = frozenset({"via", "forwarded", "x-forwarded-for"})
"""Of a proxy before ours, which may end a request that has many interim responses (Go's does after five)."""


def _sizes(size: Size, price: Price | None) -> dict[str, Any]:
    """The fields of a ticket about the size of the request."""
    return {
        "demand": size.estimate.demand,
        "prefix": size.prefix,
        "prefix_tokens": size.prefix_tokens,
        "cached_tokens": size.estimate.expected.cache_read_tokens,
        "cold_tokens": size.cold_tokens,
        "cache_s": size.cache_s,
        "expected": spend_of(size.estimate.expected, price),
    }


def _asked_delivery(flow: http.HTTPFlow, profile: Profile, words: ProxyWords) -> Delivery:
    """The delivery named by the request, else by the agent (in the proxy password), else by the profile."""
    word = str(flow.metadata.get(DELIVERY_KEY, "")).strip().lower()
    return DELIVERIES.get(word) or words.delivery or profile.delivery


def _priority(flow: http.HTTPFlow, words: ProxyWords, highest: Priority) -> Priority:
    """The class that the request asks for, else the agent, else `normal`; at most the agent's highest."""
    asked = priority_of(str(flow.metadata.get(PRIORITY_KEY, "")))
    if asked is None:
        asked = words.priority
    return max(Priority.NORMAL if asked is None else asked, highest)
