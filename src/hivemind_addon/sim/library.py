"""Scenarios by name: the packaged `scenarios/*.yaml`, random ones by number, and files of one's own.

    crowds:        agents of a kind: how many, their turns, think times, sizes, patience, own retries   (Crowd)
    provider:      its limits, faults, latency, outages, prompt cache                          (ProviderSettings)
    others:        more providers, by name; a crowd's `site` says which one serves it                    (Site)
    expect:        what has to come of it                                                         (Expectation)
    variants:      name → other values of the keys above: each is a case FILE:NAME, and the file itself is none

Whatever is wrong with a file is a DocumentError: one line that names file, key path and cure.
"""

import difflib
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import Enum, IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hivemind_addon.formats.base.document import read_document
from hivemind_addon.formats.base.resources import scenarios_folder
from hivemind_addon.formats.base.typed import BadValue, DocumentError, DocumentRules, convert, positive
from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.profile.rules import PROFILE_RULES, error_status
from hivemind_addon.kernel.values.ticket import PoolKey
from hivemind_addon.plugins.captures.model import NotACapture
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.expectation import Expectation
from hivemind_addon.sim.faults import NAMED, FaultCourse, FaultMix, FaultPoint
from hivemind_addon.sim.limits import Ban, Limit, LimitChange, LimitKind, LimitReport, WindowKind
from hivemind_addon.sim.provider import ProviderOutage, ProviderSettings, Storm
from hivemind_addon.sim.random_loads import about, number_in, random_load
from hivemind_addon.sim.shapes import REFUSALS
from hivemind_addon.sim.workload import Crowd, Neighbour, RefusedForGood, Scenario, Site

_SUFFIX = ".yaml"
_SUFFIXES = (_SUFFIX, ".yml")
RANDOM_GOALS = Expectation(
    lost=0.02, idle_worst_s=20.0, refused_by_limits=0.1, paid_in_vain=0, time_to_fifo=1.05, to_no_proxy=1.05
)
"""What is expected under every random load."""


class UnknownScenario(Exception):
    """No packaged scenario has this name, and no file. Its text names those that there are."""


@dataclass(frozen=True, slots=True)
class CapChange:
    """The concurrency cap moves."""

    at_s: float
    """Since the begin of the run."""
    concurrency: int
    """From then on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioFile(Scenario):
    """One document."""

    name: str = ""
    """The file's."""
    about: str
    """What it is for, in a sentence."""
    expect: tuple[Expectation, ...] = ()
    """What has to come of it."""
    caps: tuple[CapChange, ...] = ()  # type: ignore[assignment]
    """How the provider's concurrency cap moves."""
    others: Mapping[str, Site] = field(default_factory=dict)
    """Name → a provider beside the first one; a crowd's `site` says which one serves it."""
    as_stated: bool = False
    """Its limits are of the kinds that the file says; else it is run on both kinds, one after the other."""
    paper: bool = False
    """One of the seven of the HiveMind paper."""
    variants: Mapping[str, Any] = field(default_factory=dict)
    """Name → keys of this file with other values: mappings are merged, lists replaced. Each is a case FILE:NAME."""


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario, and what is expected of it."""

    scenario: Scenario
    about: str
    expect: tuple[Expectation, ...] = ()
    as_stated: bool = False
    """Its limits are of the kinds that the file says; else it is run on both kinds, one after the other."""
    paper: bool = False
    """One of the seven of the HiveMind paper."""

    @property
    def name(self) -> str:
        """The file's."""
        return self.scenario.name

    @property
    def agents(self) -> int:
        """How many work in it."""
        return sum(crowd.agents for crowd in self.scenario.crowds)

    @property
    def kinds(self) -> Sequence[LimitKind | None]:
        """Of limits, that it is run on; None: as it is."""
        is_exact = all(limit.is_exact for limit in self.scenario.provider.limits)
        return (None,) if self.as_stated or is_exact else tuple(LimitKind)

    @property
    def has_headers_and_not(self) -> Sequence[bool]:
        """Whether it is run with headers, without, or both."""
        return tuple(dict.fromkeys([True, *(one.headers for one in self.expect)]))

    def at(self, kind: LimitKind | None, *, headers: bool = True) -> Scenario:
        """The scenario on one kind of limits."""
        scenario = self.scenario if kind is None else self.scenario.on(kind)
        return scenario if headers else scenario.without_headers()


