"""The addon: mitmproxy's hooks, each a few lines and one call inward."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mitmproxy import contentviews, ctx, exceptions, http
from mitmproxy.proxy.layers import TCPLayer
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.utils import human

from hivemind_addon import __version__
from hivemind_addon.capture.model import NotACapture
from hivemind_addon.compose import Runtime, make_runtime
from hivemind_addon.core.command import Command, Record, Said
from hivemind_addon.core.events import PersonActed
from hivemind_addon.core.snapshot import SCHEMA_VERSION
from hivemind_addon.mitm.commands import Commands
from hivemind_addon.mitm.contentview import ExchangeView
from hivemind_addon.mitm.intake import Intake
from hivemind_addon.mitm.options import (
    PREFIX,
    BadOption,
    Settings,
    add_options,
    check_deferred,
    check_listeners,
    is_loopback,
    open_listeners,
    read_settings,
)
from hivemind_addon.mitm.own_addresses import PAGE_HOST, OwnAddresses, hang_up
from hivemind_addon.mitm.pages import Pages
from hivemind_addon.mitm.recorder import Recorder
from hivemind_addon.mitm.retention import Retention
from hivemind_addon.mitm.stream import EndAttempt, datagram_listeners, scheduling_layer
from hivemind_addon.observe.report import QUEUED_TOLD, ProxyView, Report
from hivemind_addon.profile.typed import normal_host
from hivemind_addon.runtime.beat import Beat
from hivemind_addon.runtime.control import ControlServer, SocketTaken, control_socket
from hivemind_addon.runtime.folders import FolderNotPrivate
from hivemind_addon.runtime.state_file import StateFile
from hivemind_addon.trust import cure_of_distrust

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from mitmproxy import flow as mflow
    from mitmproxy.addonmanager import Loader
    from mitmproxy.addons.view import View
    from mitmproxy.connection import Client
    from mitmproxy.proxy.layer import NextLayer
    from mitmproxy.proxy.server_hooks import ServerConnectionHookData
    from mitmproxy.tls import ClientHelloData, TlsData

    from hivemind_addon.core.ticket import Reservation
    from hivemind_addon.mitm.exchange import Exchange

logger = logging.getLogger("hivemind")

TLS_RECORD = b"\x16\x03"
"""How a TLS handshake begins."""
_MOST_TOLD = 1000
"""Clients that are told how to trust us; a warning that is never forgotten would be a leak."""
DRAIN_S = 30
"""How long running streams may go on after SIGTERM or Ctrl-C."""
_VERBOSITIES = {"termlog_verbosity", "console_eventlog_verbosity"}
"""mitmproxy's options that say which log lines a person sees."""
WEB_COLUMNS = ["icon", "path", "status", "size", "time", "comment"]
"""Of mitmweb's list: the comment says why a flow is held; all model calls are POST over TLS."""
ADOPTABLE = "hivemind_intake"
"""The attribute of mitmproxy's master under which a reloaded script finds the running scheduler."""


