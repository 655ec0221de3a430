"""Addons' hooks, called inside the layer, and only those that somebody has.

mitmproxy makes a task for each hook of a request. It goes through all addons (35 of its own, most of which do not
listen) with a generator, a context manager and an `await` each, then through all of them again for `update`, and then
into the layers once more. That is half of what a request costs (`docs/upstream-hooks.md`). Here one pass finds who
listens, and only they are called, while the layer goes on at once.

Addons see what they saw. Their order holds, also of addons inside addons; one that comes, goes or sets a hook as its
attribute is honoured at once, because every pass looks anew; `AddonHalt` ends the hook; an exception ends it for the
addon and those inside it, and for no other; `update` follows; an async hook is awaited before the next one is called;
the hook has a task of its own, begun at once, which never comes to the event loop unless somebody waits; a flow that is
intercepted waits.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from copy import copy
from dataclasses import dataclass
from itertools import repeat
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from mitmproxy import addonmanager, exceptions, flow, version
from mitmproxy.proxy import commands

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mitmproxy.hooks import Hook

logger = logging.getLogger("hivemind")

NAMES = "chain", "handle_lifecycle", "trigger"
"""What of mitmproxy's manager we read or replace."""


class Begun(NamedTuple):
    """A hook of a flow that could not end at once."""

    calls: asyncio.Task[None]
    flow: flow.Flow

    async def over(self) -> None:
        """Wait as mitmproxy's connection handler does: for the listeners, then for whoever intercepts the flow."""
        await self.calls
        await self.flow.wait_for_resume()


@dataclass
class HivemindWaitHook(commands.StartHook):
    """The layer waits for a hook that has begun."""

    begun: Begun


class _Group(NamedTuple):
    """Addons that are asked one after the other."""

    addons: Sequence[object]
    is_nest: bool
    """One addon and those inside it: what one of them raises ends the hook for those after it."""


class _Asked(NamedTuple):
    """All addons, and what shows that they are still all."""

    chain: list[object]
    addons: list[object]
    nested: list[object]
    """Of each of them, those inside it."""
    groups: list[_Group]


class DirectAddonManager(addonmanager.AddonManager):
    """mitmproxy's manager: calls the same hooks in the same order, for a small part of the time."""

    _asked: _Asked | None = None

    async def handle_lifecycle(self, event: Hook) -> None:
        """Call a hook of the proxy; `update` follows if it is one of a flow."""
        if isinstance(event, HivemindWaitHook):
            await event.begun.over()
            return
        args = event.args()
        await self._call(event.name, args)
        if isinstance(args[0], flow.Flow):
            await self._call("update", ([args[0]],))

    def trigger(self, event: Hook) -> None:
        """Call a hook; none of its listeners may be async."""
        try:
            self._call(event.name, event.args(), may_wait=False).send(None)
        except StopIteration:
            return
        raise AssertionError("it waits")

    async def _call(self, name: str, args: Sequence[object], *, may_wait: bool = True) -> None:
        for addons, is_nest in self._groups():
            # One by one, for a listener may give a later addon a hook.
            listeners = filter(None, map(getattr, addons, repeat(name), repeat(None)))
            while True:
                try:
                    for listener in listeners:
                        if not callable(listener) or not (may_wait or not inspect.iscoroutinefunction(listener)):
                            _pass_over(listener, name, addons)
                            continue
                        answer = listener(*args)
                        if answer is not None and may_wait and inspect.isawaitable(answer):
                            await answer
                except exceptions.AddonHalt:
                    return
                except exceptions.OptionsError:
                    raise
                except Exception as error:  # noqa: BLE001 - one addon's fault is not another's
                    _log(error)
                    if not is_nest:
                        continue
                break

    def _groups(self) -> Iterator[_Group]:
        chain = self.chain
        number = len(chain)
        asked = self._asked
        if (
            asked is None
            or asked.chain != chain
            or asked.nested != list(map(getattr, asked.addons, repeat("addons"), repeat(None)))
        ):
            asked = self._asked = _asked(chain)
        yield from asked.groups
        while number < len(chain):  # a listener has added one
            yield _Group(list(addonmanager.traverse([chain[number]])), is_nest=True)
            number += 1


def _asked(chain: list[object]) -> _Asked:
    groups: list[_Group] = []
    alone: list[object] = []
    for top in chain:
        if not hasattr(top, "addons"):
            if not alone:
                groups.append(_Group(alone, is_nest=False))
            alone.append(top)
        else:
            groups.append(_Group(list(addonmanager.traverse([top])), is_nest=True))
            alone = []
    addons = [addon for group in groups for addon in group.addons]
    return _Asked(list(chain), addons, [copy(getattr(addon, "addons", None)) for addon in addons], groups)


def _pass_over(listener: object, name: str, addons: Sequence[object]) -> None:
    """Say what is wrong with a listener; a module that has a hook's name is none."""
    if isinstance(listener, ModuleType):
        return
    addon = next(addon for addon in addons if getattr(addon, name, None) == listener)
    if callable(listener):
        raise exceptions.AddonManagerError(f"Async handler {name} ({addon}) cannot be called from sync context")
    raise exceptions.AddonManagerError(f"Addon handler {name} ({addon}) not callable")


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
        elif type(manager) is addonmanager.AddonManager and all(hasattr(manager, name) for name in NAMES):
            manager.__class__ = DirectAddonManager
            assert isinstance(manager, DirectAddonManager)
            self._manager = manager
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
        (of,) = hook.args()
        calls = asyncio.Task(
            self._manager.handle_lifecycle(hook),
            loop=asyncio.get_running_loop(),
            name=f"handle_hook({hook.name})",
            eager_start=True,
        )
        if calls.done() and not of.intercepted and not calls.cancelled() and calls.exception() is None:
            return None
        return HivemindWaitHook(Begun(calls, of))
