"""The generated parts of docs/: written from the code, so that they cannot disagree with the code."""

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum, IntEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from hivemind_addon.formats.base.typed import Signed
from hivemind_addon.formats.profile.formats import packaged_formats
from hivemind_addon.formats.profile.grants import AgentGrants, AgentRules, Allowance, Compaction, CompactionBy, Grants
from hivemind_addon.formats.profile.model import Profile
from hivemind_addon.kernel.order.entry import TRANSITIONS, WAITING, EntryState
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.values.events import Event
from hivemind_addon.kernel.values.spend import Period
from hivemind_addon.kernel.values.ticket import Priority
from hivemind_addon.proxy.record.contexts import Contexts
from hivemind_addon.proxy.record.metrics import Metrics
from hivemind_addon.proxy.record.sums import Sums
from hivemind_addon.proxy.run.option_table import OPTIONS
from hivemind_addon.sim.faults import NAMED
from hivemind_addon.sim.library import SCENARIO_RULES, ScenarioFile
from hivemind_addon.sim.random_loads import KINDS, PARTS
from hivemind_addon.tools.commands.index import SECTIONS
from lab.generators import mcp_page, provider_page, tool_page
from lab.generators.command_help import every_command, help_of
from lab.generators.docstrings import field_docstrings
from lab.generators.json_schema import json_schema
from lab.generators.schemas import CONFIG, DOCUMENTS, config_schema
from lab.markdown import markdown_filled, markdown_table

_CHECKOUT = Path(__file__).resolve().parents[2]


def generate() -> dict[Path, str]:
    """Every page with generated parts, and every schema, as they should be. They lie in the checkout."""
    folder = _CHECKOUT / "docs"
    parts: Mapping[str, Mapping[str, str]] = {
        "agents.md": {"keys": _agents()},
        "cli.md": {"commands": _cli()},
        "decisions/README.md": {"records": _decisions(sorted((folder / "decisions").glob("[0-9]*.md")))},
        "design.md": {"states": _states()},
        "events.md": {"events": _events()},
        "mcp.md": mcp_page.parts(),
        "metrics.md": {"metrics": _metrics()},
        "options.md": {"options": _options()},
        "profiles.md": {"formats": _code(packaged_formats()), "keys": _keys(Profile, "a profile")},
        "providers.md": provider_page.parts(_CHECKOUT / "tests" / "formats" / "wire" / "data"),
        "tools.md": {"ready profiles": tool_page.ready_profiles()},
        "worlds.md": {"keys": _keys(ScenarioFile, "a world"), "faults": _code(NAMED), "proportions": _proportions()},
    }
    pages = {folder / name: markdown_filled((folder / name).read_text("utf-8"), some) for name, some in parts.items()}
    schemas = {name: json_schema(kind) for name, kind in DOCUMENTS.items()} | {CONFIG: config_schema()}
    return pages | {
        _CHECKOUT / "src" / "hivemind_addon" / "data" / "schemas" / f"{name}.json": _as_json(schema)
        for name, schema in schemas.items()
    }


def _as_json(schema: Mapping[str, object]) -> str:
    return msgspec.json.format(msgspec.json.encode(schema)).decode() + "\n"


def check() -> list[str]:
    """The pages that are not as `generate` would write them, by their path in the checkout."""
    return [str(page.relative_to(_CHECKOUT)) for page in _stale()]


def write() -> list[Path]:
    """Write the pages; the ones that were stale."""
    stale = _stale()
    for page, text in stale.items():
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    return list(stale)


def _stale() -> dict[Path, str]:
    return {
        page: text
        for page, text in generate().items()
        if not page.is_file() or page.read_text(encoding="utf-8") != text
    }


def render_fields(cls: type) -> str:
    """A dataclass's fields as a Markdown table: name, type, default and the docstring under the field."""
    return _table(cls, _written(cls))


def _table(cls: type, chosen: Iterable["Field[Any]"]) -> str:
    said = field_docstrings(cls)
    hints = get_type_hints(cls)
    rows = (
        _row(f"`{one.name}`", _type_words(hints[one.name]) + _unit(one.name), _default(one), said.get(one.name, ""))
        for one in chosen
    )
    return markdown_table("Key | Value | Default | Meaning", rows)


def _row(*cells: str) -> str:
    return " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells)


def _options() -> str:
    rows = []
    for option in OPTIONS:
        value = "list of texts" if option.type == Sequence[str] else _type_words(option.type)
        default = f"`{option.default}`".lower() if option.default not in ("", []) else ""
        rows.append(f"`{option.name}` | {value} | {default} | {option.help}")
    return markdown_table("Option | Value | Default | Meaning", rows)


