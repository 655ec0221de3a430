"""The mitmproxy addon: each hook is a few lines that call the proxy."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mitmproxy import contentviews, ctx, exceptions, http
from mitmproxy.proxy.layers import ClientTLSLayer, TCPLayer
from mitmproxy.utils import human

from hivemind_addon.formats.base.patterns import normal_host
from hivemind_addon.formats.profile import prices
from hivemind_addon.proxy.api.config_file import PREFIX
from hivemind_addon.proxy.gate.addresses import PAGE_HOST, hang_up, own_addresses
from hivemind_addon.proxy.gate.flow_readers import FlowReaders
from hivemind_addon.proxy.gate.interfaces.commands import Commands
from hivemind_addon.proxy.gate.interfaces.contentview import ExchangeView
from hivemind_addon.proxy.gate.interfaces.flow_list import widen_comments
from hivemind_addon.proxy.gate.interfaces.flow_view import ViewSync
from hivemind_addon.proxy.gate.listeners import (
    AllowedClients,
    call_off_listening,
    let_in_public,
    rebind,
    set_defaults,
    tell_listeners,
)
from hivemind_addon.proxy.gate.options import (
    LISTENER_OPTIONS,
    add_configured,
    add_options,
    check_deferred,
    check_listeners,
    read_settings,
)
from hivemind_addon.proxy.gate.proxy import Proxy, end_on_hangup
from hivemind_addon.proxy.gate.settings import BadOption
from hivemind_addon.proxy.host.http_layer import scheduling_layer
from hivemind_addon.proxy.host.large_reads import read_at_once
from hivemind_addon.proxy.host.patches import take_short_ways
from hivemind_addon.proxy.host.stream import EndAttempt, SocketWord
from hivemind_addon.proxy.run.compose import make_runtime
from hivemind_addon.proxy.system.memory import collect_rarely, reuse_freed_memory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from mitmproxy import flow as mflow
    from mitmproxy.addonmanager import Loader
    from mitmproxy.connection import Client
    from mitmproxy.proxy.layer import NextLayer
    from mitmproxy.proxy.server_hooks import ServerConnectionHookData
    from mitmproxy.tls import ClientHelloData, TlsData

    from hivemind_addon.formats.wire.tokenizer import Tokenizer
    from hivemind_addon.kernel.values.ticket import Attempt
    from hivemind_addon.proxy.gate.exchange import Exchange
    from hivemind_addon.proxy.gate.settings import Settings
    from hivemind_addon.proxy.system.descriptors import ConnectionPlaces

logger = logging.getLogger("hivemind")

TLS_RECORD = b"\x16\x03"
"""The first bytes of a TLS handshake."""
_VERBOSITIES = {"termlog_verbosity", "console_eventlog_verbosity"}
"""mitmproxy's options for the log level that a person sees."""
_NOT_FOR_LAN = "clients elsewhere do not reach this machine's own services: hivemind_lan_ports=PORT allows one"
ADOPTABLE = "hivemind_proxy"
"""The attribute of mitmproxy's master in which a reloaded script finds the running proxy."""