@cache
def _packaged() -> Mapping[str, Mapping[str, Case]]:
    """The cases of each packaged file, by the names of file and variant; a plain file has a nameless case."""
    return {file.stem: read_cases(file) for file in sorted(scenarios_folder().glob(f"*{_SUFFIX}"))}


@cache
def cases() -> Mapping[str, Case]:
    """The packaged cases without variants by name: the paper's first, by the number of agents; then ours."""
    plain = [found[""] for found in _packaged().values() if "" in found]
    plain.sort(key=lambda case: (not case.paper, case.agents if case.paper else 0, case.name))
    return {case.name: case for case in plain}


@cache
def variants() -> Mapping[str, Case]:
    """The packaged variants by their whole names, FILE:NAME."""
    return {case.name: case for found in _packaged().values() for name, case in found.items() if name}


def case_named(name: str) -> Case:
    """The case of this name: packaged, random, or a user's file by path. `:NAME` behind a file's name or path chooses a
    variant. Raises UnknownScenario, DocumentError.
    """
    one, *more = cases_named([name])
    if more:
        raise UnknownScenario(f"{name} has {len(more) + 1} variants; name one of them: {one.name} …")
    return one


def cases_named(names: Sequence[str]) -> list[Case]:
    """The cases of these names without repetitions; a file's name alone stands for all variants. As `case_named`."""
    return list({case.name: case for name in names for case in _found(name)}.values())


def _found(name: str) -> Sequence[Case]:
    if known := cases().get(name) or variants().get(name):
        return (known,)
    if (number := number_in(name)) is not None:
        return (random_case(number),)
    stem, _, variant = name.rpartition(":")
    path = Path(name)
    if path.is_file() and path.suffix not in (_SUFFIX, ".yml"):
        return (recorded_case(path),)
    if path.suffix in _SUFFIXES or path.is_file():
        return tuple(read_cases(path).values())
    if Path(stem).suffix in _SUFFIXES:
        found, place = read_cases(Path(stem)), stem
    else:
        found, place = _packaged().get(stem or name, {}), stem
    if found and not stem:
        return tuple(found.values())
    if variant in found:
        return (found[variant],)
    if "" in found:
        raise UnknownScenario(f"{place} has no variants; leave :{variant} out")
    if found:
        close = difflib.get_close_matches(variant, found, n=3) or list(found)
        raise UnknownScenario(f"{place} has no variant {variant!r}; there are {', '.join(close)} …")
    families = ", ".join(f"{file}:NAME" for file, found in _packaged().items() if "" not in found)
    known_names = f"{', '.join(cases())}, {families}, random-0, random-1 …"
    raise UnknownScenario(f"no scenario {name!r}; there are {known_names}, or give the path of a YAML file")


def recorded_case(path: Path) -> Case:
    """A trace or a capture, whose limits are fitted to the refusals. Raises UnknownScenario."""
    # Loaded when it is needed.
    from hivemind_addon.sim.replay.reconstruct import NothingToReplay, fitted_to, reconstruct  # noqa: PLC0415
    from hivemind_addon.sim.trace import read_recorded  # noqa: PLC0415

    try:
        capture = read_recorded(path)
        made = reconstruct(capture, fitted=fitted_to(capture))
    except (NotACapture, NothingToReplay) as error:
        where = "" if isinstance(error, NotACapture) else f"{path}: "
        raise UnknownScenario(f"{where}{error}") from error
    scenario = replace(made.scenario, name=path.name.partition(".")[0])
    return Case(scenario, f"{made.agents} agents of {path.name}, {len(scenario.script)} turns", as_stated=True)


def random_case(number: int) -> Case:
    """The random load of this number, `random-<number>`."""
    load = random_load(number)
    return Case(load, about(load), expect=(RANDOM_GOALS,), as_stated=True)


def read_cases(file: Path) -> Mapping[str, Case]:
    """The cases of a file by variant; a file without variants has a nameless case. Raises DocumentError."""
    is_ours = file.parent == scenarios_folder()
    document = dict(read_document(file, cure_when_empty="say at least about, crowds and provider", packaged=is_ours))
    if "variants" not in document:
        return {"": _case(document, file, file.stem)}
    found = document.pop("variants")
    if not isinstance(found, Mapping) or not found:
        raise DocumentError(file, "variants", "there are none", "write names, each with the keys that it changes")
    return {str(name): _variant(document, found[name], file, str(name)) for name in found}


