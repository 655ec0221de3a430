"""The generated parts of docs/providers.md: our knowledge of each provider, from the profile and the tested samples."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from hivemind_addon.formats.base.document import read_document
from hivemind_addon.formats.profile.format import Framing, UsagePlaces, WireFormat
from hivemind_addon.formats.profile.load import format_for, load_profiles
from hivemind_addon.formats.profile.model import Profile, WebSocketUse
from hivemind_addon.formats.profile.unclaimed_calls import VENDOR_HOSTS
from hivemind_addon.proxy.api.report import VENDORS_OWN
from hivemind_addon.tools.launch.programs import Program, load_programs
from lab.markdown import markdown_table

_KINDS = ("answers", "streams", "requests")
_RESPONSES = "openai-responses"
_NOTHING = "\N{EN DASH}"
_MARKS = ("recorded", "documented", "simulated")
_TUNNELLED = """What goes to a host of Cursor or Windsurf is never intercepted, {why}.
`hivemind doctor` tells when one was called.

"""
_FRAMINGS: Mapping[Framing, str] = {
    Framing.SSE: "events",
    Framing.NDJSON: "lines",
    Framing.JSON_ARRAY: "array",
    Framing.AWS_EVENTSTREAM: "binary messages",
}
_WEBSOCKETS: Mapping[WebSocketUse, str] = {
    WebSocketUse.TURNS: "scheduled turn by turn",
    WebSocketUse.REFUSE: "plain requests instead (426)",
    WebSocketUse.TUNNEL: "passes by",
}


def parts(samples: Path) -> Mapping[str, str]:
    """The page's generated parts by name. `samples`: the folder that has a folder for each profile."""
    rows = (
        " | ".join((f"`{name}`", _hosts(profile), *_told(profile), _tested(samples / name / "samples.yaml")))
        for name, profile in sorted(load_profiles(None).by_name.items())
    )
    titles = "Profile | Hosts | Scheduled | Streamed | Usage | Limits | Held | WebSocket | Tested"
    agents = (" | ".join(_agent(name, one)) for name, one in load_programs().programs.items())
    return {
        "profiles": markdown_table(titles, rows),
        "agents": markdown_table("Agent | Command | Calls | Patience | One task, headless", agents),
        "tunnelled": _TUNNELLED.format(why=VENDORS_OWN) + "\n".join(f"- `{host}`" for host in VENDOR_HOSTS),
    }


def _agent(name: str, program: Program) -> Iterator[str]:
    yield name
    yield ", ".join(f"`{one}`" for one in program.commands)
    profiles = load_profiles(None)
    calls = []
    for host, when in program.hosts.items():
        profile = profiles.match_host(host, 443)
        calls.append(f"{host} ({when}): " + (f"`{profile.name}`" if profile else "no profile"))
    told = "tunnelled" if program.tunnelled else "whichever provider it is told"
    yield "; ".join(calls) or told
    yield ", ".join(f"`{one}`" for one in program.patience) or ("arguments" if program.arguments else _NOTHING)
    yield f"`{' '.join(program.headless)}`" if program.headless else _NOTHING


def _told(profile: Profile) -> Iterator[str]:
    formats = _formats(profile)
    yield ", ".join(dict.fromkeys(one.name for one in formats))
    yield ", ".join(dict.fromkeys(_FRAMINGS[framing] for one in formats for framing in one.framing.values()))
    yield _usage([one.usage for one in formats])
    meters = [one.meter for one in profile.meters] + [f"window {one.window}" for one in profile.windows]
    yield ", ".join(meters) or _NOTHING
    yield str(profile.refusal.status)
    yield _WEBSOCKETS[profile.websocket] if any(one.name == _RESPONSES for one in formats) else _NOTHING


def _hosts(profile: Profile) -> str:
    return ", ".join(f"`{one}`" for one in profile.hosts) or "as an upstream of your own"


def _formats(profile: Profile) -> list[WireFormat]:
    """The formats of the profile's paths."""
    paths = (path.replace("*", "x") for path in profile.paths)
    return list({one.name: one for one in (format_for(profile, f"/{path.lstrip('/')}") for path in paths)}.values())


def _usage(places: list[UsagePlaces]) -> str:
    read = any(one.cache_read for one in places)
    write = any(one.cache_write for one in places)
    return "input, output" + (", cache reads" if read else "") + (", cache writes" if write else "")


def _tested(file: Path) -> str:
    if not file.is_file():
        return _NOTHING
    document = read_document(file, cure_when_empty="write samples")
    marks = Counter(one.get("from", document.get("from")) for kind in _KINDS for one in document.get(kind, ()))
    return ", ".join(f"{marks[mark]} {mark}" for mark in _MARKS if marks[mark])