class Replays:
    """Schedules replayed flows in the ordinary hooks, because replays run on mitmproxy's own layer, not on ours.

    A separate addon that has hooks only while flows are replayed: mitmproxy starts a task per flow for an async hook,
    about 20 µs of each request (2026-11).
    """

    name = "hivemind_replays"

    def __init__(self) -> None:
        self.proxy: Proxy | None = None
        self._flows: set[str] = set()
        """Ids of the flows in replay."""

    def hear(self, flow: http.HTTPFlow) -> None:
        """Add the hooks for a flow in replay."""
        self._flows.add(flow.id)
        self.request = self._asked
        self.response = self._answered
        self.error = self._failed

    async def _asked(self, flow: http.HTTPFlow) -> None:
        """Hold a replayed request until admission."""
        if self.proxy is None or flow.is_replay != "request" or flow.response:
            return
        exchange = self.proxy.make_exchange(flow)
        if exchange is None:
            return
        self.proxy.replays[flow.id] = exchange
        if not exchange.enter():
            await exchange.hold()
        exchange.sent()
        flow.response = exchange.refusal

    def _answered(self, flow: http.HTTPFlow) -> None:
        """Settle a replay's attempt, without a retry."""
        exchange = self.proxy.replays.get(flow.id) if self.proxy else None
        if exchange and flow.response and not exchange.over:
            exchange.head(flow.response)
            exchange.collected(flow.response, flow.response.raw_content or b"")
        self._failed(flow)

    def _failed(self, flow: http.HTTPFlow) -> None:
        """End a replay."""
        if self.proxy is None:
            return
        if exchange := self.proxy.replays.pop(flow.id, None):
            exchange.finished()
        self._flows.discard(flow.id)  # the hooks of other flows get here, too, even before a replay's request
        if not self._flows and hasattr(self, "request"):
            del self.request, self.response, self.error


