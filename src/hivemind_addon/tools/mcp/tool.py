"""A tool: a function whose name, docstring, parameters and answer are the words, arguments and results for a model."""

import inspect
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_type_hints

import msgspec
from mcp import types
from msgspec import Struct

from hivemind_addon.tools.mcp.session import Permission, Session, ToolFailed

MAX_ROWS = 50
"""Rows of a list in an answer: the model that reads the list pays for each word."""
_MICRO_USD, _USD = "micro_usd", "usd"


class ToolCancelled(Exception):
    """The client does not want the answer any more."""


class Effect(Enum):
    """Whether a call may change something."""

    READS = "reads"
    """Nothing changes."""
    CHANGES = "changes"
    """Something is added, or changed in a way that can be undone."""
    DESTROYS = "destroys"
    """Something may be lost, or money spent."""


class Call:
    """A call of a tool, which runs in a separate thread."""

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
        """Whether nobody waits for the answer any more."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Nobody waits for the answer any more."""
        self._stopped.set()
        with self._lock:
            connections, self._connections = self._connections, []
        for connection in connections:
            with suppress(OSError):  # it is closed
                connection.shutdown(socket.SHUT_RDWR)

    def ends(self, connection: socket.socket) -> None:
        """Shut a connection down, which wakes the reader, as soon as nobody waits for the answer any more."""
        with self._lock:
            self._connections.append(connection)
        if self.is_stopped:
            self.stop()

    def pause(self, pause_s: float) -> bool:
        """Let time pass; whether nobody waits for the answer any more."""
        return self._stopped.wait(pause_s)

    def progress(self, done: float, total: float, text: str) -> None:
        """Report to a client that asked for progress how far the call is."""
        if self._tell is not None and not self.is_stopped:
            self._tell(done, total, text)


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool."""

    shown: types.Tool
    """The tool as clients see it."""
    takes: type[Struct]
    run: Callable[..., Struct]
    """Takes the call, then the fields of `takes`. May block; raises the exceptions in `server.EXPECTED`."""
    needs: tuple[Permission, ...]
    """One of these has to be allowed; empty: the tool is about the caller alone."""

    def called(self, call: Call, arguments: object) -> dict[str, Any]:
        """Run with plain JSON values, give plain JSON values. Raises ToolFailed for arguments that do not fit."""
        try:
            # Not strict: some models write numbers as texts.
            taken = msgspec.convert(arguments, self.takes, strict=False)
        except msgspec.ValidationError as error:
            raise ToolFailed(f"{self.shown.name}: {error}") from error
        given = self.run(call, **{name: getattr(taken, name) for name in taken.__struct_fields__})
        return dict(_for_model(msgspec.to_builtins(given)))


def tool(
    title: str,
    *needs: Permission,
    effect: Effect = Effect.READS,
    idempotent: bool = False,
    takes: type[Struct] | None = None,
) -> Callable[[Callable[..., Struct]], McpTool]:
    """Make a tool of a function. A tool that only reads is idempotent.

    `takes`: the arguments of a function that has `**arguments`.
    """

    def make(run: Callable[..., Struct]) -> McpTool:
        hints = get_type_hints(run, include_extras=True)
        _, *parameters = inspect.signature(run).parameters.values()
        fields = [
            (one.name, hints[one.name], msgspec.NODEFAULT if one.default is one.empty else one.default)
            for one in parameters
        ]
        taken = takes or msgspec.defstruct(run.__name__, fields, kw_only=True, forbid_unknown_fields=True)
        shown = types.Tool(
            name=run.__name__,
            title=title,
            description=" ".join((run.__doc__ or "").split()),
            inputSchema=schema_of(taken),
            outputSchema=schema_of(hints["return"]),
            annotations=types.ToolAnnotations(
                title=title,
                readOnlyHint=effect is Effect.READS,
                destructiveHint=effect is Effect.DESTROYS,
                idempotentHint=idempotent or effect is Effect.READS,
                openWorldHint=False,
            ),
        )
        return McpTool(shown, taken, run, needs)

    return make


class ActionResult(Struct, frozen=True):
    """The result of the action."""

    done: bool
    text: str


def picked[Made: Struct](made: type[Made], *sources: object, **fields: object) -> Made:
    """A value of these fields, and for all others those of the same name of the first source that has them."""
    for name in made.__struct_fields__:
        source = next((one for one in sources if hasattr(one, name)), None)
        if name not in fields and source is not None:
            fields[name] = getattr(source, name)
    return made(**fields)


# How a model reads values: spans in tenths of a second, money in US dollars, no references in schemas -----------------


def schema_of(cls: type[Struct]) -> dict[str, Any]:
    """The JSON schema of a type, without references, which not every client follows."""
    schema = msgspec.json.schema(cls)
    whole = dict(_schema_for_model(schema, schema.pop("$defs", {})))
    whole.pop("description", None)  # the tool has a better description
    return {"properties": {}, **whole}


def _schema_for_model(part: Any, definitions: dict[str, Any], money: str = "") -> Any:
    match part:
        case {"$ref": str(reference), **more}:
            return _schema_for_model(definitions[reference.removeprefix("#/$defs/")] | more, definitions, money)
        case dict():
            return {
                key.replace(_MICRO_USD, _USD): _schema_for_model(
                    value, definitions, key if key.endswith(_MICRO_USD) else money
                )
                for key, value in part.items()
                # The name of a class says nothing to a model.
                if (key, value) != ("required", []) and not (key == "title" and isinstance(value, str))
            }
        case list():
            return [_schema_for_model(one, definitions, money) for one in part]
        case "integer" if money:
            return "number"
        case str():
            return part.replace(_MICRO_USD, _USD)  # in a list of required fields
    return part


def _for_model(value: Any, name: str = "") -> Any:
    match value:
        case dict():
            return {key.replace(_MICRO_USD, _USD): _for_model(one, key) for key, one in value.items()}
        case list() | tuple():
            return [_for_model(one) for one in value]
        case int() if name.endswith(_MICRO_USD):
            return value / 1e6
        case float() if name.endswith("_s"):
            return round(value, 1)
    return value
