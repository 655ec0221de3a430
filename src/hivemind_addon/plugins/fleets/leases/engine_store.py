"""Leases in a cluster's engine (a Valkey or Redis server), for processes of many machines.

Order is as in the file of one machine (sqlite_store.py): a place that an earlier waiter wants is kept for it.

Time. A lease ends by the engine's clock. Its holder counts by its own, from before it asked, and while its machine
sleeps: so it takes its lease for over before the engine does.

The dead. Of a process of another machine nothing is known, so its lease ends by its time. One of this machine that is
gone is found by whoever of this machine asks next, and is free at once.

A start with nothing. An engine that has lost its data has lost all leases. Their holders learn of it when they renew;
until then another may have the name, with a greater token: tokens are at least the engine's time in microseconds, and
greater than any that the asking process has seen.
"""

import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import msgspec
from msgspec import Struct
from redis import Redis, exceptions
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.retry import Retry

from hivemind_addon.formats.base.json_values import packed_decoder
from hivemind_addon.plugins.fleets.leases.engine_scripts import ACQUIRE, END, ENGINE_TIME, KEYS, RENEW, STANDINGS
from hivemind_addon.plugins.fleets.leases.holder import may_live
from hivemind_addon.plugins.fleets.leases.model import (
    MAX_LEASES,
    Grant,
    Holder,
    Lease,
    LeaseError,
    LeaseOver,
    LeaseState,
    NotGranted,
    Request,
    StoreGone,
    check_ttl,
    checked_names,
)
from hivemind_addon.proxy.system.clock import Clock
from hivemind_addon.proxy.system.engine_trouble import has_gone, trouble
from hivemind_addon.proxy.system.engine_url import CLUSTER_VARIABLE, EngineAddress

MOST_PATIENCE_S = 4.0
_LOOK_EVERY_S = 0.05
_MOST_LOOK_S = 1.0
_SHORT_LINE = 20
_US = 1_000_000


class _About(Struct, frozen=True, array_like=True):
    """What the engine keeps for us of a lease or a waiter, and does not look into."""

    agent: str
    pid: int
    started: str
    host: str
    value: str = ""


_read_about = packed_decoder(_About)


class _LastRefusal(Struct, frozen=True):
    """The last answer to a waiter, which holds as long as the engine's `turn` stays."""

    request: Request
    answer: NotGranted
    turn: int
    watched: tuple[tuple[str, bool, Holder], ...]
    """Whose end could let it through: the id or secret, whether that is a lease's, and the process."""