class Hivemind:
    """Schedules the model calls of all agents that use this proxy."""

    name = "hivemind"

    def __init__(self) -> None:
        self.intake: Intake | None = None
        self.commands = Commands()
        self.addons = [self.commands]
        """Mitmproxy registers these, too."""
        self._live = False
        self._holding = 0
        """Streams that wait in `hivemind_hold`."""
        self._loading: asyncio.Future[None] | None = None
        self._rebinding: asyncio.Future[None] | None = None
        self._opening: asyncio.Future[None] | None = None
        """Of the control socket."""
        self._retention: Retention | None = None
        self._beat: Beat | None = None
        """Both only where there is a view."""
        self._closing: asyncio.Future[None] | None = None
        """Of a capture that was ended."""
        self._distrusting: set[str] = set()
        """Clients that were told how to trust the proxy."""

    # Start and end ---------------------------------------------------------------------------------------------------

    def load(self, loader: Loader) -> None:
        """Declare the options; check the values that were given before we were loaded."""
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
            self._set_defaults()

    def _set_defaults(self) -> None:
        """Loopback, upstream connections only when a request goes, comments shown: unless the user said otherwise."""
        if not ctx.options.listen_host and not _said_by_user("listen_host"):
            ctx.options.listen_host = "127.0.0.1"
            if not ctx.master.addons.get("proxyserver").is_running:
                self._rebinding = asyncio.ensure_future(self._rebind())
        if not _said_by_user("connection_strategy"):
            ctx.options.connection_strategy = "lazy"
        if "web_columns" in ctx.options and not _said_by_user("web_columns"):
            ctx.options.web_columns = WEB_COLUMNS

    async def _rebind(self) -> None:
        """Listen again, on loopback: scripts are loaded when mitmproxy has begun to bind its ports.

        Until then `client_connected` keeps strangers out.
        """
        servers = ctx.master.addons.get("proxyserver").servers
        modes = [ProxyMode.parse(mode) for mode in ctx.options.mode]
        await servers.update(modes)  # waits for mitmproxy's own first round
        listeners = datagram_listeners(servers)
        await servers.update([])
        for listener in listeners:
            await listener.wait_closed()  # mitmproxy does not, and finds its own port taken
        await servers.update(modes)

    def client_connected(self, client: Client) -> None:
        """Nobody from elsewhere, unless the user opened a listener for it."""
        if not is_loopback(client.peername[0]) and not open_listeners(ctx.options):
            client.error = "hivemind: only loopback clients"

    def configure(self, updated: set[str]) -> None:
        """Read and check the options; at the start a bad one ends mitmproxy with one line, live it is rolled back."""
        if updated & _VERBOSITIES:
            # mitmproxy's root logger takes every level, and makes each line a hook of all addons.
            wanted = {getattr(ctx.options, name, None) for name in _VERBOSITIES}
            logger.setLevel(logging.DEBUG if "debug" in wanted else logging.INFO)
        try:
            if updated & {"listen_host", "mode", "proxyauth", "hivemind_allow_lan"}:
                check_listeners(ctx.options)
            if any(name.startswith(PREFIX) for name in updated):
                self._apply(read_settings(ctx.options))
            if self._live and self.intake and "hivemind_control" in updated:
                self._opening = asyncio.ensure_future(self._open_control(self.intake))
        except BadOption as error:
            self._refuse(error)

    def _refuse(self, error: BadOption) -> None:
        if self._live:
            logger.warning("hivemind: %s; what was set before stays", error)  # mitmweb shows only a red frame
            raise exceptions.OptionsError(str(error))
        # An error that is logged during the start ends mitmproxy with exit status 1.
        logger.error("hivemind: %s", error)

    def _apply(self, settings: Settings) -> None:
        if self.intake is None:
            self.intake = getattr(ctx.master, ADOPTABLE, None)
        if self.intake is None:
            runtime: Runtime = make_runtime()
            self.intake = Intake(runtime=runtime, settings=settings)
            self.intake.pages = self._make_pages(self.intake, runtime)
            setattr(ctx.master, ADOPTABLE, self.intake)
            # Programs stay: without them a full collection, for which all streams wait, takes 20 ms instead of 70.
            gc.freeze()
        self.intake.settings = settings
        self.commands.intake = self.intake
        self.intake.driver.end_attempt = self._end_attempt
        self.intake.driver.call_off = partial(self._end_attempt, called_off=True)
        self.intake.runtime.voices.speak(log=settings.event_log, notify=settings.notify)
        self._keep_state(self.intake, settings.state_file)
        self._record(self.intake, settings)

    def _make_pages(self, intake: Intake, runtime: Runtime) -> Pages:
        return Pages(
            report=lambda: _report(intake, _listens()),
            metrics=runtime.metrics,
            driver=runtime.driver,
            guard=runtime.guard,
            is_stopping=ctx.master.should_exit.is_set,
        )

    def _end_attempt(self, reservation: Reservation, *, called_off: bool = False) -> None:
        """A client has come back with a request that still runs, or a person cancelled it: its stream ends it."""
        proxyserver = ctx.master.addons.get("proxyserver")
        if self.intake:
            with self.intake.guarded("end_attempt"):
                self.intake.end_attempt(
                    reservation, lambda flow: proxyserver.inject_event(EndAttempt(flow, called_off=called_off))
                )

    def _keep_state(self, intake: Intake, path: Path | None) -> None:
        """Restore once; from then on save to wherever the option says."""
        if intake.state_file is not None:
            if intake.state_file.path == path:
                return
            intake.state_file.stop()
        known = intake.state_file is not None
        intake.state_file = None
        if path is not None:
            intake.state_file = StateFile(
                path, keeper=intake.driver, clock=intake.driver.clock, note=intake.driver.note
            )
            if not known:
                intake.state_file.load()
            intake.state_file.start()

    def _record(self, intake: Intake, settings: Settings) -> None:
        """Record calls to wherever the option says. Raises BadOption."""
        old = intake.recorder
        if old is not None and (old.path, old.content) == (settings.capture, settings.capture_content):
            return
        intake.recorder = None
        if old is not None:
            self._closing = asyncio.ensure_future(old.stop())
        if settings.capture is not None:
            try:
                intake.recorder = Recorder(
                    settings.capture,
                    content=settings.capture_content,
                    driver=intake.driver,
                    profiles=settings.profiles,
                )
            except (OSError, NotACapture) as error:
                why = error.strerror if isinstance(error, OSError) else error
                raise BadOption(f"hivemind_capture: {settings.capture}: {why}") from error

    def _command(self, intake: Intake, command: Command) -> Said:
        """What a person tells us by the control socket."""
        if not isinstance(command, Record):
            return intake.driver.command(command)
        before = intake.recorder
        try:
            ctx.options.update(hivemind_capture=command.file or "", hivemind_capture_content=command.content)
        except exceptions.OptionsError as error:
            return Said(done=False, text=str(error))
        if intake.recorder is before:
            return Said(done=False, text=f"{before.path} is recorded already" if before else "nothing was recorded")
        text = f"recording into {command.file}" if command.file else "recording no more"
        intake.driver.note(PersonActed(at=intake.driver.clock.monotonic(), text=text))
        return Said(done=True, text=text)

    def running(self) -> None:
        """From here on a bad option is rolled back; mitmweb's Abort and Resume are heard."""
        self._live = True
        if self.intake:
            self._loading = asyncio.ensure_future(self._load_vocabulary(self.intake))
            self._opening = asyncio.ensure_future(self._open_control(self.intake))
        contentviews.add(ExchangeView())
        if (view := ctx.master.addons.get("view")) is not None:  # an empty one is false
            view.sig_view_update.connect(self._flow_touched)
            view.sig_view_remove.connect(self._flow_removed)
            self._keep_view(view)

    def _keep_view(self, view: View) -> None:
        """Keep what a person looks at up to date, and small."""
        if (intake := self.intake) is None:
            return
        self._retention = Retention(view, lambda: intake.settings.keep)
        self._beat = Beat([intake.annotator.beat, self._retention.beat])
        intake.annotator.wake = self._beat.wake

    async def _load_vocabulary(self, intake: Intake) -> None:
        """Off the event loop: it takes a third of a second."""
        problem = await asyncio.to_thread(intake.runtime.tokenizer.load)
        if problem:
            logger.warning("hivemind: %s", problem)

    async def _open_control(self, intake: Intake) -> None:
        """Let others read what goes on; the proxy serves without that, too."""
        if self._rebinding is not None:
            await asyncio.wait([self._rebinding])
        listens = _listens()
        chosen = intake.settings.control
        if intake.control is not None:
            intake.control.close()
            intake.control = None
        if chosen is False or not listens or not hasattr(socket, "AF_UNIX"):
            return
        port = listens[0][1]
        try:
            path = control_socket(port) if chosen is True else chosen
            control = ControlServer(
                path, report=lambda: _report(intake, listens), command=lambda command: self._command(intake, command)
            )
            await control.start()
        except (SocketTaken, FolderNotPrivate, OSError) as error:
            logger.warning("hivemind: no control socket, so `hivemind status` sees nothing: %s", error)
        else:
            intake.control = control

    def done(self) -> Awaitable[None] | None:
        """On shutdown: drain. On a reload nothing more: the next object adopts what is running."""
        if self._beat is not None:
            self._beat.stop()
        if self.intake is None or not ctx.master.should_exit.is_set():
            return None
        return self._drain(self.intake)

    async def _drain(self, intake: Intake) -> None:
        """Held flows get their come-back refusal at once; running streams have 30 s; a second signal ends it."""
        second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(name, second.set)
            except NotImplementedError:  # Windows' loop: no second signal there
                break
        intake.driver.close()
        running = len(intake.live)
        if running:
            logger.info("hivemind: stopping; %d requests may finish within %d s", running, DRAIN_S)
        waits = [asyncio.ensure_future(intake.drained()), asyncio.ensure_future(second.wait())]
        done, pending = await asyncio.wait(waits, timeout=DRAIN_S, return_when=asyncio.FIRST_COMPLETED)
        for wait in pending:
            wait.cancel()
        if waits[0] in done:
            await intake.flushed()
        if intake.state_file is not None:
            intake.state_file.stop()
            await intake.state_file.save()
        await intake.runtime.voices.close()
        if intake.control is not None:
            intake.control.close()
        if intake.recorder is not None:
            recorder, intake.recorder = intake.recorder, None
            await recorder.stop()
        if self._closing is not None:
            await asyncio.wait([self._closing])

    # Connections -----------------------------------------------------------------------------------------------------

    def tls_clienthello(self, data: ClientHelloData) -> None:
        """Hosts that no profile names are never intercepted."""
        if self.intake:
            with self.intake.guarded("tls_clienthello"):
                data.ignore_connection = self.intake.is_foreign(data.context, data.client_hello.sni)

    def tls_failed_client(self, data: TlsData) -> None:
        """Say once to each client what makes it trust us."""
        if self.intake is None or "trust" not in (data.conn.error or ""):
            return
        with self.intake.guarded("tls_failed_client"):
            who = self.intake.name_of(data.context.client)
            if who not in self._distrusting and len(self._distrusting) < _MOST_TOLD:
                self._distrusting.add(who)
                host = data.context.client.sni or "its provider"
                logger.warning("hivemind: %s: %s", who, cure_of_distrust(host, Path(ctx.options.confdir)))

    def next_layer(self, nextlayer: NextLayer) -> None:
        """Put our HTTP layer in the place of the one that mitmproxy chooses."""
        builtin = ctx.master.addons.get("nextlayer")
        if self.intake is None or builtin is None:
            return
        with self.intake.guarded("next_layer"):
            context = nextlayer.context
            is_tls = nextlayer.data_client().startswith(TLS_RECORD)  # then tls_clienthello decides
            if context.server.address and not is_tls and self.intake.is_foreign(context, context.client.sni):
                nextlayer.layer = TCPLayer(context, ignore=True)
        builtin.next_layer(nextlayer)
        with self.intake.guarded("next_layer"):
            nextlayer.layer = scheduling_layer(nextlayer.layer, self.intake)

    def server_connect(self, data: ServerConnectionHookData) -> None:
        """Redirect a profile's host; its name stays in SNI, certificate check and Host."""
        address = data.server.address
        if self.intake is None or address is None:
            return
        with self.intake.guarded("server_connect"):
            target = self.intake.settings.redirects.get(address[0].lower().rstrip("."))
            if target:
                self.intake.redirected[data.server.id] = (address[0], address[1])
                data.server.address = target
            goes_to = target or address
            if normal_host(address[0]) == PAGE_HOST:
                data.server.error = f"{PAGE_HOST} is this proxy: ask it for http://{PAGE_HOST}/"
            elif _own_addresses().are_asked(goes_to):
                data.server.error = "nothing that listens in the proxy itself is reached through it"

    def server_connected(self, data: ServerConnectionHookData) -> None:
        """A name that led back to this process is found out here, before anything is sent."""
        if self.intake is None or data.server.peername is None:
            return
        with self.intake.guarded("server_connected"):
            if _own_addresses().are_reached(data.server.peername, data.server.sockname):
                logger.warning(
                    "hivemind: %s asked for %s, which is the proxy itself: closed",
                    self.intake.name_of(data.client),
                    human.format_address(data.server.address),
                )
                hang_up(ctx.master.addons.get("proxyserver"), data)

    def server_disconnected(self, data: ServerConnectionHookData) -> None:
        """Forget where a redirected connection was meant to go."""
        if self.intake:
            self.intake.redirected.pop(data.server.id, None)

    server_connect_error = server_disconnected

    def http_connect(self, flow: http.HTTPFlow) -> None:
        """Who asks: the user of the proxy URL."""
        if self.intake and (credentials := flow.request.headers.get("proxy-authorization")):
            with self.intake.guarded("http_connect"):
                self.intake.learn_proxy_user(flow, credentials)

    def client_disconnected(self, client: Client) -> None:
        """Every ticket of the connection ends."""
        if self.intake:
            with self.intake.guarded("client_disconnected"):
                self.intake.client_disconnected(client)

    # Requests --------------------------------------------------------------------------------------------------------

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        """Step 1: ours is buffered, so that it can be sent again; anything else is streamed both ways."""
        if self.intake is None:
            return
        with self.intake.guarded("requestheaders"):
            self.intake.take_own_headers(flow)
            if refusal := self.intake.upgrade_refusal(flow):
                flow.response = refusal
        flow.request.stream = not self.intake.claims(flow)
        if self._retention is not None and self._beat is not None and flow.live:
            self._retention.came(flow)
            self._beat.wake()
        if flow.is_replay == "request" and not flow.request.stream:
            self._hear_of_replays(heard=True)

    async def hivemind_hold(self, exchange: Exchange) -> None:
        """Our own hook: the stream waits for admission."""
        self._holding += 1
        self._show(exchange)
        try:
            await exchange.hold()
        finally:
            self._holding -= 1
            self._show(exchange)

    # Hooks that are there only while they are needed: mitmproxy looks for the attribute each time, and each hook that
    # an addon has costs every request some 30 µs (2026-11).

    def _show(self, exchange: Exchange) -> None:
        """Let interfaces draw a flow anew; hear from them while anything is held."""
        if self._holding:
            self.update = self._flows_touched
        elif hasattr(self, "update"):
            del self.update
        if self.intake:
            with self.intake.guarded("annotate"):
                self.intake.annotator.show(exchange)

    def _flows_touched(self, flows: Sequence[mflow.Flow]) -> None:
        """Some interface touched these flows: a person may have pressed Abort or Resume."""
        for flow in flows:
            self._flow_touched(flow)

    def _flow_touched(self, flow: mflow.Flow) -> None:
        if self.intake and (exchange := self.intake.live.get(flow.id)):
            with self.intake.guarded("update"):
                exchange.nudge()

    def _flow_removed(self, flow: mflow.Flow, index: int) -> None:
        """A person has deleted a flow; interfaces kill it before."""
        del index
        self._flow_touched(flow)

    def _hear_of_replays(self, *, heard: bool) -> None:
        """Replays run on mitmproxy's own layer, without our gate: they are held in the ordinary hooks."""
        if heard:
            self.request = self._replay_asked
            self.response = self._replay_answered
            self.error = self._replay_failed
        elif hasattr(self, "request"):
            del self.request, self.response, self.error

    async def _replay_asked(self, flow: http.HTTPFlow) -> None:
        """Hold a replayed request, anew."""
        if self.intake is None or flow.is_replay != "request" or flow.response or not self.intake.claims(flow):
            return
        exchange = self.intake.intake(flow)
        if exchange is None:
            return
        self.intake.replays[flow.id] = exchange
        if not exchange.enter():
            await exchange.hold()
        exchange.sent()
        flow.response = exchange.refusal

    def _replay_answered(self, flow: http.HTTPFlow) -> None:
        """Settle a replay's attempt; it is not tried again."""
        exchange = self.intake.replays.get(flow.id) if self.intake else None
        if exchange and flow.response and not exchange.over:
            exchange.head(flow.response)
            exchange.collected(flow.response, flow.response.raw_content or b"")
        self._replay_failed(flow)

    def _replay_failed(self, flow: http.HTTPFlow) -> None:
        """A replay is over."""
        if self.intake is None:
            return
        if exchange := self.intake.replays.pop(flow.id, None):
            exchange.finished()
        if not self.intake.replays:
            self._hear_of_replays(heard=False)


