"""What is wrong with the cluster's engine, in words that a person can act on."""

import socket
import ssl
from collections.abc import Iterator

from redis import exceptions as client

from hivemind_addon.proxy.system.engine_url import PASSWORD_VARIABLE

_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""What OpenSSL says of an answer that is no TLS."""


_CROWDED = "max number of clients"


class TooOld(Exception):
    """The engine lacks commands; its version."""


def trouble(error: BaseException, prefix: str, *, handshake: bool = False) -> str:
    """What goes on after `the engine HOST:PORT`: what is wrong, and the cure where there is one.

    `prefix`: of the cluster's keys and channels. `handshake`: it is to speak TLS, and has not yet.
    Nothing of a password is in it.
    """
    causes = list(_chain(error))
    for cause in causes:
        match cause:
            case ssl.SSLCertVerificationError():
                return (
                    f"has a certificate that is not trusted ({cause.verify_message}); "
                    "name its CA with ?ssl_ca_certs=FILE in the URL"
                )
            case ssl.SSLError() if cause.reason in _NO_TLS:
                return "speaks no TLS there; write valkey:// for valkeys://, or its TLS port"
            case ssl.SSLError():
                return f"ended the TLS handshake ({cause.reason or 'no reason given'}); look at its certificates"
            case ConnectionRefusedError():
                return "is not there (connection refused)"
            case FileNotFoundError():
                return "is not there (no such socket)"
            case PermissionError():
                return "cannot be opened by you (permission denied)"
            case socket.gaierror():
                return f"cannot be found ({cause.strerror}); look at the name in the URL"
    match error:
        case TooOld():
            return f"is too old ({error}); a cluster needs Redis 6.2 or Valkey 7.2, or newer ones"
        case client.AuthenticationError():
            return f"refuses the user or the password; set {PASSWORD_VARIABLE}, and the user as in valkey://USER@HOST"
        case client.BusyLoadingError():
            return "is loading its data"
        case client.ReadOnlyError():
            return "is a read-only replica; name the primary"
        case client.OutOfMemoryError():
            return "has no memory left; raise its maxmemory, or give the cluster an engine of its own"
        case client.NoPermissionError():
            return (
                f"does not let this user do that ({_text(error)}); its ACL needs "
                f"`~{prefix}* &{prefix}* +@connection +@pubsub +@scripting +@read +@write +time "
                "-@admin -@dangerous +info`"
            )
        case client.MovedError() | client.ClusterError():
            return "is a node of a Redis Cluster; name a server that stands alone, or a primary with replicas"
        case client.ResponseError():
            return f"refuses what is asked of it ({_text(error)})"
        case client.TimeoutError() | TimeoutError() if handshake:
            return "does not answer a TLS handshake; name its TLS port, or write valkey:// if it has none"
        case client.TimeoutError() | TimeoutError():
            return "does not answer in time"
        case client.ConnectionError() if _CROWDED in str(error):
            return "has as many clients as it takes; raise its maxclients"
        case client.ConnectionError():
            closed = any(isinstance(one, ConnectionResetError | EOFError) for one in causes)
            closed |= "closed" in str(error).lower()
            return "has closed the connection" if closed else f"cannot be reached ({_text(error)})"
    return f"cannot be used ({type(error).__name__}: {_text(error)})"


def has_gone(error: BaseException) -> bool:
    """Whether the engine is only away: it may come back by itself, and nothing here is to be changed."""
    if any(isinstance(cause, ssl.SSLError | socket.gaierror | PermissionError) for cause in _chain(error)):
        return False
    if isinstance(error, client.AuthenticationError) or _CROWDED in str(error):
        return False
    return isinstance(error, client.ConnectionError | client.TimeoutError | OSError)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came of."""
    one: BaseException | None = error
    for _ in range(10):
        if one is None:
            return
        yield one
        one = one.__cause__ or one.__context__


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