def _variant(base: Mapping[str, Any], changed: Any, file: Path, name: str) -> Case:
    place = f"variants.{name}"
    if not isinstance(changed, Mapping):
        raise DocumentError(file, place, "it changes nothing", "write the keys that it changes: {provider: {…}}")
    try:
        return _case(_merged(base, changed), file, f"{file.stem}:{name}")
    except DocumentError as error:
        if not _says(changed, error.key_path):
            raise
        raise DocumentError(file, f"{place}.{error.key_path}", error.problem, error.cure) from None


def _merged(base: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings key by key, however deep; everything else is replaced."""
    merged = dict(base)
    for key, value in changed.items():
        below = base.get(key)
        merged[key] = _merged(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return merged


def _says(changed: Any, key_path: str) -> bool:
    """Whether a variant sets this key, or a key below."""
    for part in key_path.split("."):
        if not isinstance(changed, Mapping):
            return True
        key, _, index = part.partition("[")
        if key not in changed:
            return False
        changed = None if index else changed[key]
    return True


def _case(document: Mapping[str, Any], file: Path, name: str) -> Case:
    read: ScenarioFile = convert(ScenarioFile, document, file, rules=SCENARIO_RULES)
    for key_path, problem, cure in _wrong(read):
        raise DocumentError(file, key_path, problem, cure)
    scenario = Scenario(
        **_alike(read, Scenario)
        | {
            "name": name,
            "caps": tuple((cap.at_s, cap.concurrency) for cap in read.caps),
            "sites": tuple(
                replace(other, name=beside, pool=PoolKey(f"{beside}.sim", f"key-{beside}", "sim-1"))
                for beside, other in read.others.items()
            ),
        },
    )
    return Case(scenario, **_alike(read, Case) | {"about": " ".join(read.about.split())})


def written(case: Case) -> str:
    """The case as a file that `read_cases` reads."""
    scenario = case.scenario
    said = {
        "name": "",
        "caps": tuple(CapChange(at_s, concurrency) for at_s, concurrency in scenario.caps),
        "sites": (),
        "script": (),
        "learned": (),
        "others": {
            site.name: Site(site.provider, profile=site.profile, dialect=site.dialect, equal=site.equal)
            for site in scenario.sites
        },
    }
    file = _plain(ScenarioFile(**_alike(scenario, Scenario) | _alike(case, ScenarioFile) | said))
    plain = {"about": case.about} | file
    return yaml.safe_dump(plain, sort_keys=False, width=120, allow_unicode=True, default_flow_style=None)


def _alike(value: Any, cls: type) -> dict[str, Any]:
    """The fields of a value that a class has too."""
    return {one.name: getattr(value, one.name) for one in fields(cls) if hasattr(value, one.name)}


def _plain(value: Any) -> Any:
    """A value as YAML has it; of a dataclass what differs from its defaults."""
    match value:
        case IntEnum():
            return value.name.lower()
        case Enum():
            return value.value
        case tuple():
            return [_plain(item) for item in value]
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case float() if value.is_integer():
            return int(value)
    if is_dataclass(value):
        told = ((one.name, getattr(value, one.name), one) for one in fields(value))
        return {
            name: _plain(item)
            for name, item, one in told
            if item != (one.default if one.default_factory is MISSING else one.default_factory())
        }
    return value


type _Wrong = Iterator[tuple[str, str, str]]
"""Key paths with problem and cure."""
_PLANS = {SimDialect.MESSAGES: ("5h", "7d", "7d_oi"), SimDialect.RESPONSES: ("primary", "secondary")}
"""Windows that headers of a dialect report: of Anthropic's subscriptions, and of Codex."""
_DRAWN = ("starts_s", "think_s", "calls_per_turn", "output_tokens", "opening_tokens", "prompt_tokens")


def _wrong(read: ScenarioFile) -> _Wrong:
    """What no single value shows."""
    if not read.crowds:
        yield "crowds", "nobody asks anything", "describe one crowd at least"
    names = [crowd.name for crowd in read.crowds]
    for index, crowd in enumerate(read.crowds):
        place = f"crowds[{index}]"
        if names.index(crowd.name) != index:
            yield f"{place}.name", f"{crowd.name} stands twice", "give each crowd its own name"
        yield from _wrong_crowd(crowd, place, read)
    for index, neighbour in enumerate(read.neighbours):
        yield from _wrong_site(neighbour.site, f"neighbours[{index}]", read)
        if neighbour.from_s >= neighbour.to_s:
            problem = f"it goes at {neighbour.to_s:g} s, before it comes"
            yield f"neighbours[{index}].to_s", problem, "let to_s be later than from_s"
    providers = {"provider": read.provider} | {
        f"others.{name}.provider": other.provider for name, other in read.others.items()
    }
    for place, provider in providers.items():
        yield from _wrong_times(provider, place)
    dialects = [SimDialect.MESSAGES, *(other.dialect for other in read.others.values())]
    for (place, provider), dialect in zip(providers.items(), dialects, strict=True):
        for index, limit in enumerate(provider.limits):
            yield from _wrong_limit(limit, dialect, f"{place}.limits[{index}]")
    profiles = load_profiles(None).by_name
    for name, other in read.others.items():
        if other.equal and (other.dialect is not SimDialect.MESSAGES or other.profile != "anthropic"):
            problem = "an equal provider answers as the first one does"
            yield f"others.{name}.equal", problem, "leave profile and dialect out"
        if other.profile not in profiles:
            yield f"others.{name}.profile", f"no profile {other.profile}", f"name one of {', '.join(profiles)}"
    for place, provider in providers.items():
        models = [model for family in provider.families for model in family]
        if twice := next((model for model in models if models.count(model) > 1), None):
            yield f"{place}.families", f"{twice} is of two families", "name each model once at most"
    for index, one in enumerate(read.expect):
        for crowd_name in (*one.turn_mean_s, *one.wait_p95_s, *one.wait_p95_to_fifo):
            if crowd_name not in names:
                yield f"expect[{index}]", f"no crowd {crowd_name}", f"name one of {', '.join(names)}"


def _wrong_times(provider: ProviderSettings, place: str) -> _Wrong:
    mixes = {f"{place}.faults": provider.faults} | {
        f"{place}.storms[{index}].faults": storm.faults for index, storm in enumerate(provider.storms)
    }
    if (course := provider.fault_course) is not None:
        yield from _wrong_course(course, f"{place}.fault_course")
        if provider.faults:
            yield f"{place}.faults", "fault_course stands in its place", "leave one out"
        mixes |= {f"{place}.fault_course.points[{n}].faults": one.faults for n, one in enumerate(course.points)}
    for key, rates in mixes.items():
        try:
            FaultMix(rates)
        except ValueError as error:
            yield key, str(error), "lower one of them"
    timed: Mapping[str, Sequence[ProviderOutage | Storm]] = {"outages": provider.outages, "storms": provider.storms}
    for name, spans in timed.items():
        for index, span in enumerate(spans):
            if span.from_s >= span.to_s:
                problem = f"it ends at {span.to_s:g} s, before it begins"
                yield f"{place}.{name}[{index}]", problem, "let to_s be later than from_s"


def _wrong_limit(limit: Limit, dialect: SimDialect, place: str) -> _Wrong:
    is_window = limit.kind is LimitKind.WINDOW
    if limit.windows is not WindowKind.BEAT and (not is_window or limit.growth):
        yield f"{place}.windows", "only a limit of windows has them", "add kind: window, and leave growth out"
    if limit.burst is not None and (is_window or limit.growth):
        yield f"{place}.burst", "only a bucket holds a burst", "say kind: bucket, and leave growth out"
    if limit.left is not None and (limit.growth or limit.windows is WindowKind.LOG):
        yield f"{place}.left", "a log begins empty", "leave left out"
    known = _PLANS.get(dialect, ())
    if limit.plan and limit.plan not in known:
        cure = f"name one of {', '.join(known)}" if known else "leave plan out"
        yield f"{place}.plan", f"no plan of {dialect.value} has {limit.plan!r}", cure


def _wrong_crowd(crowd: Crowd, place: str, read: ScenarioFile) -> _Wrong:
    for name in _DRAWN:
        values = getattr(crowd, name)
        if not values:
            yield f"{place}.{name}", "there is no value", "write one, the two ends of a range, or more to draw from"
        if len(values) == 2 and values[0] > values[1]:
            cure = "write its two ends, the smaller one first: [1, 5]"
            yield f"{place}.{name}", f"{list(values)} is no range", cure
    if math.isinf(read.duration_s):
        cure = "say duration_s for the whole"
        if crowd.turns is None:
            yield f"{place}.turns", "it never ends", f"say turns, or {cure.removeprefix('say ')}"
        if crowd.hours is not None:
            yield f"{place}.hours", "it begins anew each day, and never ends", cure
    if crowd.hours is not None and crowd.hours[1] - crowd.hours[0] > 24:
        yield f"{place}.hours", "a day has 24 hours", "write two hours less than 24 apart"
    if crowd.max_tokens is not None and crowd.max_tokens < (most := max(crowd.output_tokens)):
        yield f"{place}.max_tokens", f"answers have up to {most} output tokens", f"write {most} or more"
    yield from _wrong_site(crowd.site, place, read)


def _wrong_site(site: str, place: str, read: ScenarioFile) -> _Wrong:
    if site and site not in read.others:
        known = ", ".join(read.others) or "there are none"
        yield f"{place}.site", f"no provider {site}", f"name one of others: {known}"


def _wrong_course(course: FaultCourse, place: str) -> _Wrong:
    if not course.points:
        yield f"{place}.points", "there are none", "give two at least: [{at_s: 0, faults: {…}}, …]"
    for index, (one, other) in enumerate(itertools.pairwise(course.points), start=1):
        if other.at_s <= one.at_s:
            problem = f"{other.at_s:g} s is not after the point before it, at {one.at_s:g} s"
            yield f"{place}.points[{index}].at_s", problem, "write the points in their order"
    if course.repeats and not course.points[-1].at_s:
        yield f"{place}.repeats", "it lasts no time", "give a second point, later than the first"


def _share(value: float) -> float:
    if value > 1:
        raise BadValue(f"{value} is above 1", "write a share between 0 and 1")
    return value


def _one_of(what: str, known: Collection[str]) -> Callable[[str], str]:
    def rule(name: str) -> str:
        if name not in known:
            raise BadValue(f"no {what} {name!r}", f"name one of {', '.join(known)}")
        return name

    return rule


_POSITIVE: Mapping[type, Sequence[str]] = {
    Crowd: (
        *("agents", "turns", "per_session", "latency_s", "tokens_per_s", "timeout_s", "output_tokens", "max_tokens"),
        *("calls_per_turn", "budget_tokens"),
    ),
    Limit: ("amount", "window_s", "burst"),
    LimitChange: ("amount",),
    LimitReport: ("amount", "window_s"),
    Ban: ("refusals", "within_s", "lasts_s"),
    ProviderSettings: ("concurrency", "tokens_at_once", "serves_at_once", "slows_beyond", "hang_s"),
    Neighbour: ("calls_per_s", "latency_s", "output_tokens", "every_s"),
    CapChange: ("concurrency",),
    Expectation: ("time_to_fifo", "to_no_proxy"),
    ScenarioFile: ("duration_s", "silent_s"),
}
_SHARES: Mapping[type, Sequence[str]] = {
    Crowd: ("spike_rate",),
    RefusedForGood: ("share",),
    ProviderSettings: ("faults",),
    Storm: ("faults",),
    FaultPoint: ("faults",),
    Expectation: ("lost", "refused", "overloaded", "refused_by_limits", "cap_used_least"),
}
_SAID_BY_CROWDS = frozenset({"latency", "chunks", "tokens_per_chunk", "interval_s", "default_max_tokens"})
SCENARIO_RULES = PROFILE_RULES | DocumentRules(
    values={(cls, name): positive for cls, names in _POSITIVE.items() for name in names}
    | {(cls, name): _share for cls, names in _SHARES.items() for name in names}
    | {(ProviderSettings, name): _one_of("refusal", REFUSALS) for name in ("refused_as", "overloaded_as")}
    | {(one, "status"): error_status for one in (ProviderOutage, RefusedForGood)}
    | {(ProviderSettings, "concurrency_status"): error_status},
    keys={(cls, "faults"): _one_of("fault", NAMED) for cls in (ProviderSettings, Storm, FaultPoint)},
    unwritten={
        ProviderSettings: _SAID_BY_CROWDS,
        Site: frozenset({"name", "pool"}),
        ScenarioFile: frozenset({"name", "sites", "script", "learned"}),
    },
)
"""Of a scenario."""
