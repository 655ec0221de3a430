"""Addons' hooks, called inside the layer, and only those that somebody has.

mitmproxy makes a task for each hook of a request. It goes through all addons (35 of its own, most of which do not
listen) with a generator, a context manager and an `await` each, then through all of them again for `update`, and then
into the layers once more. That is half of what a request costs (`docs/upstream-hooks.md`). Here one pass finds who
listens, and only they are called, while the layer goes on at once.

Addons see what they saw. Their order holds, also of addons inside addons; one that comes, goes or sets a hook as its
attribute is honoured at once, because every pass looks anew; `AddonHalt` ends the hook; an exception ends it for the
addon and those inside it, and for no other; `update` follows; an async hook is awaited before the next one is called,
in a task of the hook's own; a flow that is intercepted waits.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import math
from bisect import bisect_right
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mitmproxy import addonmanager, exceptions, flow, version
from mitmproxy.addons.asgiapp import ASGIApp
from mitmproxy.addons.onboarding import Onboarding
from mitmproxy.proxy import commands

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from mitmproxy import http
    from mitmproxy.hooks import Hook

logger = logging.getLogger("hivemind")

NAMES = {addonmanager.AddonManager: ("handle_lifecycle", "trigger"), addonmanager: ("traverse", "logger")}
"""What of mitmproxy's we use or replace."""

_SERVING = ASGIApp.request, Onboarding.request
"""They do nothing for a flow that is none of the app's."""


class Begun(NamedTuple):
    """A hook of a flow that could not end at once."""

    task: asyncio.Task[None] | None
    """None: all listeners have been called."""
    flow: flow.Flow

    async def over(self) -> None:
        """Wait as mitmproxy's connection handler does: for the listeners, then for whoever intercepts the flow."""
        if self.task is not None:
            await self.task
        await self.flow.wait_for_resume()


@dataclass
class HivemindWaitHook(commands.StartHook):
    """The layer waits for a hook that has begun."""

    begun: Begun


class _Call(NamedTuple):
    """One listener of a hook."""

    listener: Callable[..., object]
    addon: object
    place: tuple[int, float]
    """Of its addon: which of the chain it is or is nested in, and the place in there."""
    may_change: bool
    """Who may be a listener can change while it is called; mitmproxy's own addons change nobody."""


class _Listeners(NamedTuple):
    """Who listens to one hook."""

    asked: list[object]
    """Addons that have the hook, or may get it."""
    answers: list[object]
    """What they say; as long as they say it again, the rest holds."""
    calls: list[_Call]


class _Addons(NamedTuple):
    """All addons, and by what we know that they are still all."""

    chain: list[object]
    own: list[Mapping[str, object]]
    """The attributes of mitmproxy's own addons, which never change who they are."""
    sizes: list[int]
    """How many those are: one that is given a hook has more."""
    others: list[object]
    """All others; these are asked each time."""
    nested: list[object]
    """What is inside those."""
    nests: list[tuple[object, ...]]
    """Each addon of the chain with those inside it."""
    listeners: dict[str, _Listeners]


class _Waiting(NamedTuple):
    """A hook of which one listener has answered what is to be awaited."""

    answer: Awaitable[object]
    call: _Call
    """Whose answer it is."""