def _cli() -> str:
    from hivemind_addon.tools.cli import main  # noqa: PLC0415 - an entry point: what it loads asks for these pages, too

    rows = []
    for heading, entries in SECTIONS.items():
        rows += [f"**{heading}** |", *(f"[`{one.name}`](#hivemind-{one.name}) | {one.about}" for one in entries)]
    parts = [markdown_table("Command |", rows)]
    for path, command in every_command(main):
        if not command.hidden:
            level = "#" * len(path.split())
            parts += [f"{level} {path}\n", f"```text\n{help_of(path, command)}\n```\n"]
    return "\n".join(parts)


def _events() -> str:
    kinds: tuple[type, ...] = get_args(Event)
    parts = ["## Kinds\n", *(_event_table(kind) for kind in kinds)]
    parts += ["## Values in them\n", *(_event_table(kind) for kind in _values_in(kinds))]
    return "\n".join(parts)


def _event_table(kind: type) -> str:
    said = field_docstrings(kind)
    hints = get_type_hints(kind)
    rows = (_row(f"`{name}`", _json_words(hint), said.get(name, "")) for name, hint in hints.items())
    return f"### {kind.__name__}\n\n{_summary(kind)}\n\n{markdown_table('Field | Value | Meaning', rows)}"


def _values_in(kinds: Iterable[type]) -> list[type]:
    """The objects that stand in fields, in the order of their first mention."""
    found: dict[type, None] = {}
    for kind in kinds:
        own = [one for hint in get_type_hints(kind).values() for one in (hint, *get_args(hint)) if _is_object(one)]
        for one in (*own, *_values_in(own)):
            found.setdefault(one)
    return list(found)


def _is_object(hint: Any) -> bool:
    return isinstance(hint, type) and (issubclass(hint, Struct) or is_dataclass(hint))


