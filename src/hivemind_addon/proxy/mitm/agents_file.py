"""The agents file while the proxy runs: read again when it has changed, so that raising a budget needs no restart."""

import logging
from collections.abc import Callable
from pathlib import Path

from hivemind_addon.proxy.profile.agents import load_agents
from hivemind_addon.proxy.profile.grants import AgentRules, Allowance
from hivemind_addon.system.typed import DocumentError

logger = logging.getLogger("hivemind")

LOOK_EVERY_S = 2.0


class AgentsFile:
    """The rules of one file; without a file, none. Raises DocumentError when the file is bad at the start."""

    def __init__(self, file: Path | None, *, total: Allowance | None = None, each: Allowance | None = None) -> None:
        """`total` and `each`: budgets for this run, of everyone and of each agent, before the file's."""
        self.file = file
        self._allotted = (total, each)
        self._rules = self._load()
        self._stamp = self._read_stamp()
        self._looked_at = float("-inf")

    def __repr__(self) -> str:
        return f"<AgentsFile {self.file}>"

    def rules(self, now: float, *, log: Callable[..., None] = logger.error) -> AgentRules:
        """The newest rules that are good: a file that was changed for the worse is told of, once."""
        if self.file and now >= self._looked_at + LOOK_EVERY_S:
            self._looked_at = now
            stamp = self._read_stamp()
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._rules = self._load()
                except DocumentError as error:
                    log("hivemind: %s (the rules stay as they were)", error)
        return self._rules

    def _load(self) -> AgentRules:
        rules = load_agents(self.file) if self.file else AgentRules()
        return rules.allot(*self._allotted)

    def _read_stamp(self) -> tuple[int, int] | None:
        if self.file is None:
            return None
        try:
            state = self.file.stat()
        except OSError:
            return None
        return state.st_mtime_ns, state.st_size
