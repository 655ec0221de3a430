"""Which cluster a proxy belongs to, as its options say, and the connections to its engine."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hivemind_addon.proxy.system.engine_url import BadEngineUrl, EngineAddress, check_cluster_name, parse_engine_url

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """An engine, and the name of the cluster there."""

    address: EngineAddress
    name: str
    identity: str = ""
    """How this proxy tells agents and accounts apart: all members have to do it alike."""


def read_cluster(url: str, name: str, environment: Mapping[str, str]) -> ClusterSettings:
    """What options say. Raises BadEngineUrl."""
    name = check_cluster_name(name, option="hivemind_cluster_name")
    address = parse_engine_url(url, environment, option="hivemind_cluster")
    try:
        import redis.asyncio.connection  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        missing = error.name or "redis"
        raise BadEngineUrl(
            f"hivemind_cluster needs {missing}: {sys.executable} -m pip install 'hivemind-addon[cluster]'"
        ) from error
    return ClusterSettings(address, name)


def connection_maker(address: EngineAddress) -> "Callable[[], AbstractConnection]":
    """What makes a connection that is not open yet: for RESP2, and without a time limit of its own."""
    from redis.asyncio.connection import Connection, parse_url  # noqa: PLC0415 - an extra, which was looked for

    options: dict[str, Any] = dict(parse_url(address.redis_url))
    kind = options.pop("connection_class", Connection)
    return lambda: kind(**options, protocol=2, socket_timeout=None)
