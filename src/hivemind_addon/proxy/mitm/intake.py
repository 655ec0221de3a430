"""HTTPFlow → Ticket: which requests are ours, whose they are, and what they will use."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import secrets
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from mitmproxy.proxy.mode_specs import ReverseMode

from hivemind_addon.api.events import OddityNoted
from hivemind_addon.api.proxy_user import ProxyWords, clean, given_id, priority_of, proxy_words
from hivemind_addon.api.ticket import Delivery, Demand, PoolKey, Priority, Ticket
from hivemind_addon.proxy.core.budget import spend_of
from hivemind_addon.proxy.mitm.annotate import Annotator
from hivemind_addon.proxy.mitm.attempt import plain_headers
from hivemind_addon.proxy.mitm.exchange import Exchange
from hivemind_addon.proxy.mitm.files import Files
from hivemind_addon.proxy.mitm.options import is_loopback
from hivemind_addon.proxy.mitm.own_addresses import PAGE_HOST, is_on_loopback
from hivemind_addon.proxy.mitm.profiles_folder import ProfilesFolder
from hivemind_addon.proxy.mitm.refusal import make_upgrade_refusal
from hivemind_addon.proxy.mitm.request import destination, known_patience, plain_body
from hivemind_addon.proxy.mitm.upstream import Upstream, upstream_by_path
from hivemind_addon.proxy.profile.known import is_model_host, is_shaped_like_a_call
from hivemind_addon.proxy.profile.load import dialect_for, is_model_call, model_group, model_of
from hivemind_addon.proxy.profile.model import InputCharge, Profile
from hivemind_addon.proxy.wire.dialects.registry import dialect_of
from hivemind_addon.proxy.wire.identity import call_kind, identify, is_headless, product
from hivemind_addon.proxy.wire.request import RequestFacts, fingerprints, read_request
from hivemind_addon.system.descriptors import Places, raise_limit
from hivemind_addon.system.hosts import normal_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mitmproxy import http
    from mitmproxy.connection import Client
    from mitmproxy.flow import Flow
    from mitmproxy.proxy.context import Context

    from hivemind_addon.api.ticket import Attempt
    from hivemind_addon.proxy.compose import Runtime
    from hivemind_addon.proxy.mitm.control_socket import ControlSocket
    from hivemind_addon.proxy.mitm.options import Settings
    from hivemind_addon.proxy.mitm.pages import Pages

logger = logging.getLogger(__name__)

OWN_HEADERS = "x-hivemind-"
"""Prefix of the request headers that talk to us; they never go upstream."""
DELIVERY_HEADER = "x-hivemind-delivery"
DELIVERY_KEY = "hivemind_delivery"
PRIORITY_HEADER = "x-hivemind-priority"
PRIORITY_KEY = "hivemind_priority"
TASK_HEADER = "x-hivemind-task-id"
TASK_KEY = "hivemind_task"
IDEMPOTENCY_HEADER = "idempotency-key"
ID_BYTES = 6
"""Of a ticket's id: in a journal of a million tickets two are the same with a chance of 1 : 560."""
_MOST_UNSCHEDULED = 100
FLUSH_S = 0.2
"""How long a stopping proxy lets its last answers leave their sockets."""