class Hivemind:
    """The addon that schedules the model calls of all agents behind this proxy."""

    name = "hivemind"

    def __init__(self) -> None:
        self.proxy: Proxy | None = None
        self.commands = Commands()
        self.replays = Replays()
        self.addons = [self.commands, self.replays]
        """mitmproxy registers these addons, too."""
        self._allowed = AllowedClients()
        self._live = False
        self._holding = 0
        """Number of streams that wait in `hivemind_hold`."""
        self._loading: asyncio.Future[None] | None = None
        self._loading_prices: asyncio.Future[None] | None = None
        self._rebinding: asyncio.Future[None] | None = None
        self._telling: asyncio.Future[None] | None = None
        self._view: ViewSync | None = None
        """None in mitmdump, which has no view."""
        self._readers: FlowReaders | None = None
        """Set by `running`."""
        self._crowded = False
        """Whether clients had to wait for a connection; logged once."""
        self._said: dict[str, str] = {}
        """Option from the environment or a file → its source, for error messages."""

    # Start and end ---------------------------------------------------------------------------------------------------

    def load(self, loader: Loader) -> None:
        """Declare the options, and check the values that were set before the addon was loaded."""
        try:
            self._said = add_configured(ctx.options, os.environ, Path.cwd())
        except BadOption as error:
            self._refuse(error)
        add_options(loader)
        try:
            while True:
                try:
                    check_deferred(ctx.options.deferred)
                except BadOption as error:
                    self._refuse(error)
                else:
                    break
        finally:
            if set_defaults():
                call_off_listening()
                self._rebinding = asyncio.ensure_future(rebind())

    async def client_connected(self, client: Client) -> None:
        """Refuse clients outside the allowed networks; let clients wait while too many files are open."""
        networks = self.proxy.settings.current.allow_clients if self.proxy else ()
        if not self._allowed.have(client, networks):
            client.error = "hivemind: not for clients from there"
        elif self.proxy:
            await self._find_place(client, self.proxy.places)
            read_at_once(ctx.master.addons.get("proxyserver").connections.get(client.id), client)

    async def _find_place(self, client: Client, places: ConnectionPlaces) -> None:
        connections = ctx.master.addons.get("proxyserver").connections
        if places.are_full:
            places.keep(connections)
        if not places.are_full:
            places.give(client.id)
            return
        if not self._crowded:
            self._crowded = True
            logger.warning(
                "hivemind: %s clients are connected, as many as %s open files let; more of them wait (`ulimit -n`)",
                places.most,
                places.limit,
            )
        if not await places.wait(client.id):
            client.error = "hivemind: too many connections for the limit of open files"
        elif (handler := connections.get(client.id)) and handler.transports[client].reader.at_eof():
            # mitmproxy does not expect this, and would end without a message.
            client.error = "hivemind: the client has gone while it waited"
            places.give_back(client.id)

    def configure(self, updated: set[str]) -> None:
        """Read and check the options. A bad option ends mitmproxy at the start, and is rolled back later."""
        if updated & _VERBOSITIES:
            # mitmproxy's root logger takes every level, and calls a hook of all addons for each line.
            wanted = {getattr(ctx.options, name, None) for name in _VERBOSITIES}
            logger.setLevel(logging.DEBUG if "debug" in wanted else logging.INFO)
            if self.proxy:
                self.proxy.driver.ask_observers()  # at DEBUG, the log contains every event
        if self._readers is not None:
            self._readers.look_again()
        try:
            if updated & LISTENER_OPTIONS:
                check_listeners(ctx.options)
            if any(name.startswith(PREFIX) for name in updated):
                settings = read_settings(ctx.options)
                self._apply(settings)
                let_in_public(settings.allow_clients)
            if self._live and self.proxy and "hivemind_control" in updated:
                self.proxy.control.open_soon(self._rebinding)
        except BadOption as error:
            self._refuse(error)

    def _refuse(self, error: BadOption) -> None:
        name, colon, problem = str(error).partition(":")
        if name in self._said and not self._live:
            error = BadOption(f"{self._said[name]}{colon}{problem}")
        if self._live:
            logger.warning("hivemind: %s; what was set before stays", error)  # mitmweb shows only a red frame
            raise exceptions.OptionsError(str(error))
        # mitmproxy ends with exit status 1 if an error is logged during the start.
        logger.error("hivemind: %s", error)

    def _apply(self, settings: Settings) -> None:
        """Start the proxy with these settings, or change the settings of the running proxy."""
        running = self.proxy or getattr(ctx.master, ADOPTABLE, None)
        if running is not None and running.settings.current.cluster != settings.cluster:
            raise BadOption("hivemind_cluster cannot be changed while the proxy runs; give it at the start")
        self.proxy = running or _make_proxy(settings)
        self.commands.proxy = self.replays.proxy = self.proxy
        self.proxy.driver.end_attempt = self._end_attempt
        self.proxy.driver.call_off = partial(self._end_attempt, called_off=True)
        self.proxy.wake_layer = self._wake_layer
        self.proxy.follow(settings)

    def _end_attempt(self, attempt: Attempt, *, called_off: bool = False) -> None:
        """Let the stream end an attempt: the client sent the request again, or a person cancelled the ticket."""
        proxyserver = ctx.master.addons.get("proxyserver")
        if self.proxy:
            with self.proxy.guarded("end_attempt"):
                self.proxy.end_attempt(
                    attempt,
                    lambda flow: proxyserver.inject_event(EndAttempt(flow, called_off=called_off)),
                    called_off=called_off,
                )

    def _wake_layer(self, flow: http.HTTPFlow) -> None:
        """Let a WebSocket's layer write the waiting messages; does nothing if the client has left."""
        with suppress(ValueError):
            ctx.master.addons.get("proxyserver").inject_event(SocketWord(flow))

    def running(self) -> Awaitable[object] | None:
        """Start: from now on, bad options are rolled back, and mitmweb's Abort and Resume work.

        Returns a future for mitmproxy to wait for: a port that cannot be bound must end mitmproxy.
        """
        self._live = True
        end_on_hangup(ctx.master.shutdown)
        self._begin()
        return asyncio.wait([self._rebinding]) if self._rebinding is not None else None

    def _begin(self) -> None:
        contentviews.add(ExchangeView())
        if self.proxy is None:
            return
        if self.proxy.membership is not None:
            self.proxy.membership.start(self.proxy.answer_history)
        self.proxy.hooks.take_over(ctx.master.addons)
        self.proxy.runtime.tokenizer.wanted = partial(self._load_soon, self.proxy.runtime.tokenizer)
        self._loading_prices = asyncio.ensure_future(asyncio.to_thread(prices.load))  # the first call needs them
        self._telling = asyncio.ensure_future(tell_listeners(self._rebinding))
        self.proxy.control.open_soon(self._rebinding)
        self.proxy.annotator.is_read = self._readers = FlowReaders(ctx.master)
        if (view := ctx.master.addons.get("view")) is not None:  # an empty view is false
            self._view = ViewSync(view, self.proxy)
            widen_comments()

    def _load_soon(self, tokenizer: Tokenizer) -> None:
        self._loading = asyncio.ensure_future(self._load(tokenizer))

    async def _load(self, tokenizer: Tokenizer) -> None:
        """Load the tokenizer in a thread, because loading takes a third of a second."""
        problem = await asyncio.to_thread(tokenizer.load)
        if problem:
            logger.warning("hivemind: %s", problem)

    def done(self) -> Awaitable[None] | None:
        """At shutdown, drain the proxy. At a reload, give the hooks back; the next object adopts the running proxy."""
        if self._view is not None:
            self._view.stop()
        if self.proxy is None:
            return None
        if not ctx.master.should_exit.is_set():
            self.proxy.hooks.give_back()
            return None
        return self.proxy.drain()

    # Connections -----------------------------------------------------------------------------------------------------

    def tls_clienthello(self, data: ClientHelloData) -> None:
        """Do not intercept hosts that no profile names."""
        if self.proxy:
            with self.proxy.guarded("tls_clienthello"):
                data.ignore_connection = self.proxy.is_foreign(data.context, data.client_hello.sni)

    def tls_failed_client(self, data: TlsData) -> None:
        """Report once per client how to make the client trust our certificate."""
        if self.proxy is None or "trust" not in (data.conn.error or ""):
            return
        with self.proxy.guarded("tls_failed_client"):
            self.proxy.distrusted(data.context.client)

    def next_layer(self, nextlayer: NextLayer) -> None:
        """Replace mitmproxy's HTTP layer by ours."""
        builtin = ctx.master.addons.get("nextlayer")
        if self.proxy is None or builtin is None:
            return
        with self.proxy.guarded("next_layer"):
            context = nextlayer.context
            is_tls = nextlayer.data_client().startswith(TLS_RECORD) or isinstance(context.layers[-1], ClientTLSLayer)
            # tls_clienthello decides on TLS. Without TLS, the client's SNI can only belong to TLS to the proxy itself.
            if context.server.address and not is_tls and self.proxy.is_foreign(context, None):
                nextlayer.layer = TCPLayer(context, ignore=True)
        builtin.next_layer(nextlayer)
        with self.proxy.guarded("next_layer"):
            nextlayer.layer = scheduling_layer(nextlayer.layer, self.proxy)

    def server_connect(self, data: ServerConnectionHookData) -> None:
        """Redirect a profile's host; SNI, certificate check and Host keep the name. Refuse forbidden targets."""
        address = data.server.address
        if self.proxy is None or address is None:
            return
        with self.proxy.guarded("server_connect"):
            target = self.proxy.settings.current.redirects.get(address[0].lower().rstrip("."))
            if target:
                self.proxy.redirected[data.server.id] = (address[0], address[1])
                data.server.address = target
            goes_to = target or address
            if normal_host(address[0]) == PAGE_HOST:
                data.server.error = f"{PAGE_HOST} is this proxy: ask it for http://{PAGE_HOST}/"
            elif own_addresses().are_asked(goes_to):
                data.server.error = "nothing that listens in the proxy itself is reached through it"
            elif target is None and not self.proxy.claims.may_reach(data.client, address):
                data.server.error = _NOT_FOR_LAN

    def server_connected(self, data: ServerConnectionHookData) -> None:
        """Close connections to this process or to forbidden targets, before anything is sent."""
        if self.proxy is None or data.server.peername is None:
            return
        with self.proxy.guarded("server_connected"):
            read_at_once(ctx.master.addons.get("proxyserver").connections.get(data.client.id), data.server)
            if own_addresses().are_reached(data.server.peername, data.server.sockname):
                logger.warning(
                    "hivemind: %s asked for %s, which is the proxy itself: closed",
                    self.proxy.intake.name_of(data.client),
                    human.format_address(data.server.address),
                )
                hang_up(ctx.master.addons.get("proxyserver"), data, "this is the proxy itself")
            elif (
                data.server.address
                and data.server.id not in self.proxy.redirected
                and not self.proxy.claims.may_reach(data.client, data.server.address, data.server.peername)
            ):
                hang_up(ctx.master.addons.get("proxyserver"), data, _NOT_FOR_LAN)

    def server_disconnected(self, data: ServerConnectionHookData) -> None:
        """Forget the original address of a redirected connection."""
        if self.proxy:
            self.proxy.redirected.pop(data.server.id, None)

    server_connect_error = server_disconnected

    def http_connect(self, flow: http.HTTPFlow) -> None:
        """Authenticate the client, or learn the agent from the user of the proxy URL."""
        if self.proxy is None:
            return
        if self.proxy.intake.authentication.is_on:
            flow.response = self.proxy.intake.authentication.refuse(flow) or flow.response
        elif credentials := flow.request.headers.get("proxy-authorization"):
            with self.proxy.guarded("http_connect"):
                self.proxy.intake.learn_proxy_user(flow, credentials)

    def client_disconnected(self, client: Client) -> None:
        """End all tickets of the connection."""
        if self.proxy:
            with self.proxy.guarded("client_disconnected"):
                self.proxy.client_disconnected(client)

    # Requests --------------------------------------------------------------------------------------------------------

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        """Step 1: buffer a scheduled request, so that it can be retried; stream anything else both ways."""
        if self.proxy is None:
            return
        authentication = self.proxy.intake.authentication
        if authentication.is_on and (refusal := authentication.refuse(flow)):
            flow.response, flow.request.stream = refusal, False
            return
        with self.proxy.guarded("requestheaders"):
            self.proxy.intake.take_own_headers(flow)
            if refusal := self.proxy.upgrade_refusal(flow):
                flow.response = refusal
        is_ours = self.proxy.is_ours(flow)
        flow.request.stream = not is_ours or self.proxy.passes_body(flow)
        if not is_ours:
            with self.proxy.guarded("pass_by"):
                self.proxy.pass_by(flow)
        if self._view is not None and flow.live:
            self._view.came(flow)
        if flow.is_replay == "request" and not flow.request.stream:
            self.replays.hear(flow)

    async def hivemind_hold(self, exchange: Exchange) -> None:
        """Wait for admission; the stream calls this hook of ours."""
        self._holding += 1
        self._show(exchange)
        try:
            await exchange.hold()
        finally:
            self._holding -= 1
            self._show(exchange)

    def _show(self, exchange: Exchange) -> None:
        """Let interfaces redraw a flow. The `update` hook exists only while streams wait, because hooks cost time."""
        if self._holding:
            self.update = self._flows_touched
        elif hasattr(self, "update"):
            del self.update
        if self.proxy:
            with self.proxy.guarded("annotate"):
                self.proxy.annotator.show(exchange)

    def _flows_touched(self, flows: Sequence[mflow.Flow]) -> None:
        """Check flows that an interface changed: a person may have pressed Abort or Resume."""
        if self.proxy:
            for flow in flows:
                self.proxy.nudge(flow)


def _make_proxy(settings: Settings) -> Proxy:
    """Make the proxy, once per process."""
    runtime = make_runtime(cluster=settings.cluster, port=settings.port)
    proxy = Proxy(runtime=runtime, settings=settings)
    setattr(ctx.master, ADOPTABLE, proxy)
    take_short_ways(ctx.options)
    collect_rarely()
    reuse_freed_memory()
    return proxy
