"""A mitmproxy layer without sockets: events in, commands out.

Hooks are answered at once (by `on_hook`, when it is given), connections open at once (unless `refuse` says why not);
what is sent is kept for each connection, and wakeups are kept to be rung by the test.
"""

from collections import deque

from mitmproxy import options
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.connection import Client, ConnectionState, Server
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context


class Loader:
    """What an addon's `load` is given."""

    def __init__(self, opts):
        self.add_option = opts.add_option

    def __call__(self, *addons):
        for addon in addons:
            addon.load(self)


def make_options(**changes):
    opts = options.Options()
    Loader(opts)(Proxyserver())
    opts.update(**changes)
    return opts


def make_context(opts=None, **changes):
    client = Client(
        peername=("127.0.0.1", 50000), sockname=("127.0.0.1", 8080), timestamp_start=1.0, state=ConnectionState.OPEN
    )
    return Context(client, opts or make_options(**changes))


class Playbook:
    def __init__(self, layer, *, on_hook=None, refuse=None, defer_opening=False):
        self.layer = layer
        self.client = layer.context.client
        self.sent = {}
        """Connection → bytes."""
        self.hooks = []
        self.wakeups = []
        self.opened = []
        self.logs = []
        self._on_hook = on_hook or (lambda hook: True)
        self._refuse = refuse
        self._opening = None if defer_opening else ()
        self.tell(events.Start())

    def tell(self, event):
        """One event, and all that follows from it."""
        todo = deque([event])
        while todo:
            for command in self.layer.handle_event(todo.popleft()):
                todo.extend(self._obey(command))

    def from_client(self, data):
        self.tell(events.DataReceived(self.client, data))

    def from_server(self, data, number=-1):
        self.tell(events.DataReceived(self.opened[number], data))

    def close(self, connection):
        connection.state = ConnectionState.CLOSED if connection is not self.client else ConnectionState.CAN_WRITE
        self.tell(events.ConnectionClosed(connection))

    def ring(self, number=-1):
        """The time of a wakeup has come."""
        self.tell(events.Wakeup(self.wakeups.pop(number)))

    def open(self):
        """Open the connection that was deferred."""
        command, self._opening = self._opening, ()
        for event in self._obey(command):
            self.tell(event)

    def answer(self, hook):
        """Complete a hook for which `on_hook` said False."""
        self.tell(events.HookCompleted(hook, None))

    async def attempts(self, held, *answers):
        """What each attempt sent, the first one's request being sent already; `held`: the hooks that wait."""
        sent = [self.to_server()]
        for answer in answers:
            before = sum(map(len, sent))
            self.from_server(answer)
            while held:  # on a slow machine its time has come already, and nothing is held
                hook = held.pop()
                await hook.exchange.hold()
                self.answer(hook)
            if more := b"".join(self.to_server(number) for number in range(len(self.opened)))[before:]:
                sent.append(more)
        return sent

    @property
    def to_client(self):
        return self.sent.get(self.client, b"")

    def to_server(self, number=-1):
        return self.sent.get(self.opened[number], b"")

    def _obey(self, command):
        match command:
            case commands.SendData(connection=connection, data=data):
                self.sent[connection] = self.sent.get(connection, b"") + data
            case commands.OpenConnection() if self._opening is None:
                self._opening = command
            case commands.OpenConnection(connection=connection):
                if not self._refuse:
                    connection.state = ConnectionState.OPEN
                    assert isinstance(connection, Server)
                    self.opened.append(connection)
                yield events.OpenConnectionCompleted(command, self._refuse)
            case commands.CloseConnection(connection=connection):
                connection.state = ConnectionState.CLOSED
            case commands.StartHook():
                self.hooks.append(command)
                if self._on_hook(command) is not False and command.blocking:
                    yield events.HookCompleted(command, None)
            case commands.RequestWakeup():
                self.wakeups.append(command)
            case commands.Log():
                self.logs.append(command)