def _json_words(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return f"list of {_json_words(get_args(hint)[0])}"
    if isinstance(hint, UnionType):
        return " or ".join("null" if one is NoneType else _json_words(one) for one in get_args(hint))
    if _is_object(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if issubclass(hint, Enum):
        return "one of " + ", ".join(f"`{one.value}`{f' ({_word(one)})' * issubclass(hint, IntEnum)}" for one in hint)
    return {str: "text", int: "whole number", float: "number", bool: "true or false"}[hint]


def _decisions(records: Iterable[Path]) -> str:
    rows = []
    for record in records:
        title, _, said = record.read_text(encoding="utf-8").removeprefix("# ").partition("\n\n")
        number, _, words = title.partition(". ")
        date, _, status = said.partition("\n\n")[0].rstrip(".").partition(", ")
        rows.append(f"{number} | [{words}]({record.name}) | {date} | {status}")
    return markdown_table("| Decision | Date | Status", rows)


def _states() -> str:
    """The states of a ticket in a pool: their picture, and which may follow which."""
    _, picture, about = (inspect.getdoc(EntryState) or "").split("\n\n")
    said = field_docstrings(EntryState)
    rows = []
    for state in EntryState:
        after = TRANSITIONS[state]
        words = [one.value for one in EntryState if one in after and not (after >= WAITING and one in WAITING)]
        every = ["any that waits"] if after >= WAITING else []
        rows.append(f"{state.value} | {said.get(state.name, '')} | {', '.join((*every, *words))}")
    return f"```text\n{picture}\n```\n\n{about}\n\n{markdown_table('State | Meaning | May become', rows)}"


def _metrics() -> str:
    rows = []
    for one in Metrics(Sums(), Contexts()).described():
        labels = ", ".join(f"`{label}`" for label in one.labels)
        rows.append(f"`{one.name}` | {one.type} | {labels} | {one.help}")
    return markdown_table("Metric | Type | Labels | Meaning", rows)


def _agents() -> str:
    parts = ["## Keys of the file\n", render_fields(AgentRules)]
    for title, cls in (("`groups`, `everyone` and `agents`", Grants), ("`agents` only", AgentGrants)):
        own = [one for one in fields(cls) if one.name in field_docstrings(cls)]
        parts += [f"## {title}\n", f"{_summary(cls)}\n", _table(cls, own)]
    inner: Mapping[str, type] = {"budgets": Allowance, "compaction": Compaction}
    for name, one in inner.items():
        parts += [f"## `{name}`\n", f"{_summary(one)}\n", render_fields(one)]
    parts += ["## Words\n", *_words([Period, Priority, CompactionBy])]
    return "\n".join(parts)


def _words(enums: Sequence[type[Enum]]) -> list[str]:
    parts = []
    for enum in enums:
        said = field_docstrings(enum)
        words = [f"- `{_word(one)}`{_colon(said.get(one.name, ''))}" for one in enum]
        parts += [f"### {enum.__name__}\n", f"{_summary(enum)}\n", "\n".join(words) + "\n"]
    return parts


def _word(one: Enum) -> str:
    return one.name.lower() if isinstance(one, IntEnum) else str(one.value)


def _keys(document: type, name: str) -> str:
    """All keys of a kind of YAML file, and the words that may stand there."""
    parts = [f"## Keys of {name}\n", render_fields(document)]
    nested = _nested(document)
    for cls, keys in nested.items():
        title = ", ".join(f"`{key}`" for key in keys)
        parts += [f"## {title}\n", f"{_summary(cls)}\n", render_fields(cls)]
    return "\n".join([*parts, "## Words\n", *_words(_enums(document, *nested))])


def _proportions() -> str:
    rows = [f"{name.replace(': ', ' | ', 1)} | {share:.0%}" for name, share in PARTS.items()]
    kinds = []
    for name, words in KINDS.items():
        whole = sum(words.values())
        kinds.append(_row(name, ", ".join(f"{word} {often / whole:.0%}" for word, often in words.items())))
    return markdown_table("Of | Part | Share", rows) + "\n" + markdown_table("Choice | Shares", kinds)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _colon(text: str) -> str:
    return f": {' '.join(text.split())}" if text else ""


def _summary(cls: type) -> str:
    return " ".join((inspect.getdoc(cls) or "").split())


def _written(cls: type) -> Iterator["Field[Any]"]:
    """The fields that a YAML file may set."""
    return (one for one in fields(cls) if one.name not in SCENARIO_RULES.unwritten.get(cls, ()))


def _nested(cls: type, at: str = "") -> dict[type, list[str]]:
    """The settings below the keys of a dataclass, and below theirs, with all the keys that they stand under."""
    hints = get_type_hints(cls)
    found: dict[type, list[str]] = {}
    for one in _written(cls):
        for inner in (hints[one.name], *get_args(hints[one.name])):
            if is_dataclass(inner) and isinstance(inner, type) and inner is not PoolSettings:
                found.setdefault(inner, []).append(f"{at}{one.name}")
    for inner, keys in list(found.items()):
        for deeper, names in _nested(inner, f"{keys[0]}.").items():
            found.setdefault(deeper, []).extend(names)
    return found


def _enums(*classes: type) -> list[type[Enum]]:
    found: dict[str, type[Enum]] = {}
    for cls in classes:
        for hint in get_type_hints(cls).values():
            for inner in (hint, *get_args(hint)):
                if isinstance(inner, type) and issubclass(inner, Enum):
                    found.setdefault(inner.__name__, inner)
    return list(found.values())


def _type_words(hint: Any) -> str:
    if get_origin(hint) is tuple:
        item, *more = get_args(hint)
        return f"{'list of' if more == [...] else 'two'} {_plural(item)}"
    if get_origin(hint) is Mapping:
        return f"mapping to {_plural(get_args(hint)[1])}"
    if is_dataclass(hint) and isinstance(hint, type):
        return "settings, see below"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of [{hint.__name__}](#{hint.__name__.lower()})"
    words = {str: "text", int: "whole number", float: "number", bool: "true or false", Signed: "number, or below zero"}
    for inner_type in get_args(hint):
        if get_origin(inner_type) is tuple or (
            isinstance(inner_type, type) and (issubclass(inner_type, Enum) or is_dataclass(inner_type))
        ):
            return _type_words(inner_type)
    inner = next((one for one in (hint, *get_args(hint)) if one in words), None)
    return words[inner] if inner else str(hint)


def _unit(name: str) -> str:
    if name.endswith("_s"):
        return ", per second" if name.endswith("_per_s") else ", seconds"
    return ", tokens" if name.endswith("_tokens") else ""


def _plural(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return f"lists of {_plural(get_args(hint)[0])}"
    if is_dataclass(hint):
        return "settings, see below"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return {str: "texts", int: "whole numbers", float: "numbers", Any: "values of any kind"}.get(hint, str(hint))


def _default(one: "Field[Any]") -> str:
    value = one.default
    if value is MISSING:
        return "" if one.default_factory is not MISSING else "required"
    match value:
        case Enum():
            return f"`{_word(value)}`"
        case tuple():
            return ", ".join(f"`{item}`" for item in value)
        case None | "":
            return ""
        case _ if is_dataclass(value):
            return ""
        case bool():
            return f"`{value}`".lower()
        case str():
            return f"`{json.dumps(value, ensure_ascii=False)[1:-1]}`"
        case _:
            return f"`{value}`"
