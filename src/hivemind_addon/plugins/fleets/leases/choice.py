"""Which store of leases is meant: this machine's file, or a cluster's engine."""

import sys
from collections.abc import Mapping
from dataclasses import replace

from msgspec import Struct

from hivemind_addon.plugins.fleets.leases.model import LeaseError, LeaseStore
from hivemind_addon.plugins.fleets.leases.sqlite_store import SqliteLeases, default_lease_file
from hivemind_addon.proxy.system.engine_url import (
    CLUSTER_NAME_VARIABLE,
    CLUSTER_VARIABLE,
    DEFAULT_CLUSTER,
    OFF,
    BadEngineUrl,
    EngineAddress,
    check_cluster_name,
    kept_password,
    parse_engine_url,
)

_TRIES_IN_A_LEASE = 6
"""So that a holder whose engine is silent has tried to renew, and knows it, well before the lease's end."""
_LEAST_PATIENCE_S = 0.5


class LeasePlace(Struct, frozen=True):
    """As it is said; nothing is looked at before it is used."""

    url: str = ""
    """An engine's; empty or `off`: the machine's file."""
    name: str = DEFAULT_CLUSTER
    by_option: bool = False
    """Whether the URL comes from the command line, and not from the environment."""
    name_by_option: bool = False

    def open(self, environment: Mapping[str, str], ttl_s: float | None = None) -> LeaseStore:
        """The store, to be closed; `ttl_s`: of the lease that it is to keep. Raises LeaseError, not for what is gone.

        The environment may hold the engine's user and password.
        """
        if not self._is_shared:
            return SqliteLeases(default_lease_file())
        address = self._address(environment)
        if not address.password:  # an agent's environment has none
            address = replace(address, password=kept_password(address))
        try:
            from hivemind_addon.plugins.fleets.leases.engine_store import MOST_PATIENCE_S, EngineLeases  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise LeaseError(
                f"{self._option} needs {error.name}: {sys.executable} -m pip install 'hivemind-addon[cluster]'"
            ) from error
        patience_s = MOST_PATIENCE_S if ttl_s is None else max(_LEAST_PATIENCE_S, ttl_s / _TRIES_IN_A_LEASE)
        return EngineLeases(address, self.name, patience_s=patience_s)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "LeasePlace":
        """As the environment alone says it."""
        name = environment.get(CLUSTER_NAME_VARIABLE, "") or DEFAULT_CLUSTER
        return cls(environment.get(CLUSTER_VARIABLE, ""), name)

    @property
    def has_secret(self) -> bool:
        """Whether the command line holds a password, which must not reach the environment of others."""
        return self._is_shared and self.by_option and bool(self._address({}).password)

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """What a process needs in its environment, beside what it inherits, to mean the same. Raises LeaseError."""
        said: dict[str, str] = {}
        if self.by_option and not self.has_secret:
            said[CLUSTER_VARIABLE] = self._address(environment).shown if self._is_shared else OFF
        if said or self.name_by_option:
            said[CLUSTER_NAME_VARIABLE] = self.name
        return said

    @property
    def _is_shared(self) -> bool:
        return self.url not in ("", OFF)

    @property
    def _option(self) -> str:
        return "--cluster" if self.by_option else CLUSTER_VARIABLE

    def _address(self, environment: Mapping[str, str]) -> EngineAddress:
        try:
            check_cluster_name(self.name)
            return parse_engine_url(self.url, environment, option=self._option)
        except BadEngineUrl as error:
            raise LeaseError(str(error)) from None
