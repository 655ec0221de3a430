"""What a task is run with: its command line and an environment that leads through the proxy under its own name."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hivemind_addon.kernel.values.command import SetBudget
from hivemind_addon.kernel.values.spend import Period, Scope
from hivemind_addon.kernel.values.ticket import Delivery
from hivemind_addon.plugins.fleets.tasks import spec as specs
from hivemind_addon.plugins.fleets.tasks.model import RUNNER_VARIABLE, TASK_VARIABLE, TaskSpec
from hivemind_addon.plugins.fleets.tasks.process import TaskNotStarted
from hivemind_addon.proxy.api.control import CommandUnanswered, UnreadableReport, control_socket, send_command
from hivemind_addon.proxy.api.report import ProxyView
from hivemind_addon.proxy.system.clock import Clock
from hivemind_addon.proxy.system.folders import FolderNotPrivate
from hivemind_addon.tools.launch import background
from hivemind_addon.tools.launch.agent_environment import (
    NamelessSecret,
    NoBundle,
    agent_environment,
    asked_words,
    environment_changes,
    proved_name,
)
from hivemind_addon.tools.launch.programs import ProgramTable


class TaskLaunch(NamedTuple):
    """One try, ready to be started."""

    command: list[str]
    environment: dict[str, str]


class Launcher:
    """Makes tasks' launches, for one port. The caller holds `claim.use(port)` as long as it runs any."""

    def __init__(self, port: int, *, table: ProgramTable, clock: Clock, socket: Path) -> None:
        self._port = port
        self._table = table
        self._clock = clock
        self._socket = socket

    async def proxy(self) -> ProxyView:
        """The proxy, started if there is none (any more). Raises TaskNotStarted."""
        try:
            return await asyncio.to_thread(background.find_or_start, self._port, clock=self._clock)
        except (background.NotServed, UnreadableReport, FolderNotPrivate, OSError) as error:
            raise TaskNotStarted(f"{error}") from error

    async def launch(
        self, task_id: str, spec: TaskSpec, base: Mapping[str, str], more: Mapping[str, str]
    ) -> TaskLaunch:
        """`base`: the environment it is to have, `more`: what its runner adds. Raises TaskNotStarted."""
        proxy = await self.proxy()
        environment = {**base, **spec.environment}
        try:
            proved, secret = proved_name(environment)
        except NamelessSecret as error:
            raise TaskNotStarted(str(error)) from error
        has_budget = spec.budget_tokens is not None or spec.budget_usd is not None
        if proved and has_budget:
            raise TaskNotStarted(
                f"it runs as {proved}, whose secret it has: a budget of its own needs a name of its own"
            )
        name = proved or agent_name(task_id)
        if has_budget:
            await asyncio.to_thread(self._give_budget, name, spec)
        command, waits_s = self._table.patient(specs.command_line(spec, self._table))
        words = secret + asked_words(Delivery.WHOLE, priority=spec.priority, waits_s=waits_s, task=task_id)
        try:
            changed = await asyncio.to_thread(
                environment_changes, proxy, environment, agent=name, words=words, table=self._table
            )
            whole = await asyncio.to_thread(agent_environment, proxy, {**environment, **changed})
        except (NoBundle, FolderNotPrivate, OSError) as error:
            raise TaskNotStarted(str(error)) from error
        own = {TASK_VARIABLE: task_id, RUNNER_VARIABLE: str(self._socket)}
        return TaskLaunch(command, {**whole, **more, **own})

    def _give_budget(self, name: str, spec: TaskSpec) -> None:
        usd = spec.budget_usd
        wanted = SetBudget(
            scope=Scope.AGENT,
            name=name,
            per=Period.RUN,
            tokens=spec.budget_tokens,
            micro_usd=None if usd is None else round(usd * 1_000_000),
        )
        try:
            said = send_command(control_socket(self._port), wanted)
        except (CommandUnanswered, FolderNotPrivate, OSError) as error:
            raise TaskNotStarted(f"its budget could not be set: {error}") from error
        if not said.done:
            raise TaskNotStarted(f"its budget could not be set: {said.text}")


def agent_name(task_id: str) -> str:
    """A task's name in the proxy: `fleet.task`, which needs no quoting in a proxy's address."""
    return task_id.replace("/", ".")


def result_variable(name: str) -> str:
    """The variable that names the file with the result of a task that another depends on."""
    return "HIVEMIND_RESULT_" + re.sub(r"\W", "_", name).upper()