def _report(intake: Intake, listens: Sequence[tuple[str, int]]) -> Report:
    profiles, clock = intake.settings.profiles.by_name.values(), intake.driver.clock
    return Report(
        version=SCHEMA_VERSION,
        proxy=ProxyView(
            pid=os.getpid(),
            port=listens[0][1],
            listens=tuple(f"{host}:{port}" for host, port in listens),
            confdir=str(Path(ctx.options.confdir).expanduser()),
            hosts=tuple(sorted({host for profile in profiles for host in profile.hosts})),
            version=__version__,
            began_wall=intake.began_wall,
            web=_web_page(),
        ),
        snapshot=intake.driver.snapshot(most_queued=QUEUED_TOLD),
        tally=intake.runtime.tally.view(clock.monotonic()),
        told_wall=clock.wall(),
    )


def _listens() -> list[tuple[str, int]]:
    """Where the proxy listens."""
    return [(str(address[0]), int(address[1])) for address in ctx.master.addons.get("proxyserver").listen_addrs()]


def _own_addresses() -> OwnAddresses:
    """Everything that listens in this process."""
    web = ((ctx.options.web_host, ctx.options.web_port),) if _is_mitmweb() else ()
    return OwnAddresses((*_listens(), *web))


def _is_mitmweb() -> bool:
    return ctx.master.addons.get("webauth") is not None


def _web_page() -> str:
    """Where mitmweb is; its token stays with it."""
    if not _is_mitmweb():
        return ""
    return f"http://{ctx.options.web_host}:{ctx.options.web_port}/"


def _said_by_user(name: str) -> bool:
    """Whether the user set an option, be it to its default: mitmproxy does not tell."""
    if any(argument.partition("=")[0] == name for argument in sys.argv):
        return True
    if name == "listen_host" and "--listen-host" in sys.argv:
        return True
    folder = Path(ctx.options.confdir).expanduser()
    files: Any = (folder / "config.yaml", folder / "config.yml")
    return any(
        line.startswith(f"{name}:") for file in files if file.is_file() for line in file.read_text().splitlines()
    )
