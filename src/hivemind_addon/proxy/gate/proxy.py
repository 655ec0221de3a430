"""The process-wide state: the requests that have not ended, and all objects that serve them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from mitmproxy import ctx

from hivemind_addon import __version__
from hivemind_addon.formats.base.patterns import normal_host
from hivemind_addon.formats.profile.unclaimed_calls import is_model_host, is_shaped_like_a_call, is_vendor_host
from hivemind_addon.kernel.values.events import OddityNoted
from hivemind_addon.kernel.values.snapshot import SCHEMA_VERSION
from hivemind_addon.proxy.api.report import QUEUED_TOLD, VENDORS_OWN, ProxyView, Report
from hivemind_addon.proxy.api.report_source import ReportSource
from hivemind_addon.proxy.api.trust import cure_of_distrust
from hivemind_addon.proxy.gate.addresses import listens, web_page
from hivemind_addon.proxy.gate.claims import Claims
from hivemind_addon.proxy.gate.intake import Intake
from hivemind_addon.proxy.gate.interfaces.annotation import Annotator
from hivemind_addon.proxy.gate.interfaces.control_socket import ControlSocket
from hivemind_addon.proxy.gate.interfaces.page_history import Past
from hivemind_addon.proxy.gate.interfaces.pages import Pages
from hivemind_addon.proxy.gate.interfaces.steering_page import PageSteering
from hivemind_addon.proxy.gate.jobs import JobWatch
from hivemind_addon.proxy.gate.settings import LiveSettings
from hivemind_addon.proxy.gate.websocket import ScheduledSocket
from hivemind_addon.proxy.gate.written_files import Files
from hivemind_addon.proxy.host.flow_parts import destination
from hivemind_addon.proxy.host.hooks import Hooks
from hivemind_addon.proxy.host.large_reads import hold_reading
from hivemind_addon.proxy.journal.questions import ask_for_page, ask_journal
from hivemind_addon.proxy.page.sessions import PageSessions
from hivemind_addon.proxy.record.news import NOTICE
from hivemind_addon.proxy.run.guard import GuardedBlock
from hivemind_addon.proxy.system.descriptors import ConnectionPlaces, raise_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from mitmproxy import http
    from mitmproxy.connection import Client
    from mitmproxy.flow import Flow
    from mitmproxy.proxy.commands import StartHook
    from mitmproxy.proxy.context import Context

    from hivemind_addon.formats.profile.model import Profile
    from hivemind_addon.kernel.values.ticket import Attempt
    from hivemind_addon.proxy.gate.exchange import Exchange
    from hivemind_addon.proxy.gate.settings import Settings
    from hivemind_addon.proxy.host.port import TakesBody
    from hivemind_addon.proxy.host.turns import Turn
    from hivemind_addon.proxy.run.compose import Runtime

logger = logging.getLogger("hivemind")

_MOST_TOLD = 100
FLUSH_S = 0.2
"""Time in which the last answers leave their sockets when the proxy stops."""
DRAIN_S = 30
"""Time that running streams get after SIGTERM or Ctrl-C."""


class Proxy:
    """Lives as long as the process; a reloaded script adopts the object. Implements `host.port.Port`."""

    def __init__(self, *, runtime: Runtime, settings: Settings) -> None:
        self.runtime = runtime
        self.driver = runtime.driver
        self.guard = runtime.guard
        self.membership = membership = runtime.membership
        self.began_wall = runtime.driver.clock.wall()
        self.settings = LiveSettings(settings, runtime.driver)
        self.claims = Claims(self.settings)
        self.files = Files(runtime.driver)
        """The files that the proxy writes: the journal, and captures."""
        self.intake = Intake(runtime=runtime, settings=self.settings, files=self.files, on_end=self._ended)
        self.jobs = JobWatch(driver=runtime.driver, intake=self.intake, settings=self.settings, guarded=self.guarded)
        self.hooks = Hooks()
        self.places = ConnectionPlaces(raise_limit())
        """Places for client connections."""
        self.live: dict[str, Exchange] = {}
        """Flow id → exchange whose ticket has not ended."""
        self.replays: dict[str, Exchange] = {}
        """Flow id → exchange of a replayed flow, which mitmproxy runs without our layer."""
        self.redirected: dict[str, tuple[str, int]] = {}
        """Server connection id → original address of a connection that was redirected."""
        self.wake_layer: Callable[[http.HTTPFlow], None] = lambda flow: None  # noqa: ARG005 - the addon sets it
        """Lets the layer of a WebSocket write waiting messages."""
        self.unscheduled: set[str] = set()
        """Model hosts whose calls bypassed the scheduler. Each entry here and below is reported once."""
        self.vendors: set[str] = set()
        """Hosts of vendors that were tunnelled."""
        self.distrusting: dict[str, str] = {}
        """Client that did not trust our certificate → the host of the connection."""
        self.sockets: dict[str, str] = {}
        """Agent that opened a WebSocket for model calls outside the scheduler → host."""
        self.refused_sockets: dict[str, str] = {}
        """Agent whose WebSocket was refused and that sends plain requests now → host."""
        self._of_client: defaultdict[str, set[Exchange]] = defaultdict(set)
        self._turns: dict[str, Turn] = {}
        """Flow id → turn of a WebSocket that has not ended."""
        self._emptied = asyncio.Event()
        self.annotator = Annotator(histories=runtime.histories, driver=runtime.driver, live=self.live)
        self._annotating = self.guarded("annotate")
        self._listens: list[tuple[str, int]] = []
        """The last known listening addresses. Requests for a report have come to one of them."""
        reports = ReportSource(
            self.report_in_parts, runtime.driver.clock.monotonic, prepare=membership.refresh if membership else None
        )
        sessions = PageSessions()
        self.control = ControlSocket(
            settings=self.settings,
            files=self.files,
            driver=runtime.driver,
            reports=reports,
            sessions=sessions,
            membership=membership,
        )
        """Programs read reports and send commands here."""
        self.past = Past(ask=self._ask_for_page, clock=runtime.driver.clock)
        self.pages = Pages(
            reports=reports,
            metrics=runtime.metrics,
            driver=runtime.driver,
            membership=membership,
            guard=runtime.guard,
            authentication=self.intake.authentication,
            is_stopping=lambda: ctx.master.should_exit.is_set(),  # noqa: PLW0108 - there is no master yet
            is_configured=lambda host, port: self.settings.current.is_called(host, port),  # noqa: PLW0108 - they change
            may_look=lambda host: self.settings.current.may_look(host),  # noqa: PLW0108 - they change
            upstream_of=self.claims.upstream_of,
            steering=PageSteering(
                sessions=sessions,
                command=self.control.carry_out,
                now=runtime.driver.clock.monotonic,
                changed=reports.outdate,
            ),
            past=self.past,
        )
        """People read reports here, with a browser."""

    def follow(self, settings: Settings) -> None:
        """Apply new settings. Raises BadOption."""
        self.settings.follow(settings)
        self.intake.authentication.secrets = settings.secrets
        self.runtime.contexts.warn_at = settings.context_warning
        self.runtime.agent_use.most = settings.metrics_agents
        self.runtime.sinks.follow(log=settings.event_log, notify=settings.notify)
        recorder = self.files.recorder
        self.files.follow(settings)
        if self.files.recorder is not None and self.files.recorder is not recorder:
            for exchange in self.live.values():  # the rest of what has begun
                if not exchange.profile.is_plain:
                    exchange.tape = self.files.recorder.begin(exchange.ticket)

    async def answer_history(self, question: str) -> str:
        """The journal's answer to a question of another proxy of the cluster."""
        return await ask_journal(self.settings.current.journal, question)

    async def _ask_for_page(self, question: str) -> str:
        return await ask_for_page(self.settings.current.journal, question)

    # Requests --------------------------------------------------------------------------------------------------------

    def page(
        self, request: http.Request, client: Client, destination: tuple[str, int] | None
    ) -> http.Response | TakesBody | None:
        """The answer to a request for one of the proxy's own pages; None: the request is for another host."""
        return self.pages.answer(request, client, destination)

    def is_ours(self, flow: http.HTTPFlow) -> bool:
        """Whether the request is scheduled, judged from the head."""
        try:
            return self.claims.profile_for(flow) is not None
        except Exception as error:  # noqa: BLE001 - the guard at the edge
            self.guard.trip("claims", error)
            return True  # the gate decides, or lets the request pass under the guard

    def passes_body(self, flow: http.HTTPFlow) -> bool:
        """Whether the body of a scheduled request is passed on as received."""
        with self.guarded("passes_body"):
            return self.claims.passes_body(flow)
        return False

    def hold_reading(self, client: Client, *, held: bool) -> None:
        """Stop or resume reading from a client whose request body waits here."""
        with self.guarded("hold_reading"):
            hold_reading(ctx.master.addons.get("proxyserver").connections.get(client.id), client, held=held)

    def make_exchange(self, flow: http.HTTPFlow) -> Exchange | None:
        """The exchange of a complete request; None: too old, or changed by another addon and claimed by no profile."""

        def make() -> Exchange | None:
            profile = self.claims.profile_for(flow)
            return self.intake.make(flow, profile) if profile and not self.intake.is_lapsed(flow, profile) else None

        return self._enrol(flow, make)

    def _enrol[E: (Exchange, Exchange | None)](self, flow: http.HTTPFlow, make: Callable[[], E]) -> E | Exchange:
        """Register the new exchange. If `make` fails, the exchange goes on unread."""
        exchange: E | Exchange
        try:
            exchange = make()
        except Exception as error:  # noqa: BLE001 - the guard at the edge
            exchange = unread = self.intake.make_unread(flow)
            unread.trip("intake", error)
        if exchange is not None:
            self.live[flow.id] = exchange
            with self._annotating:
                self.annotator.begun()
            self._of_client[flow.client_conn.id].add(exchange)
        return exchange

    def make_socket(self, flow: http.HTTPFlow) -> ScheduledSocket | None:
        """The scheduler of the turns of a WebSocket; None: the WebSocket is a tunnel."""
        with self.guarded("make_socket"):
            profile = self.claims.profile_of_turns(flow)
            return ScheduledSocket(flow, profile, self) if profile else None
        return None

    def make_turn(self, flow: http.HTTPFlow, profile: Profile, turn: Turn) -> Exchange:
        """The exchange of a turn of a WebSocket; the flow is the plain request of the turn."""
        self._turns[flow.id] = turn
        return self._enrol(flow, lambda: self.intake.make(flow, profile, is_turn=True))

    def forget_turn(self, exchange: Exchange) -> None:
        """Drop a turn that is over."""
        self._turns.pop(exchange.flow.id, None)

    def call_hook(self, hook: StartHook) -> StartHook | None:
        """Call the addons that listen to a hook of a flow. None: done; else the hook for the layer to wait for."""
        try:
            return self.hooks.call(hook)
        except Exception as error:  # noqa: BLE001 - the guard at the edge
            self.guard.trip("hooks", error)
            return hook  # mitmproxy calls them

    def pass_by(self, flow: http.HTTPFlow) -> None:
        """Let a request pass unscheduled; report a request that looks like a model call."""
        request = flow.request
        path = request.path.partition("?")[0]
        if (profile := self.claims.profile_of(flow)) is not None and profile.jobs:
            self.jobs.came(flow, profile)
        if is_shaped_like_a_call(request.method, path):
            self._tell_unscheduled(normal_host(destination(flow)[0]), flow.client_conn, path)
        elif flow.response is None and self.claims.is_loose_socket(flow):
            self._tell_socket(normal_host(destination(flow)[0]), flow.client_conn)

    def tap(self, flow: http.HTTPFlow, response: http.Response) -> bool | Callable[[bytes], bytes]:
        """What sees each piece of an answer that passes by; True: nothing does."""
        return self.jobs.tap(flow, response)

    def upgrade_refusal(self, flow: http.HTTPFlow) -> http.Response | None:
        """The answer to a refused WebSocket upgrade; None: the upgrade goes on."""
        refusal = self.claims.upgrade_refusal(flow)
        if refusal is not None and len(self.refused_sockets) < _MOST_TOLD:
            self.refused_sockets[self.intake.name_of(flow.client_conn)] = normal_host(destination(flow)[0])
        return refusal

    def is_foreign(self, context: Context, sni: str | None) -> bool:
        """Whether to tunnel a client connection; connections to model hosts and vendors are reported."""
        host = self.claims.foreign_host(context, sni)
        if host is not None and is_model_host(host):
            self._tell_unscheduled(host, context.client)
        elif host is not None and is_vendor_host(host):
            self._tell_vendor(host, context.client)
        return host is not None

    def distrusted(self, client: Client) -> None:
        """A client refuses our certificate: log the way to make the client trust us."""
        who = self.intake.name_of(client)
        if who in self.distrusting or len(self.distrusting) >= _MOST_TOLD:
            return
        self.distrusting[who] = client.sni or "its provider"
        logger.warning("hivemind: %s: %s", who, cure_of_distrust(self.distrusting[who], Path(ctx.options.confdir)))

    def _tell_unscheduled(self, host: str, client: Client, path: str = "") -> None:
        if host in self.unscheduled or len(self.unscheduled) >= _MOST_TOLD:
            return
        self.unscheduled.add(host)
        who = self.intake.name_of(client)
        what = f"calls to {host}{path} pass unscheduled, no profile claims them (first by {who})"
        at = self.driver.clock.monotonic()
        self.driver.note(OddityNoted(at=at, pool=None, ticket_id=None, what=f"{what}; docs/profiles.md tells how"))

    def _tell_socket(self, host: str, client: Client) -> None:
        who = self.intake.name_of(client)
        if who in self.sockets or len(self.sockets) >= _MOST_TOLD:
            return
        self.sockets[who] = host
        what = f"a WebSocket of {who} to {host} passes unscheduled, with all that is said there"
        at = self.driver.clock.monotonic()
        self.driver.note(OddityNoted(at=at, pool=None, ticket_id=None, what=f"{what}; docs/profiles.md tells how"))

    def _tell_vendor(self, host: str, client: Client) -> None:
        if host in self.vendors or len(self.vendors) >= _MOST_TOLD:
            return
        self.vendors.add(host)
        logger.log(
            NOTICE,
            "hivemind: calls to %s are tunnelled (first by %s), %s",
            host,
            self.intake.name_of(client),
            VENDORS_OWN,
        )

    def guarded(self, where: str) -> GuardedBlock:
        """Guard the body of a hook: our exception becomes a guard trip, and the hook does nothing."""
        return GuardedBlock(self.guard, where)

    def nudge(self, flow: Flow) -> None:
        """A person or an addon changed the flow: a held exchange checks whether the flow was ended or released."""
        if exchange := self.live.get(flow.id):
            with self.guarded("update"):
                exchange.nudge()

    def end_attempt(
        self, attempt: Attempt, inject: Callable[[http.HTTPFlow], None], *, called_off: bool = False
    ) -> None:
        """End a running attempt; `inject` signals the stream, and raises ValueError if there is no stream.

        `called_off`: a person cancelled the attempt.
        """
        ticket_id = attempt.ticket.id
        exchange = next((one for one in self.live.values() if one.ticket.id == ticket_id), None)
        if exchange is None:
            return
        if exchange.flow.id in self.replays:
            if exchange.flow.killable:
                exchange.flow.kill()  # mitmproxy's own layer runs the flow, and checks before the next hook
            exchange.client_gone()
            return
        try:
            if turn := self._turns.get(exchange.flow.id):
                turn.end_attempt(called_off=called_off)
            else:
                inject(exchange.flow)
        except ValueError:  # the connection is gone already
            exchange.client_gone()

    # Ends ------------------------------------------------------------------------------------------------------------

    def _ended(self, exchange: Exchange) -> None:
        if exchange.tape and self.files.recorder:
            self.files.recorder.ended(exchange.flow, exchange.ticket, exchange.served, exchange.refusal)
        self.live.pop(exchange.flow.id, None)
        with self._annotating:
            self.annotator.ended(exchange)
        if not self.live:
            self._emptied.set()
        client_id = exchange.flow.client_conn.id
        mates = self._of_client.get(client_id)
        if mates is not None:
            mates.discard(exchange)
            if not mates:
                del self._of_client[client_id]

    def client_disconnected(self, client: Client) -> None:
        """End all flows of a client that is gone. Some flows end with no hook of their own and would keep a slot."""
        self.places.give_back(client.id)
        self.intake.forget(client)
        for exchange in list(self._of_client.get(client.id, ())):
            exchange.client_gone()
            exchange.finished()

    async def drain(self) -> None:
        """Refuse held flows at once with the advice to return; running streams have 30 s; a second signal ends them."""
        second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, second.set)
        self.driver.close()
        self.settings.stop()
        if self.live:
            logger.log(NOTICE, "hivemind: stopping; %d requests may finish within %d s", len(self.live), DRAIN_S)
        waits = [asyncio.ensure_future(self.drained()), asyncio.ensure_future(second.wait())]
        done, pending = await asyncio.wait(waits, timeout=DRAIN_S, return_when=asyncio.FIRST_COMPLETED)
        for wait in pending:
            wait.cancel()
        if waits[0] in done:
            await self.flushed()
        if self.membership is not None:
            await self.membership.close()
        await self.past.close()
        await self.files.close()
        await self.runtime.sinks.close()
        self.control.close()

    async def drained(self) -> None:
        """Wait until no ticket is left."""
        while self.live:
            self._emptied.clear()
            await self._emptied.wait()

    async def flushed(self) -> None:
        """Let the last answers leave: they are written after their tickets ended."""
        gone_out = asyncio.Event()
        asyncio.get_running_loop().call_later(FLUSH_S, gone_out.set)
        await gone_out.wait()

    # Reports ---------------------------------------------------------------------------------------------------------

    def report_in_parts(self) -> Generator[None, None, Report]:
        """Make the whole report, in steps; other tasks may run in between."""
        self._listens = listens() or self._listens
        claims, clock = self.settings.current.profiles.claims.values(), self.driver.clock
        cluster = self.settings.current.cluster
        snapshot = yield from self.driver.snapshot_in_parts(most_queued=QUEUED_TOLD)
        yield
        view = ProxyView(
            pid=os.getpid(),
            port=self._listens[0][1],
            listens=tuple(f"{host}:{port}" for host, port in self._listens),
            confdir=str(Path(ctx.options.confdir).expanduser()),
            hosts=tuple(sorted({host for claim in claims for host in claim.hosts})),
            version=__version__,
            began_wall=self.began_wall,
            web=web_page(),
            open_files=self.places.limit,
            waiting_clients=self.places.waiting,
            unscheduled=tuple(sorted(self.unscheduled)),
            vendors=tuple(sorted(self.vendors)),
            distrusting=tuple(sorted(self.distrusting.items())),
            sockets=tuple(sorted(self.sockets.items())),
            refused_sockets=tuple(sorted(self.refused_sockets.items())),
            cluster=cluster.name if cluster else "",
            engine=cluster.address.shown if cluster else "",
            engine_has_password=bool(cluster and cluster.address.password),
            tool_hosts=tuple(sorted({host for claim in claims if claim.is_plain for host in claim.hosts})),
            sharing=tuple((str(pool.key), pool.sharing) for pool in snapshot.pools if pool.sharing),
            key_variables=self.settings.current.profiles.key_variables,
        )
        now = clock.monotonic()
        stats = self.membership.stats(now) if self.membership else None
        return Report(
            version=SCHEMA_VERSION,
            proxy=view,
            snapshot=snapshot,
            stats=stats or self.runtime.stats.view(now, self.runtime.news.lines(now)),
            told_wall=clock.wall(),
            cluster=self.membership.view(now) if self.membership else None,
            contexts=self.runtime.contexts.view(now),
        )


def end_on_hangup(end: Callable[[], None]) -> None:
    """Let SIGHUP stop the proxy as SIGTERM does (mitmproxy does not), unless `nohup` ignores SIGHUP.

    SIGHUP is not the second signal, as a terminal that closes sends several.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, end)