class EngineLeases:
    """The leases of a cluster. For any thread; close it before a fork. Its instants are of `Clock.monotonic()`."""

    def __init__(
        self,
        address: EngineAddress,
        name: str,
        *,
        patience_s: float = MOST_PATIENCE_S,
        is_alive: Callable[[Holder], bool] = may_live,
        host: str | None = None,
        engine_time: str = ENGINE_TIME,
    ) -> None:
        """It is connected at the first call. `name`: the cluster's; `host`: this machine's, for people.

        `is_alive`: True where nothing is known of a process. `engine_time`: Lua that says `now`.
        """
        self._address = address
        self._name = name
        self._patience_s = min(patience_s, MOST_PATIENCE_S)
        self._is_alive = is_alive
        self._host = socket.gethostname() if host is None else host
        self._keys = [f"hivemind:{{{name}}}:locks:{key}" for key in KEYS]
        # Half of the time to connect, half for the answer. A connection that was closed meanwhile is opened again once.
        self._redis = Redis.from_url(
            address.redis_url,
            protocol=2,
            socket_timeout=self._patience_s / 2,
            socket_connect_timeout=self._patience_s / 2,
            retry=Retry(NoBackoff(), 1, supported_errors=(exceptions.ConnectionError,)),
        )
        self._acquire, self._renew, self._end, self._standings = (
            self._redis.register_script(engine_time + text) for text in (ACQUIRE, RENEW, END, STANDINGS)
        )
        self._told: dict[str, _LastRefusal] = {}
        self._unsure: set[str] = set()
        """Leases that were asked for, where no answer came: perhaps they were granted."""
        self._highest = 0
        """Of all tokens that were seen."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def patience_s(self) -> float:
        """How long a call may take where the engine does not answer."""
        return self._patience_s

    def instant(self, clock: Clock) -> float:
        """While this machine sleeps, others can take a lease from its holder."""
        return clock.monotonic()

    def close(self) -> None:
        """Let go of the connection; leases stay."""
        self._redis.close()

    def acquire(self, request: Request, now: float, *, waiter: str = "") -> Lease | NotGranted:
        """All names or none. Raises StoreGone, LeaseError."""
        del now
        names = checked_names(request)
        told = self._told.pop(waiter, None)
        if told and (told.request != request or self._bury(told.watched)):
            told = None
        if not self._is_alive(request.holder):
            raise LeaseError(f"process {request.holder.pid}, which was to hold the lease, is gone")
        while True:
            found = self._ask(request, names, waiter, told)
            if isinstance(found, Lease):
                return found
            if not self._bury(found.watched):
                break
            told = None
        if waiter:
            self._told[waiter] = found
        return found.answer

    def leave(self, waiter: str) -> None:
        """Wait no more. Raises StoreGone, LeaseError."""
        self._told.pop(waiter, None)
        self._run(self._end, "", waiter)

    def renew(self, lease_id: str, ttl_s: float, now: float) -> Lease:
        """Its time begins again. Raises LeaseOver: it may be another holder's by now; StoreGone, LeaseError."""
        del now
        check_ttl(ttl_s)
        got = self._run(self._renew, lease_id, round(ttl_s * _US))
        if got is not None:
            token, raw, names = got
            renewed = self._lease(lease_id, raw, token, names, ttl_s)
            if not self._bury([(lease_id, True, renewed.holder)]):
                return renewed
        raise LeaseOver(f"lease {lease_id!r} is over: its time has passed, it was released, or the engine has lost it")

    def release(self, lease_id: str, now: float) -> None:
        """Raises LeaseOver, StoreGone, LeaseError."""
        del now
        if not self._run(self._end, lease_id):
            raise LeaseOver(f"lease {lease_id!r} is not held (any more)")

    def standings(self, now: float, names: Sequence[str] = ()) -> list[LeaseState]:
        """Of these names, or of all that are held or waited for. Raises StoreGone, LeaseError."""
        del now
        while True:
            token, found = self._run(self._standings, *sorted(names))
            self._highest = max(self._highest, token)
            states, everybody = [], []
            for name, capacity, holding, line in found:
                leases = [
                    self._lease(key.decode(), raw, its_token, its_names, left_us / _US)
                    for key, raw, its_token, left_us, its_names in holding
                ]
                waiting = [self._holder(raw) for _, raw in line]
                everybody += [(one.id, True, one.holder) for one in leases]
                everybody += [(key.decode(), False, one) for (key, _), one in zip(line, waiting, strict=True)]
                state = LeaseState(name.decode(), capacity, tuple(leases), tuple(waiting), self._highest)
                states.append(state)
            if not self._bury(everybody):
                return sorted(states, key=lambda state: state.name)

    def _ask(
        self, request: Request, names: Sequence[str], waiter: str, told: _LastRefusal | None
    ) -> Lease | _LastRefusal:
        lease_id, it = secrets.token_hex(8), request.holder
        about = _About(it.agent, it.pid, it.started, it.host or self._host, request.value)
        try:
            kind, *rest = self._run(
                self._acquire,
                *(lease_id, msgspec.msgpack.encode(about), request.capacity, round(request.ttl_s * _US)),
                *(self._highest, MAX_LEASES, waiter, told.turn if told else "", *names),
            )
        except LeaseError:
            self._unsure.add(lease_id)
            raise
        match kind:
            case b"lease":
                self._highest = max(self._highest, rest[0])
                grants = tuple(Grant(name, rest[0]) for name in names)
                return Lease(id=lease_id, grants=grants, holder=it, left_s=request.ttl_s, value=request.value)
            case b"same" if told:
                return told
            case b"capacity":
                name, theirs, raw = rest
                who = self._holder(raw).agent or "another"
                raise LeaseError(f"{who} has {name.decode()!r} as at most {theirs} at once, not {request.capacity}")
            case b"full":
                raise LeaseError(f"{MAX_LEASES:,} leases are held; release some, or let their time pass")
        return self._refusal(request, rest)

    def _refusal(self, request: Request, told: Sequence[Any]) -> _LastRefusal:
        turn, until_us, before, taken, holding, line = told
        held = [(key.decode(), True, self._holder(raw)) for key, raw in holding]
        # Of those before us only the first can be in the way by having died: the next become first.
        earlier = [(key.decode(), False, self._holder(raw)) for key, raw in line]
        # Those at the end of a long line ask more seldom, so that a crowd asks 2,000 times a second or less.
        look_s = min(_MOST_LOOK_S, _LOOK_EVERY_S * max(1.0, before / _SHORT_LINE))
        if until_us >= 0:
            look_s = min(look_s, until_us / _US)
        holders = tuple(dict.fromkeys(holder for _, _, holder in held))
        answer = NotGranted(tuple(name.decode() for name in taken), holders, max(0.001, look_s))
        return _LastRefusal(request=request, answer=answer, turn=turn, watched=(*held, *earlier))

    def _bury(self, watched: Iterable[tuple[str, bool, Holder]]) -> bool:
        """Take away what the dead have of these; whether there was any."""
        dead = [(key, is_lease) for key, is_lease, holder in watched if not self._is_alive(holder)]
        if dead:
            leases, waiters = ([key for key, is_lease in dead if is_lease is kind] for kind in (True, False))
            self._run(self._end, *leases, "", *waiters)
        return bool(dead)

    def _run(self, script: Script, *arguments: str | float | bytes) -> Any:
        try:
            if unsure := tuple(self._unsure):
                self._end(keys=self._keys, args=unsure)
                self._unsure.difference_update(unsure)
            return script(keys=self._keys, args=arguments)
        except (exceptions.RedisError, OSError) as error:
            raise self._trouble(error) from error

    def _lease(self, lease_id: str, raw: bytes, token: int, names: Iterable[bytes], left_s: float) -> Lease:
        grants = tuple(Grant(name.decode(), token) for name in names)
        self._highest = max(self._highest, token)
        value = _read_about(raw).value
        return Lease(id=lease_id, grants=grants, holder=self._holder(raw), left_s=left_s, value=value)

    def _holder(self, raw: bytes) -> Holder:
        it = _read_about(raw)
        return Holder(it.agent, it.pid, it.started, "" if it.host == self._host else it.host)

    def _trouble(self, error: Exception) -> LeaseError:
        text = f"the engine {self._address.shown} {trouble(error, f'hivemind:{{{self._name}}}:')}"
        # Where a replica takes over, its clients may be at the wrong one for a while.
        if not has_gone(error) and not isinstance(error, exceptions.ReadOnlyError):
            return LeaseError(text)
        if isinstance(error, exceptions.BusyLoadingError) or ";" in text:  # a cure is in it
            return StoreGone(text)
        return StoreGone(f"{text}; start it, or say another one by --cluster or {CLUSTER_VARIABLE}")
