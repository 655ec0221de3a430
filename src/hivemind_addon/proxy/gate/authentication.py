"""Which agent a client is, proved by a secret: the option `hivemind_agent_secrets`. Without it nobody is asked.

The secret comes in `Proxy-Authorization`, as a proxy's address has it: with the CONNECT, which counts for all that its
tunnel carries, else with each request, also in reverse mode. What a secret has proved is remembered by a keyed digest,
so that only the first request with it takes milliseconds.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import os
from typing import TYPE_CHECKING, NamedTuple

from mitmproxy import http

from hivemind_addon.formats.wire.proxy_user import clean
from hivemind_addon.proxy.api.agent_secrets import read_secrets, split_password
from hivemind_addon.proxy.gate.followed_file import FollowedFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mitmproxy.connection import Client

    from hivemind_addon.proxy.api.agent_secrets import SecretHash
    from hivemind_addon.proxy.run.guard import Guard

logger = logging.getLogger("hivemind")

HEADER = "proxy-authorization"
_CURE = (
    b"its proxy address is http://NAME:SECRET@HOST:PORT; `hivemind agent add NAME` makes a secret, "
    b"`hivemind agent rotate NAME` a new one\n"
)
_ASKED = b"hivemind: this proxy asks each agent for its name and secret: " + _CURE
_WRONG = b"hivemind: no agent has this name and secret: " + _CURE
_BROKEN = b"hivemind: this proxy cannot tell who asks just now; its log says why\n"
_MOST_KNOWN = 4096
_MOST_TOLD = 100
_MOST_GUESSES = 20
_GUESSES_S = 60.0
"""So many wrong secrets may come from an address in so many seconds; then new ones are refused unlooked at."""


class Proof(NamedTuple):
    """A name that its secret has proved."""

    name: str
    words: str
    """What the agent asks for, beside the secret."""
    known_by: SecretHash


class AgentSecrets:
    """The secrets of one file, read again when it changes. Raises DocumentError where it is bad at the start."""

    def __init__(self, file: Path) -> None:
        self._agents = FollowedFile(file, read_secrets, stays="the agents stay as they were")
        self._key = os.urandom(32)
        self._known: dict[bytes, bool] = {}
        """Keyed digest of a hash and a secret → whether they belong together."""
        self._guesses: dict[str, tuple[float, int]] = {}
        """Address → since when, and how many wrong secrets."""

    def prove(self, user: str, password: str, *, address: str, now: float) -> Proof | None:
        """None: no agent has this name and secret."""
        known_by = self._agents.current(now).get(user)
        if known_by is None:
            return None
        secret, words = split_password(password)
        what = known_by.hash + secret.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(what, key=self._key).digest()
        is_right = self._known.get(digest)
        if is_right is None:
            is_right = self._look_at(known_by, secret, address, now)
            if is_right is not None:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[digest] = is_right
        return Proof(user, words, known_by) if is_right else None

    def hold(self, proof: Proof, now: float) -> bool:
        """Whether the name still has this secret."""
        return self._agents.current(now).get(proof.name) == proof.known_by

    def _look_at(self, known_by: SecretHash, secret: str, address: str, now: float) -> bool | None:
        since, count = self._guesses.get(address, (now, 0))
        if now >= since + _GUESSES_S:
            since, count = now, 0
        if count >= _MOST_GUESSES:
            return None  # guessing would take the event loop from all others
        if known_by.is_of(secret):
            return True
        if len(self._guesses) >= _MOST_KNOWN:
            self._guesses.clear()
        self._guesses[address] = since, count + 1
        return False


class Authentication:
    """Asks clients who they are. On the event loop."""

    def __init__(self, secrets: AgentSecrets | None, *, now: Callable[[], float], guard: Guard) -> None:
        self.secrets = secrets
        """Replaced when the option changes; None: no client is asked."""
        self._now = now
        self._guard = guard
        self._tunnels: dict[str, Proof] = {}
        """Client connection id → what its CONNECT has proved."""
        self._told: set[tuple[str, str]] = set()

    @property
    def is_on(self) -> bool:
        """Whether clients are asked at all."""
        return self.secrets is not None

    def refuse(self, flow: http.HTTPFlow) -> http.Response | None:
        """What a CONNECT or a request gets that proves no name; None: it goes on, its name is known. Never raises.

        The header with the secret is taken off: it is for nobody else.
        """
        if flow.is_replay:
            return None  # a person's own
        try:
            said = flow.request.headers.pop(HEADER, "")
            is_tunnel = flow.request.method == "CONNECT"
            proof, answer = self._judge(flow.client_conn, said, 407, is_tunnel=is_tunnel)
        except Exception as error:  # noqa: BLE001 - the guard at the edge; who cannot be asked does not pass
            self._guard.trip("authentication", error)
            return _make(503, _BROKEN)
        if proof is not None:
            flow.metadata["proxyauth"] = proof.name, proof.words
        return answer

    def refuse_reader(self, request: http.Request, client: Client, *, is_proxied: bool) -> http.Response | None:
        """The same for a page, which a browser asks for with `Authorization`."""
        said = request.headers.get(HEADER if is_proxied else "authorization", "")
        return self._judge(client, said, 407 if is_proxied else 401, is_tunnel=False)[1]

    def name_in(self, client: Client) -> str:
        """The name that a CONNECT has proved; empty: none."""
        proof = self._tunnels.get(client.id)
        return proof.name if proof is not None else ""

    def forget(self, client: Client) -> None:
        """The connection has ended."""
        self._tunnels.pop(client.id, None)

    def _judge(
        self, client: Client, said: str, status: int, *, is_tunnel: bool
    ) -> tuple[Proof | None, http.Response | None]:
        """What is proved, and what is answered where nothing is."""
        agents, now = self.secrets, self._now()
        if agents is None:
            return None, None
        if not said:
            proof = self._tunnels.get(client.id)
            if proof is not None and agents.hold(proof, now):
                return proof, None
            return None, _make(status, _ASKED)
        user, password = basic(said)
        address = str(client.peername[0])
        proof = agents.prove(user, password, address=address, now=now)
        if proof is None:
            self._tell(user, address)
            return None, _make(status, _WRONG)
        if is_tunnel:
            self._tunnels[client.id] = proof
        return proof, None

    def _tell(self, user: str, address: str) -> None:
        if (user, address) in self._told or len(self._told) >= _MOST_TOLD:
            return
        self._told.add((user, address))
        who = repr(clean(user)) if user else "an agent without a name"
        logger.warning("hivemind: %s at %s is refused: no such name and secret in hivemind_agent_secrets", who, address)


def basic(said: str) -> tuple[str, str]:
    """User and password of a header's Basic credentials; empty: it has none."""
    scheme, _, encoded = said.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return user, password


def _make(status: int, text: bytes) -> http.Response:
    headers = {"Content-Type": "text/plain; charset=utf-8"}
    if status in (401, 407):
        name = "WWW-Authenticate" if status == 401 else "Proxy-Authenticate"
        headers[name] = 'Basic realm="hivemind"'
    return http.Response.make(status, text, headers)