class DirectAddonManager(addonmanager.AddonManager):
    """mitmproxy's manager: calls the same hooks in the same order, for a small part of the time."""

    _known: _Addons | None = None

    async def handle_lifecycle(self, event: Hook) -> None:
        """Call a hook of the proxy; `update` follows if it is one of a flow."""
        if isinstance(event, HivemindWaitHook):
            await event.begun.over()
            return
        args = event.args()
        await self._call(event.name, args)
        if isinstance(args[0], flow.Flow):
            await self._call("update", ([args[0]],))

    def of_flow(self, name: str, of: flow.Flow) -> Coroutine[Any, Any, None] | None:
        """Call a hook of a flow, and `update`. None: that is done; else what is left of it, to be run in a task."""
        chain = self.chain
        waiting = self._begin(name, (of,), chain, None)
        if waiting is not None:
            return self._end_of_flow(name, of, chain, waiting)
        if self._nobody_still_listens("update"):
            return None
        chain = self.chain
        waiting = self._begin("update", ([of],), chain, None)
        return None if waiting is None else self._end("update", ([of],), chain, waiting)

    async def _end_of_flow(self, name: str, of: flow.Flow, chain: list[object], waiting: _Waiting) -> None:
        await self._end(name, (of,), chain, waiting)
        await self._call("update", ([of],))

    def trigger(self, event: Hook) -> None:
        """Call a hook; none of its listeners may be async."""
        self._begin(event.name, event.args(), self.chain, None, may_wait=False)

    async def _call(self, name: str, args: Sequence[object]) -> None:
        chain = self.chain  # As in mitmproxy: who is added to it now is called, and who is removed is, too.
        waiting = self._begin(name, args, chain, None)
        if waiting is not None:
            await self._end(name, args, chain, waiting)

    async def _end(self, name: str, args: Sequence[object], chain: list[object], waiting: _Waiting) -> None:
        """Await what a listener has answered, and call those behind it."""
        still: _Waiting | None = waiting
        while still is not None:
            place = still.call.place
            try:
                await still.answer
            except exceptions.AddonHalt:
                return
            except exceptions.OptionsError:
                raise
            except Exception as error:  # noqa: BLE001 - one addon's fault is not another's
                _log(error)
                place = place[0], math.inf
            still = self._begin(name, args, chain, place)

    def _begin(
        self,
        name: str,
        args: Sequence[object],
        chain: list[object],
        behind: tuple[int, float] | None,
        *,
        may_wait: bool = True,
    ) -> _Waiting | None:
        """Call those who listen, of all or behind a place. None: all were called; else one of them is to be awaited."""
        while True:
            calls = self._listeners(name, chain).calls
            if behind is not None:
                calls = calls[bisect_right(calls, behind, key=_place) :]
            for call in calls:
                listener, addon, behind, may_change = call
                try:
                    if not may_wait and inspect.iscoroutinefunction(listener):
                        _refuse(f"Async handler {name} ({addon}) cannot be called from sync context")
                    answer = listener(*args)
                except exceptions.AddonHalt:
                    return None
                except exceptions.OptionsError:
                    raise
                except Exception as error:  # noqa: BLE001 - one addon's fault is not another's
                    _log(error)
                    behind = behind[0], math.inf
                    break
                if answer is not None and may_wait and inspect.isawaitable(answer):
                    return _Waiting(answer, call)
                if may_change:
                    break
            else:
                return None

    def _nobody_still_listens(self, name: str) -> bool:
        """Whether it is certain that nobody listens, right after other calls: those have looked who the addons are."""
        known = self._known
        listeners = known and known.listeners.get(name)
        return bool(
            known
            and listeners
            and not listeners.calls
            and known.chain == self.chain
            and (not listeners.asked or _ask(listeners.asked, name) == listeners.answers)
        )

    def _listeners(self, name: str, chain: list[object]) -> _Listeners:
        known = self._known
        if (
            known is None
            or known.chain != chain
            or list(map(len, known.own)) != known.sizes
            or _ask(known.others, "addons") != known.nested
        ):
            known = self._known = _look_at(chain)
        listeners = known.listeners.get(name)
        if listeners is None or _ask(listeners.asked, name) != listeners.answers:
            listeners = known.listeners[name] = _find_listeners(known, name)
        return listeners


_place = attrgetter("place")


def _ask(addons: list[object], name: str) -> list[object]:
    try:
        return list(map(getattr, addons, repeat(name), repeat(None)))
    except Exception:  # noqa: BLE001 - an addon's own
        return [_answer(addon, name) for addon in addons]


def _answer(addon: object, name: str) -> object:
    """What an addon has under a hook's name; a fault is one of whoever calls it."""
    try:
        return getattr(addon, name, None)
    except Exception as error:  # noqa: BLE001 - an addon's own
        return partial(_raise, error)


def _look_at(chain: list[object]) -> _Addons:
    nests = [tuple(addonmanager.traverse([top])) for top in chain]
    own, others = list[object](), list[object]()
    for addon in itertools.chain.from_iterable(nests):
        (own if _is_mitmproxys(addon) else others).append(addon)
    attributes: list[Mapping[str, object]] = list(map(vars, own))
    nested = [copy(inside) for inside in _ask(others, "addons")]
    return _Addons(list(chain), attributes, list(map(len, attributes)), others, nested, nests, {})


