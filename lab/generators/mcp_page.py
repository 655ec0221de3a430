"""The generated parts of docs/mcp.md, from the tools themselves. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hivemind_addon.tools.mcp.session import Permission
from hivemind_addon.tools.mcp.tool import McpTool
from hivemind_addon.tools.mcp.tools import TOOLS


def parts() -> Mapping[str, str]:
    """The generated parts of the page, by the names of their marks."""
    return {
        "permissions": "\n".join(_permissions()),
        "own tools": "\n".join(_sections(tool for tool in TOOLS if not tool.needs)),
        "allowed tools": "\n".join(_sections(tool for tool in TOOLS if tool.needs)),
    }


def _permissions() -> Iterator[str]:
    yield from ("| Word | Tools |", "| --- | --- |")
    for permission in Permission:
        names = ", ".join(f"`{tool.shown.name}`" for tool in TOOLS if permission in tool.needs)
        yield f"| `{permission.value}` | {names} |"


def _sections(tools: Iterable[McpTool]) -> Iterator[str]:
    for tool in tools:
        yield f"### {tool.shown.name}\n"
        yield f"{tool.shown.description}\n"
        if rows := list(_arguments(tool.shown.inputSchema)):
            yield "\n".join(("| Argument | Value | Default | |", "| --- | --- | --- | --- |", *rows)) + "\n"


def _arguments(schema: Mapping[str, Any]) -> Iterator[str]:
    for name, inner in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else _default(inner.get("default"))
        about = inner.get("description", "")
        yield f"| `{name}` | {_value(inner)} | {default} | {about} |".replace("  |", " |")


def _value(schema: Mapping[str, Any]) -> str:
    if either := schema.get("anyOf"):
        return " or ".join(_value(one) for one in either)
    if words := schema.get("enum"):
        return ", ".join(f"`{word}`" for word in words)
    if schema["type"] == "array":
        return f"list of {_value(schema['items'])}s"
    kinds = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    kind = kinds.get(schema["type"], str(schema["type"]))
    least, most = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    if most is not None and least is not None:
        return f"{kind}, {least:,} to {most:,}"
    return kind


def _default(value: object) -> str:
    if value is None or value in ("", (), []):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
