"""The ready profiles of docs/tools.md, from profiles/tools/*.yaml. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from hivemind_addon.formats.profile.load import NamedTool, load_profiles, tool_names
from hivemind_addon.formats.profile.model import MeterHeaders
from hivemind_addon.kernel.limits.stated_limits import StatedLimit
from lab.markdown import markdown_table

_SPANS: dict[float, str] = {1: "second", 60: "minute", 3600: "hour", 86_400: "day", 2_592_000: "month"}
_NOTHING = "\N{EN DASH}"


def ready_profiles() -> str:
    """The table of the ready profiles."""
    return markdown_table("Name | Hosts | Told | Stated | At once | Safe", map(" | ".join, _rows()))


def _rows() -> Iterator[tuple[str, ...]]:
    for name, hosts in tool_names().items():
        profile = load_profiles(None, (NamedTool(name, hosts or ("localhost",)),)).by_name[name]
        yield (
            f"`{name}`",
            ", ".join(f"`{host}`" for host in hosts) or f"`{name}=HOST`",
            _list(map(_told, profile.meters)),
            _list(map(_stated, profile.stated)),
            f"from {profile.concurrency.initial} to {profile.concurrency.maximum}",
            ", ".join(f"`{path}`" for path in profile.safe_paths) or _NOTHING,
        )


def _list(words: Iterable[str]) -> str:
    return "; ".join(words) or _NOTHING


def _told(meter: MeterHeaders) -> str:
    return f"per {_span(meter.window_s)}{_of(meter.groups)}"


def _stated(limit: StatedLimit) -> str:
    takes = f", a write takes {limit.writes}" if limit.writes > 1 else ""
    takes += ", a read nothing" if not limit.reads else ""
    return f"{limit.amount:,g} per {_span(limit.per_s)}{takes}{_of(limit.groups)}"


def _of(groups: Sequence[str]) -> str:
    return f" ({', '.join(groups)})" if groups else ""


def _span(seconds: float) -> str:
    return _SPANS.get(seconds, f"{seconds:g} s")
