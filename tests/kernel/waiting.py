"""A fair queue without a pool around it: a server with one slot, or a few, that works all the time."""

from msgspec.structs import replace

from hivemind_addon.kernel.order.entry import QueueEntry
from hivemind_addon.kernel.order.fair_queue import FairQueue, OrderSettings
from hivemind_addon.kernel.order.shares import StartTimes
from hivemind_addon.kernel.values.ticket import Demand, Ticket, Usage
from tests.kernel.samples import ticket

TOKENS_S = 1000
"""An attempt takes a second for so many input tokens; a warm prefix of so many saves one."""


class Line:
    """Tickets cost what their demand says: `seconds` of the bottleneck. Time passes as they are served."""

    def __init__(self, settings: OrderSettings | None = None) -> None:
        self.settings = settings or OrderSettings()
        self.queue = FairQueue(
            self.settings,
            cost_s=lambda demand: demand.input_tokens / TOKENS_S,
            saved_s=lambda tokens: tokens / TOKENS_S,
            common=StartTimes(),
        )
        self.now = 0.0
        self.sent_at: dict[str, float] = {}
        self.running: dict[str, QueueEntry] = {}

    def add(self, *ticket_ids: str, agent: str = "", session: str = "", seconds: float = 1, **more: object) -> None:
        """Each is an agent and a session of its own, unless said otherwise."""
        for ticket_id in ticket_ids:
            made: Ticket = replace(
                ticket(ticket_id, at=self.now, patience_s=1e9, demand=Demand(input_tokens=round(seconds * TOKENS_S))),
                agent=agent or session or ticket_id,
                session=session or ticket_id,
                **more,  # type: ignore[arg-type]
            )
            self.queue.append(QueueEntry(ticket=made, wait_began_at=self.now), self.now)

    def send(self) -> str | None:
        """Send the next one."""
        self.queue.wake(self.now)
        place = self.queue.head()
        return None if place is None else self.send_place(place)

    def send_place(self, place: QueueEntry) -> str:
        self.queue.admit(place, self.now)
        name = place.ticket.id
        self.running[name] = place
        self.sent_at[name] = self.now
        return name

    def begin(self, name: str) -> None:
        self.queue.began(self.running[name], sent_at=self.sent_at[name], now=self.now)

    def end(
        self, name: str, *, answered: bool = True, took_s: float | None = None, usage: Usage | None = None
    ) -> QueueEntry:
        place = self.running.pop(name)
        seconds = place.ticket.demand.input_tokens / TOKENS_S if took_s is None else took_s
        self.queue.settle(place, seconds, self.now, answered=answered, usage=usage)
        return place

    def serve(self) -> str | None:
        """Send the next one, let it take its time, and end it."""
        name = self.send()
        if name is not None:
            self.begin(name)
            self.now += self.running[name].ticket.demand.input_tokens / TOKENS_S
            self.queue.end(self.end(name))
        return name

    def serve_all(self) -> list[str]:
        order = []
        while name := self.serve():
            order.append(name)
        return order

    def send_all(self) -> list[str]:
        order = []
        while name := self.send():
            order.append(name)
        return order