def _is_mitmproxys(addon: object) -> bool:
    """Whether it is one of mitmproxy's own, and has none inside: the loader of scripts has."""
    return (
        type(addon).__module__.startswith("mitmproxy.") and hasattr(addon, "__dict__") and not hasattr(addon, "addons")
    )


def _find_listeners(known: _Addons, name: str) -> _Listeners:
    found = _Listeners([], [], [])
    others = set(map(id, known.others))
    for number, nest in enumerate(known.nests):
        for place, addon in enumerate(nest):
            answer = _answer(addon, name)
            may_change = id(addon) in others
            if may_change or hasattr(type(addon), name) or name in vars(addon):
                found.asked.append(addon)
                found.answers.append(answer)
            if not answer or isinstance(answer, ModuleType):  # as of `from mitmproxy import log`
                continue
            if name == "request" and isinstance(addon, ASGIApp) and type(addon).request in _SERVING:
                answer = partial(_serve, addon)
            elif not callable(answer):
                answer = partial(_refuse, f"Addon handler {name} ({addon}) not callable")
            found.calls.append(_Call(answer, addon, (number, place), may_change))
    return found


def _serve(app: ASGIApp, of: http.HTTPFlow) -> Awaitable[None] | None:
    """Ask the app without a coroutine whether a flow is its own: each flow comes by at mitmproxy's own page."""
    return app.request(of) if app.should_serve(of) else None


def _refuse(problem: str, *_: object) -> None:
    raise exceptions.AddonManagerError(problem)


def _raise(error: Exception, *_: object) -> None:
    raise error


def _log(error: Exception) -> None:
    """Word for word as mitmproxy does: from the listener on."""
    trace = error.__traceback__
    addonmanager.logger.error(
        f"Addon error: {error}",
        exc_info=(type(error), error, trace.tb_next if trace and trace.tb_next else trace),
    )


class Hooks:
    """Calls a flow's hooks for the layer."""

    def __init__(self) -> None:
        self._manager: DirectAddonManager | None = None

    def take_over(self, manager: addonmanager.AddonManager) -> None:
        """From now on; where this mitmproxy's manager is another than we know, never."""
        if isinstance(manager, DirectAddonManager):
            self._manager = manager
        elif type(manager) is addonmanager.AddonManager and _is_as_we_know(manager):
            manager.__class__ = DirectAddonManager
            self._manager = cast("DirectAddonManager", manager)
        else:
            logger.warning(
                "hivemind: mitmproxy %s calls hooks in a way of its own; requests take longer", version.VERSION
            )

    def give_back(self) -> None:
        """Mitmproxy calls its hooks itself again."""
        if self._manager is not None:
            self._manager.__class__ = addonmanager.AddonManager  # type: ignore[assignment]
            self._manager = None

    def call(self, hook: commands.StartHook) -> commands.StartHook | None:
        """Call a hook of a flow. None: it is over; else what the layer is to wait for."""
        if self._manager is None:
            return hook
        of: flow.Flow = hook.flow  # type: ignore[attr-defined]
        context = copy_context()
        try:
            calls = context.run(self._manager.of_flow, hook.name, of)
        except exceptions.OptionsError as error:
            calls = _fail(error)
        if calls is None:
            return HivemindWaitHook(Begun(None, of)) if of.intercepted else None
        task = asyncio.Task(calls, loop=asyncio.get_running_loop(), context=context, eager_start=True)
        if task.done() and not task.cancelled() and task.exception() is None and not of.intercepted:
            return None
        return HivemindWaitHook(Begun(task, of))


def _is_as_we_know(manager: addonmanager.AddonManager) -> bool:
    names = [(owner, name) for owner, names in NAMES.items() for name in names]
    return all(hasattr(owner, name) for owner, name in [*names, (manager, "chain")])


async def _fail(error: Exception) -> None:
    """As in mitmproxy: a hook that meets a bad option never ends."""
    raise error