class Intake:
    """Makes exchanges, and knows those that have not ended. Implements `mitm.port.Port`."""

    def __init__(self, *, runtime: Runtime, settings: Settings) -> None:
        self.runtime = runtime
        self.driver = runtime.driver
        self.guard = runtime.guard
        self.settings = settings
        """Replaced when an option changes."""
        self.began_wall = runtime.driver.clock.wall()
        self.files = Files(runtime.driver)
        """What is written: the journal, and captures."""
        self.profiles_folder = ProfilesFolder(self)
        """What tells pools of changed profiles."""
        self.control: ControlSocket | None = None
        """Where others read what goes on."""
        self.places = Places(raise_limit())
        """Of clients' connections."""
        self.pages: Pages | None = None
        """Where people read it, with a browser."""
        self.live: dict[str, Exchange] = {}
        """Flow id → exchange whose ticket has not ended."""
        self.unscheduled: set[str] = set()
        """Hosts of models whose calls passed by; each is told once."""
        self.replays: dict[str, Exchange] = {}
        """Flow id → exchange of a replayed flow, which mitmproxy runs without our layer."""
        self.redirected: dict[str, tuple[str, int]] = {}
        """Server connection id → its own address, of the ones that a redirect sent elsewhere."""
        self._of_client: defaultdict[str, set[Exchange]] = defaultdict(set)
        self._proxy_users: dict[str, tuple[str, str]] = {}
        """Client connection id → user and password of its CONNECT."""
        self.annotator = Annotator(stories=runtime.stories, driver=runtime.driver, live=self.live)
        self._emptied = asyncio.Event()

    def upstream_of(self, request: http.Request) -> Upstream | None:
        """Where a request goes that was sent straight to the proxy's own port; None: nobody knows."""
        return self.settings.upstream or upstream_by_path(self.settings.profiles, request.path)

    def page(self, request: http.Request, client: Client, destination: tuple[str, int] | None) -> http.Response | None:
        """The answer to a request for one of the proxy's own pages; None: it is for somebody else."""
        return self.pages.answer(request, client, destination) if self.pages else None

    # Step 1: which requests ------------------------------------------------------------------------------------------

    def profile_for(self, flow: http.HTTPFlow) -> Profile | None:
        """The profile of a request that is a model call of ours; None: it passes by."""
        request = flow.request
        profile = self._profile_of(flow, request.path)
        if profile is None or not is_model_call(profile, request.method, request.path):
            return None
        return profile

    def _profile_of(self, flow: http.HTTPFlow, path: str) -> Profile | None:
        settings = self.settings
        host, port = destination(flow)
        profile = settings.profiles.match_host(host, port)
        if isinstance(flow.client_conn.proxy_mode, ReverseMode):
            if settings.reverse_profile:
                profile = settings.profiles.by_name[settings.reverse_profile]
            elif profile is None:
                profile = settings.profiles.for_path(path)
        elif profile is None and settings.upstream is not None and (host, port) == settings.upstream.address:
            profile = settings.profiles.for_path(path)
        return profile

    def upgrade_refusal(self, flow: http.HTTPFlow) -> http.Response | None:
        """What a WebSocket upgrade gets where its profile wants plain requests; None: it passes by."""
        request = flow.request
        if request.headers.get("upgrade", "").lower() != "websocket":
            return None
        profile = self._profile_of(flow, request.path)
        if profile is None or not profile.refuse_websocket or not is_model_call(profile, "POST", request.path):
            return None
        return make_upgrade_refusal(dialect_of(dialect_for(profile, request.path)))

    def is_foreign(self, context: Context, sni: str | None) -> bool:
        """Whether a client connection goes to a host of no profile: it is tunnelled, never intercepted."""
        if isinstance(context.client.proxy_mode, ReverseMode):
            return False
        if context.server.address is None:  # it goes nowhere yet: TLS to the proxy itself, of an https:// proxy URL
            return False
        host, port = context.server.address
        if normal_host(host) == PAGE_HOST:
            return False
        if self.settings.profiles.match_host(sni or host, port) is not None:
            return False
        name = normal_host(sni or host)
        if is_model_host(name):
            self._tell_unscheduled(name, context.client)
        return True

    def passes_by(self, flow: http.HTTPFlow) -> None:
        """A request is not scheduled: where it looks like a model call, a person should know."""
        request = flow.request
        path = request.path.partition("?")[0]
        if is_shaped_like_a_call(request.method, path):
            self._tell_unscheduled(normal_host(destination(flow)[0]), flow.client_conn, path)

    def _tell_unscheduled(self, host: str, client: Client, path: str = "") -> None:
        if host in self.unscheduled or len(self.unscheduled) >= _MOST_UNSCHEDULED:
            return
        self.unscheduled.add(host)
        what = f"calls to {host}{path} pass unscheduled, no profile claims them (first by {self.name_of(client)})"
        at = self.driver.clock.monotonic()
        self.driver.note(OddityNoted(at=at, pool=None, ticket_id=None, what=f"{what}; docs/profiles.md tells how"))

    def may_reach(self, client: Client, asked: tuple[str, int], reached: Sequence[object] | None = None) -> bool:
        """Whether a client may reach an address: this machine's loopback is not for clients elsewhere.

        `reached`: the address that a name has led to; None: that is not known yet.
        """
        there, port = str((reached or asked)[0]), asked[1]
        if is_loopback(client.peername[0]) or not is_on_loopback(there):
            return True
        upstream = self.settings.upstream
        told = (getattr(client.proxy_mode, "address", None), upstream and upstream.address)
        if port in self.settings.lan_ports or asked in told:
            return True  # the latter: where the proxy itself was told to go
        return any(self.settings.profiles.match_host(host, port) for host in (asked[0], there))

    def claims(self, flow: http.HTTPFlow) -> bool:
        """Whether the request is scheduled, judged from its head."""
        try:
            return self.profile_for(flow) is not None
        except Exception as error:  # noqa: BLE001 - the guard at the edge
            self.guard.trip("claims", error)
            return True  # the intake will decide, or let it pass by under the guard

    def take_own_headers(self, flow: http.HTTPFlow) -> None:
        """Remember and remove what talks to the proxy: `Proxy-Authorization` and `x-hivemind-*` never go upstream."""
        headers = flow.request.headers
        if credentials := headers.pop("proxy-authorization", None):
            self.learn_proxy_user(flow, credentials)
        own = {name: value for name, value in plain_headers(headers).items() if name.startswith(OWN_HEADERS)}
        for name in own:
            del headers[name]
        if word := own.get(DELIVERY_HEADER):
            flow.metadata[DELIVERY_KEY] = word  # with the flow, so that a replay is delivered in the same way
        if word := own.get(PRIORITY_HEADER):
            flow.metadata[PRIORITY_KEY] = word
        if word := own.get(TASK_HEADER):
            flow.metadata[TASK_KEY] = word

    def learn_proxy_user(self, flow: http.HTTPFlow, credentials: str) -> None:
        """Remember the user of a `Proxy-Authorization` for its client connection."""
        scheme, _, encoded = credentials.partition(" ")
        if scheme.lower() != "basic":
            return
        try:
            user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return
        self._proxy_users[flow.client_conn.id] = (user, password)

    def name_of(self, client: Client) -> str:
        """Who a client connection is, as far as its CONNECT says; for logs."""
        user = self._proxy_users.get(client.id, ("", ""))[0]
        return user if user and user.isprintable() else f"a client at {client.peername[0]}"

    def _proxy_user(self, flow: http.HTTPFlow) -> tuple[str, str]:
        known = flow.metadata.get("proxyauth") or self._proxy_users.get(flow.client_conn.id)
        return (str(known[0]), str(known[1])) if known else ("", "")

    # Step 2: the ticket ----------------------------------------------------------------------------------------------

    def intake(self, flow: http.HTTPFlow) -> Exchange | None:
        """Make the exchange of a complete request; None when another addon made it a request that is not ours."""
        try:
            profile = self.profile_for(flow)
            exchange = self._make(flow, profile) if profile else None
        except Exception as error:  # noqa: BLE001 - the guard at the edge
            exchange = self._bypass(flow)
            exchange.trip("intake", error)
        if exchange is not None:
            self.live[flow.id] = exchange
            with self.guarded("annotate"):
                self.annotator.begun()
            self._of_client[flow.client_conn.id].add(exchange)
        return exchange

    def _make(self, flow: http.HTTPFlow, profile: Profile) -> Exchange:
        request = flow.request
        now = self.driver.clock.monotonic()
        host, port = destination(flow)
        dialect = dialect_for(profile, request.path)
        facts = read_request(plain_body(request), dialect)
        if profile.model_paths:
            facts = replace(facts, model=model_of(profile, request.path, facts.model))
        user, password = self._proxy_user(flow)
        peer = _peer(flow.client_conn)
        headers = plain_headers(request.headers)
        who = identify(profile, headers, facts, user, peer)
        words = proxy_words(password)
        granted = self.settings.agents.rules(now).granted(who.agent)
        kind = call_kind(profile, headers, facts, request.path, has_parent=bool(who.parent_session))
        expected = self.runtime.estimator.expect(profile, facts, who.session)
        prints = fingerprints(facts, who.agent)
        prefix_tokens = round(expected.total_input_tokens * prints.prefix_bytes / max(1, facts.prompt_bytes))
        is_kept = prints.is_marked or not profile.cache_needs_marks
        is_shared = is_kept and prefix_tokens >= profile.cache.least_tokens
        price = profile.price_of(facts.model)
        told_s = words.patience_s or known_patience(headers, profile)
        patience_s = told_s or profile.patience.default_s
        # One that hears comments while it waits is not silent for as long as it waits.
        is_silent = told_s is None and not (profile.keep_alive_s and facts.stream)
        default_port = 443 if request.scheme == "https" else 80
        ticket = Ticket(
            id=secrets.token_hex(ID_BYTES),
            pool=PoolKey(
                host=normal_host(host) if port == default_port else f"{normal_host(host)}:{port}",
                account=self.driver.account_of(who.account),
                model_group=model_group(profile, facts.model),
            ),
            agent=who.agent,
            session=who.session,
            model=facts.model,
            demand=self.runtime.estimator.estimate(profile, facts, who.session),
            arrived_at=now,
            deadline_at=now + patience_s,
            shed_at=now + max(patience_s - profile.patience.margin_s, 0.9 * patience_s),
            priority=_priority(flow, words, granted.max_priority),
            kind=kind,
            parent_session=who.parent_session,
            prefix=prints.prefix if is_shared else "",
            prefix_tokens=min(prefix_tokens, expected.total_input_tokens) if is_shared else 0,
            cached_tokens=expected.cache_read_tokens,
            cold_tokens=expected.cache_read_tokens if profile.charge.input is InputCharge.UNCACHED else 0,
            streamed=facts.stream,
            request_hash=prints.whole,
            weight=granted.weight,
            max_fan_out=granted.max_fan_out,
            budgets=granted.budgets,
            price=price,
            expected=spend_of(expected, price),
            group=granted.group,
            task=given_id(str(flow.metadata.get(TASK_KEY, ""))) or given_id(words.task),
            client=clean(product(headers)) if is_silent else "",
            idempotency_key=given_id(headers.get(IDEMPOTENCY_HEADER, "")),
        )
        asked = _asked_delivery(flow, profile, words)
        delivery, whole_until_at = asked, ticket.shed_at
        if asked is Delivery.AUTO:
            delivery = Delivery.WHOLE if is_headless(profile, headers) else Delivery.STREAM
            whole_until_at = min(ticket.shed_at, now + profile.peek.whole_max_s)
        for oddity in facts.oddities:
            self.driver.note(OddityNoted(at=now, pool=ticket.pool, ticket_id=ticket.id, what=f"request: {oddity}"))
        return Exchange(
            flow=flow,
            ticket=ticket,
            profile=profile,
            dialect_name=dialect,
            facts=facts,
            delivery=delivery,
            whole_until_at=whole_until_at,
            driver=self.driver,
            guard=self.guard,
            estimator=self.runtime.estimator,
            first_bytes=self.runtime.first_bytes,
            plain_answers=self.runtime.plain_answers,
            agents_file=self.settings.agents.file,
            port=self.settings.port,
            on_end=self._ended,
            tape=self.files.recorder.begin(ticket) if self.files.recorder else None,
            keeper=self.files.keeper,
        )

    def _bypass(self, flow: http.HTTPFlow) -> Exchange:
        """An exchange for a request that could not be read: it goes on under its host's own plain semaphore.

        Made of defaults only: what reads and counts may be what is broken.
        """
        now = self.driver.clock.monotonic()
        profile = Profile()
        ticket = Ticket(
            id=secrets.token_hex(ID_BYTES),
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
            dialect_name=profile.dialect,
            facts=RequestFacts(),
            delivery=Delivery.STREAM,
            driver=self.driver,
            guard=self.guard,
            estimator=self.runtime.estimator,
            first_bytes=self.runtime.first_bytes,
            plain_answers=self.runtime.plain_answers,
            agents_file=self.settings.agents.file,
            port=self.settings.port,
            on_end=self._ended,
        )

    @contextmanager
    def guarded(self, where: str) -> Iterator[None]:
        """For the body of a hook: an exception of ours is a guard trip, and the hook has done nothing."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the guard at the edge
            self.guard.trip(where, error)

    def nudge(self, flow: Flow) -> None:
        """Somebody touched the flow: what is held looks whether it was ended or let go."""
        if exchange := self.live.get(flow.id):
            with self.guarded("update"):
                exchange.nudge()

    def end_attempt(self, attempt: Attempt, inject: Callable[[http.HTTPFlow], None]) -> None:
        """End a running attempt; `inject` tells its stream. ValueError: it has none."""
        ticket_id = attempt.ticket.id
        exchange = next((one for one in self.live.values() if one.ticket.id == ticket_id), None)
        if exchange is None:
            return
        if exchange.flow.id in self.replays:
            if exchange.flow.killable:
                exchange.flow.kill()  # mitmproxy's own layer runs it, and looks before its next hook
            exchange.client_gone()
            return
        try:
            inject(exchange.flow)
        except ValueError:  # the connection is gone already
            exchange.client_gone()

    # Ends ------------------------------------------------------------------------------------------------------------

    def _ended(self, exchange: Exchange) -> None:
        if exchange.tape and self.files.recorder:
            self.files.recorder.ended(exchange)
        self.live.pop(exchange.flow.id, None)
        with self.guarded("annotate"):
            self.annotator.ended(exchange)
        if not self.live:
            self._emptied.set()
        client_id = exchange.flow.client_conn.id
        mates = self._of_client.get(client_id)
        if mates is not None:
            mates.discard(exchange)
            if not mates:
                del self._of_client[client_id]

    async def drained(self) -> None:
        """Wait until no ticket is left."""
        while self.live:
            self._emptied.clear()
            await self._emptied.wait()

    async def flushed(self) -> None:
        """Let the last answers leave: they are written after their tickets ended."""
        loop = asyncio.get_running_loop()
        gone_out = asyncio.Event()
        loop.call_later(FLUSH_S, gone_out.set)
        await gone_out.wait()

    def client_disconnected(self, client: Client) -> None:
        """Some flows end with no hook of their own; none of a client that is gone may keep a slot."""
        self.places.give_back(client.id)
        self._proxy_users.pop(client.id, None)
        for exchange in list(self._of_client.get(client.id, ())):
            exchange.client_gone()
            exchange.finished()


def _asked_delivery(flow: http.HTTPFlow, profile: Profile, words: ProxyWords) -> Delivery:
    """The request's own word, else its agent's (in the proxy password), else the profile's."""
    word = str(flow.metadata.get(DELIVERY_KEY, "")).strip().lower()
    if word in {delivery.value for delivery in Delivery}:
        return Delivery(word)
    return words.delivery or profile.delivery


def _priority(flow: http.HTTPFlow, words: ProxyWords, highest: Priority) -> Priority:
    """The class that the request asks for, else its agent, else `normal`; never above what the agent may have."""
    asked = priority_of(str(flow.metadata.get(PRIORITY_KEY, "")))
    if asked is None:
        asked = words.priority
    return max(Priority.NORMAL if asked is None else asked, highest)


def _peer(client: Client) -> str:
    return f"{client.peername[0]}:{client.peername[1]}" if client.peername else "unknown"
