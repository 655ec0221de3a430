"""A tool: its name and words for a model, what it takes and gives as types, and what it does."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct

from hivemind_addon.tools.mcp.session import Permission, Session

MAX_ROWS = 50
"""Of a list that a tool gives: it is read by a model, which pays for each word."""


class ToolFailed(Exception):
    """It cannot be done; one line for the model, with the cure."""


class ToolCancelled(Exception):
    """Its client wants no answer any more."""


class Effect(Enum):
    """What a call may change."""

    READS = "reads"
    """Nothing."""
    CHANGES = "changes"
    """It adds, or changes what can be changed back."""
    DESTROYS = "destroys"
    """Something may be lost by it, or money spent."""


class Call:
    """One call of a tool. It runs in a thread of its own."""

    def __init__(self, session: Session, tell: Callable[[float, float, str], None] | None = None) -> None:
        self.session = session
        self._tell = tell
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []

    def __repr__(self) -> str:
        return f"<Call of {self.session}{', stopped' if self.is_stopped else ''}>"

    @property
    def is_stopped(self) -> bool:
        """Whether nobody waits for its answer any more."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Nobody waits for its answer any more."""
        self._stopped.set()
        with self._lock:
            connections, self._connections = self._connections, []
        for connection in connections:
            with suppress(OSError):  # it is closed
                connection.shutdown(socket.SHUT_RDWR)

    def ends(self, connection: socket.socket) -> None:
        """Shut it down, so that whoever reads from it wakes, as soon as nobody waits for the answer any more."""
        with self._lock:
            self._connections.append(connection)
        if self.is_stopped:
            self.stop()

    def pause(self, pause_s: float) -> bool:
        """Let time pass; whether nobody waits for the answer any more."""
        return self._stopped.wait(pause_s)

    def progress(self, done: float, total: float, text: str) -> None:
        """Tell a client that asked for it how far the call is."""
        if self._tell is not None and not self.is_stopped:
            self._tell(done, total, text)


@dataclass(frozen=True, slots=True)
class McpTool[Taken: Struct, Given: Struct]:
    """One tool."""

    name: str
    title: str
    description: str
    """For a model: when to use it, what comes back."""
    takes: type[Taken]
    gives: type[Given]
    run: Callable[[Call, Taken], Given]
    """May block; raises what `server.EXPECTED` names."""
    effect: Effect = Effect.READS
    idempotent: bool = False
    """Whether a second call with the same arguments changes nothing more."""
    needs: frozenset[Permission] = frozenset()
    """One of these has to be allowed; empty: it is about the caller itself."""

    def called(self, call: Call, arguments: object) -> Struct:
        """Run it with plain JSON values. Raises ToolFailed where they are none that it takes."""
        try:
            # Not strict: some models write numbers as texts.
            taken = msgspec.convert(arguments, self.takes, strict=False)
        except msgspec.ValidationError as error:
            raise ToolFailed(f"{self.name}: {error}") from error
        return self.run(call, taken)


def tool[Taken: Struct, Given: Struct](
    title: str,
    *,
    effect: Effect = Effect.READS,
    idempotent: bool = False,
    needs: frozenset[Permission] = frozenset(),
) -> Callable[[Callable[[Call, Taken], Given]], McpTool[Taken, Given]]:
    """Make a tool of a function, whose name, docstring and types it has. A tool that only reads is idempotent."""

    def make(run: Callable[[Call, Taken], Given]) -> McpTool[Taken, Given]:
        _, takes, gives = get_type_hints(run).values()
        return McpTool(
            name=run.__name__,
            title=title,
            description=" ".join((run.__doc__ or "").split()),
            takes=takes,
            gives=gives,
            run=run,
            effect=effect,
            idempotent=idempotent or effect is Effect.READS,
            needs=needs,
        )

    return make


class NoArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """No arguments."""


def schema_of(cls: type[Struct]) -> dict[str, Any]:
    """A type's JSON schema without references, which not every client follows."""
    schema = msgspec.json.schema(cls)
    definitions = schema.pop("$defs", {})
    whole: dict[str, Any] = _resolved(schema, definitions)
    whole.pop("description", None)  # the tool has its own
    whole.setdefault("properties", {})
    if not whole.get("required"):
        whole.pop("required", None)
    return whole


def _resolved(part: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(part, list):
        return [_resolved(one, definitions) for one in part]
    if not isinstance(part, dict):
        return part
    if reference := part.get("$ref"):
        more = {key: value for key, value in part.items() if key != "$ref"}
        return _resolved(definitions[reference.removeprefix("#/$defs/")] | more, definitions)
    named = part.get("properties") if isinstance(part.get("properties"), dict) else None
    kept = {key: value for key, value in part.items() if key != "properties" and not _is_title(key, value)}
    resolved = {key: _resolved(value, definitions) for key, value in kept.items()}
    if named is not None:
        resolved["properties"] = {key: _resolved(value, definitions) for key, value in named.items()}
    return resolved


def _is_title(key: str, value: object) -> bool:
    """A class's name, which tells a model nothing."""
    return key == "title" and isinstance(value, str)
