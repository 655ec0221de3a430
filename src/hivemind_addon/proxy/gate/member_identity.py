"""Whose agents and accounts the members of a cluster take for the same: what options and the environment say of it."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

from hivemind_addon.formats.wire.identity import ALONE, Machine
from hivemind_addon.formats.wire.proxy_user import short_hash
from hivemind_addon.proxy.gate.settings import BadOption
from hivemind_addon.proxy.run.option_table import APART, JOINED
from hivemind_addon.proxy.system.engine_url import SECRET_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mitmproxy import optmanager

_LEAST_SECRET_CHARS = 16
_LONGEST_NAME = 63
_NAME = re.compile(rf"[\w.-]{{1,{_LONGEST_NAME}}}", re.ASCII)


def read_machine(options: optmanager.OptManager, environment: Mapping[str, str], *, has_cluster: bool) -> Machine:
    """What a proxy has to say of its machine; ALONE: it is in no cluster. Raises BadOption."""
    agents, host = options.hivemind_cluster_agents, options.hivemind_cluster_host
    if agents not in (JOINED, APART):
        raise BadOption(f"hivemind_cluster_agents: {agents!r} is neither {JOINED} nor {APART}")
    if host and not _NAME.fullmatch(host):
        raise BadOption(f"hivemind_cluster_host: {host!r} is no name; use letters, digits, `-` and `.`, at most 63")
    if not has_cluster:
        for name, is_said in (("agents", agents != JOINED), ("host", bool(host))):
            if is_said:
                raise BadOption(f"hivemind_cluster_{name}: there is no cluster; say hivemind_cluster=URL, too")
        return ALONE
    secret = environment.get(SECRET_VARIABLE, "")
    if 0 < len(secret) < _LEAST_SECRET_CHARS:
        raise BadOption(f"{SECRET_VARIABLE}: it is shorter than 16 characters; `openssl rand -hex 32` makes one")
    own = re.sub(r"[^\w.-]", "-", socket.gethostname(), flags=re.ASCII)[:_LONGEST_NAME]
    return Machine(has_own_agents=agents == APART, name=host or own or "host", account_key=secret.encode())


def identity_of(machine: Machine) -> str:
    """What members compare, so that a person hears where they differ. It tells nobody the secret."""
    key = machine.account_key
    return f"{APART if machine.has_own_agents else JOINED} {short_hash('hivemind', key=key) if key else ''}"
