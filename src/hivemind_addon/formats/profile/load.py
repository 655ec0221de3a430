"""Profiles from YAML: the packaged ones, and a user's folder on top of them.

    profiles/*.yaml ──┐                    ┌── unknown keys, wrong types, bad values: DocumentError (typed.py)
                      ├── read ── extends ─┴── Profile ── Profiles: which one is a host's, a path's
    user's folder ────┘

A user's file of a packaged one's name replaces it, or changes it when it says `extends: <its own name>`.

A user's files are checked as a whole when they are read. Of the packaged ones no more is read at a start than which
calls are whose; each is typed when it is first asked for, and all of them by the tests.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from hivemind_addon.formats.base.document import read_document
from hivemind_addon.formats.base.memo import by_thing_and_text
from hivemind_addon.formats.base.patterns import (
    glob_matches,
    host_parts,
    matching_path,
    normal_host,
    normal_path,
    path_matches,
)
from hivemind_addon.formats.base.resources import profiles_folder, tools_folder
from hivemind_addon.formats.base.typed import DocumentError, Known, convert
from hivemind_addon.formats.profile.format import WireFormat
from hivemind_addon.formats.profile.formats import change, whole_format
from hivemind_addon.formats.profile.model import MODEL_IN_PATH, Profile, ProfileKind
from hivemind_addon.formats.profile.rules import PROFILE_RULES
from hivemind_addon.formats.profile.upstreams import Keys, check_upstreams
from hivemind_addon.kernel.limits.slots import ConcurrencySettings

_EXTENDS = "extends"
_FORMATS = frozenset({"format"})
_SUFFIXES = (".yaml", ".yml")
_HOSTS_REMEMBERED = 1024
NO_GROUP = "*"
"""Of a plain profile: what is in none of its groups."""
_PLAIN = "plain"
"""The packaged profile whose keys every plain one has."""
_LOCAL = ("localhost", "127.0.0.1", "::1")


class UnknownTool(Exception):
    """A packaged service that was named wrongly: what is wrong, and the cure."""

    def __init__(self, problem: str, cure: str) -> None:
        super().__init__(f"{problem}; {cure}")


@dataclass(frozen=True, slots=True)
class NamedTool:
    """One packaged service whose calls are to be scheduled."""

    name: str
    hosts: tuple[str, ...] = ()
    """Where it is, in place of its profile's own hosts; empty: there."""


def parse_tools(text: str) -> tuple[NamedTool, ...]:
    """`github,mcp=localhost:9000,mcp=tools.example`, in the order of their names. UnknownTool: it cannot be read."""
    hosts: dict[str, list[str]] = {}
    for item in filter(None, (one.strip() for one in text.split(","))):
        name, equals, host = item.partition("=")
        named = hosts.setdefault(name, [])
        if not equals:
            continue
        try:
            host_parts(host)
        except ValueError as error:
            raise UnknownTool(f"{item!r}: {error}", f"write {name}=HOST or {name}=HOST:PORT") from None
        named.append(host)
    return tuple(NamedTool(name, tuple(named)) for name, named in sorted(hosts.items()))


@dataclass(frozen=True, slots=True)
class Claim:
    """Which calls are a profile's: the fields of it of these names."""

    hosts: tuple[str, ...]
    paths: tuple[str, ...]
    reverse_paths: tuple[str, ...]
    is_plain: bool = False
    """Of a service that is no model: its paths tell nobody whose call it is."""


class _ByName(Mapping[str, Profile]):
    """Profiles, each made when it is first asked for; from then on it is the same one."""

    def __init__(self, names: Iterable[str], make: Callable[[str], Profile]) -> None:
        self._names = dict.fromkeys(names)
        self._make = make
        self._made: dict[str, Profile] = {}

    def __getitem__(self, name: str) -> Profile:
        if name not in self._made:
            if name not in self._names:
                raise KeyError(name)
            # One of two threads' is everybody's.
            self._made.setdefault(name, self._make(name))
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, slots=True)
class Profiles:
    """All profiles, and which of them is a host's or a path's. Made by `load_profiles`.

    Equal ones were read from equal files.
    """

    by_name: Mapping[str, Profile] = field(compare=False)
    """Users' profiles before packaged ones, each group in alphabetical order."""
    claims: Mapping[str, Claim] = field(default_factory=dict, repr=False)
    """Of each of them, in the same order."""
    source: object = field(default=None, repr=False)
    """What `by_name` was made from, if need be."""
    users: frozenset[str] = frozenset()
    """The names of the users' ones."""
    keys: Keys = field(default_factory=dict, repr=False)
    """Of their endpoints, as far as the proxy has read them; tools have none."""
    _matched: dict[tuple[str, int], Profile | None] = field(default_factory=dict, repr=False, compare=False)
    """What `match_host` has answered: each request asks several times."""

    def match_host(self, host: str, port: int) -> Profile | None:
        """The profile that claims a host: the exact name first, then the longest glob; with a port first."""
        key = (host, port)
        if key not in self._matched:
            if len(self._matched) >= _HOSTS_REMEMBERED:
                self._matched.clear()
            self._matched[key] = self._match_host(host, port)
        return self._matched[key]

    def _match_host(self, host: str, port: int) -> Profile | None:
        name = normal_host(host)
        best: tuple[tuple[bool, bool, int], str] | None = None
        for owner, claim in self.claims.items():
            for pattern in claim.hosts:
                claimed, claimed_port = host_parts(pattern)
                if claimed_port not in (None, port) or not glob_matches(claimed, name):
                    continue
                rank = ("*" not in claimed, claimed_port is not None, len(claimed))
                if best is None or rank > best[0]:
                    best = rank, owner
        return self.by_name[best[1]] if best else None

    @by_thing_and_text
    def host_for_path(self, path: str) -> tuple[str, int | None, bool] | None:
        """Host, port, and whether it is this machine, of the profile whose model calls have a path, or one above it.

        A host of the network counts before this machine, an exact path before a glob, a longer glob before a shorter
        one, a user's before a packaged one. None: no profile with a whole host knows the path, or several packaged ones
        know it equally well.
        """
        path = normal_path(path)
        while path.strip("/"):
            best: tuple[tuple[bool, bool, int, bool], tuple[str, int | None, bool] | None] | None = None
            for owner, claim in self.claims.items():
                whole = next((host_parts(one) for one in claim.hosts if "*" not in one), None)
                if whole is None or claim.is_plain:
                    continue
                there = (*whole, whole[0] in _LOCAL)
                for glob in claim.paths:
                    rank = (not there[2], "*" not in glob, len(glob), owner in self.users)
                    if (best is not None and rank < best[0]) or not path_matches(glob, path):
                        continue
                    if best is None or rank > best[0]:
                        best = rank, there
                    elif there != best[1] and owner not in self.users:
                        best = rank, None
            if best:
                return best[1]
            path = path.rpartition("/")[0]
        return None

    def capped(self, most: int, by: str = "hivemind_max_concurrency") -> "Profiles":
        """The same, with at most so many attempts in flight in each pool; `by`: the setting that says so."""
        made = _ByName(self.by_name, lambda name: _capped(self.by_name[name], most, by))
        return replace(self, by_name=made, source=(self.source, most, by), _matched={})

    def with_upstreams(self) -> tuple[Profile, ...]:
        """Those that name endpoints, which users' ones alone do."""
        users = (self.by_name[name] for name in self.by_name if name in self.users)
        return tuple(profile for profile in users if profile.upstreams)

    @property
    def key_variables(self) -> tuple[str, ...]:
        """The variables that hold their endpoints' keys."""
        return tuple(sorted({one.key.env for own in self.with_upstreams() for one in own.upstreams if one.key.env}))

    @by_thing_and_text
    def for_path(self, path: str) -> Profile | None:
        """The profile for an upstream of no profile (reverse mode), by the path of its first model call.

        An exact path counts before a glob, a longer glob before a shorter one, a user's before a packaged
        one.
        """
        best: tuple[tuple[bool, int], str] | None = None
        for owner, claim in self.claims.items():
            for glob in claim.reverse_paths:
                rank = ("*" not in glob, len(glob))
                if path_matches(glob, path) and (best is None or rank > best[0]):
                    best = rank, owner
        return self.by_name[best[1]] if best else None


def _capped(profile: Profile, most: int, by: str) -> Profile:
    bounds = profile.concurrency
    if bounds.maximum <= most:
        return profile
    return replace(profile, concurrency=ConcurrencySettings(min(bounds.initial, most), maximum=most, maximum_from=by))


def is_call(profile: Profile, method: str, path: str) -> bool:
    """Whether a request to one of the profile's hosts is scheduled. `path` as it came: its spelling does not matter."""
    return (
        (profile.is_plain or method.upper() == "POST")
        and matching_path(profile.paths, path) is not None
        and matching_path(profile.exclude_paths, path) is None
    )


@by_thing_and_text
def limit_group(profile: Profile, path: str) -> str:
    """The name of what a plain profile's call shares its limits with."""
    found = (name for name, globs in profile.groups.items() if matching_path(globs, path) is not None)
    return next(found, NO_GROUP)


@by_thing_and_text
def of_group(profile: Profile, group: str) -> Profile:
    """A plain profile as the answers of one of its groups tell of limits."""
    return replace(profile, meters=tuple(one for one in profile.meters if not one.groups or group in one.groups))


@by_thing_and_text
def format_for(profile: Profile, path: str) -> WireFormat:
    """The wire format of a path."""
    glob = matching_path(tuple(profile.formats), path)
    return profile.format if glob is None else profile.formats[glob]


def model_of(profile: Profile, path: str, said: str) -> str:
    """The model of a request: what its path names where the profile knows such paths, else what its body said."""
    path = normal_path(path)
    found = (_model_place(pattern).fullmatch(path) for pattern in profile.model_paths)
    return next((match["model"] for match in found if match), said)


@cache
def _model_place(pattern: str) -> re.Pattern[str]:
    pieces = (re.escape(piece).replace(r"\*", ".*") for piece in pattern.lower().split(MODEL_IN_PATH, maxsplit=1))
    # Lazy: where a model is an ARN of Amazon's, there are slashes in it.
    return re.compile("(?P<model>.{1,200}?)".join(pieces), re.DOTALL)


@by_thing_and_text
def model_group(profile: Profile, model: str) -> str:
    """The name of what a model shares its limit with: the glob that it matches, else itself."""
    return next((glob for glob in profile.model_groups if glob_matches(glob, model)), model)


def load_profiles(user_folder: Path | None, tools: Sequence[NamedTool] = ()) -> Profiles:
    """The packaged profiles of models, the user's, and of the packaged ones of other services those that are named.

    DocumentError: one line that names file, key path and cure. UnknownTool: a name is of no service, or needs hosts.
    """
    if user_folder is None and not tools:
        return _packaged_profiles(profiles_folder())
    if user_folder is not None and not user_folder.is_dir():
        raise DocumentError(user_folder, "", "no such folder", "name a folder with profiles (*.yaml)")
    user = {} if user_folder is None else dict(_read_folder(user_folder))
    return _resolved(profiles_folder(), _with_tools(user, tools), named=tools)


def _with_tools(user: "dict[str, _Document]", tools: Sequence[NamedTool]) -> "dict[str, _Document]":
    """A named service counts as if the user had written a file that says no more than its hosts."""
    packaged = _packaged_tools(tools_folder())
    for tool in tools:
        known = user.get(tool.name) or packaged.get(tool.name)
        if known is None or tool.name == _PLAIN:
            raise UnknownTool(f"there is no tool {tool.name!r}", f"choose one of {', '.join(tool_names())}")
        if tool.hosts:
            known = replace(known, keys={**known.keys, "hosts": list(tool.hosts)})
        elif known.extends != tool.name and not known.keys.get("hosts"):
            raise UnknownTool(f"{tool.name} is at no host of its own", f"name yours: {tool.name}=HOST")
        user[tool.name] = known
    return user


def load_profile(file: Path) -> tuple[Profiles, tuple[str, ...]]:
    """The packaged profiles and a user's file as if it lay in their folder; its name, and those it extends in turn.

    They are looked for beside it first. DocumentError: one line that names file, key path and cure.
    """
    if file.suffix not in _SUFFIXES:
        raise DocumentError(file, "", "only *.yaml and *.yml are read", f"rename it to {file.stem}.yaml")
    packaged = _documents()
    user: dict[str, _Document] = {}
    place: Path | None = file
    while place is not None:
        document = user[place.stem] = _read_file(place, packaged=False)
        wanted = document.extends
        place = None if wanted is None or wanted in user else _beside(file, wanted)
    return _resolved(profiles_folder(), user), tuple(_chain(file.stem, packaged, user))


def _chain(name: str, packaged: "Mapping[str, _Document]", user: "Mapping[str, _Document]") -> Iterator[str]:
    """A profile's name, then that of the one that it extends, and so on; all of them are there."""
    document = user[name]
    yield name
    while document.extends is not None:
        from_packaged = document.extends == name or document is packaged.get(name)
        name = document.extends
        yield name
        document = packaged[name] if from_packaged else user.get(name) or packaged[name]


def _beside(file: Path, name: str) -> Path | None:
    return next((one for one in (file.with_name(name + suffix) for suffix in _SUFFIXES) if one.is_file()), None)


@cache
def _packaged(folder: Path) -> "Mapping[str, _Document]":
    """What was shipped of models, which no running process changes."""
    return dict(_read_folder(folder, packaged=True))


@cache
def _packaged_tools(folder: Path) -> "Mapping[str, _Document]":
    """What was shipped of other services: none of them claims anything before it is named."""
    return dict(_read_folder(folder, packaged=True))


def tool_names() -> Mapping[str, tuple[str, ...]]:
    """The packaged services that can be named, in alphabetical order, with the hosts that they have of their own."""
    packaged = _packaged_tools(tools_folder())
    return {name: tuple(one.keys.get("hosts", ())) for name, one in packaged.items() if name != _PLAIN}


def _documents() -> "Mapping[str, _Document]":
    """All that was shipped: what a user's file may extend."""
    return {**_packaged_tools(tools_folder()), **_packaged(profiles_folder())}


@cache
def _packaged_profiles(folder: Path) -> Profiles:
    packaged = _packaged(folder)
    resolver = _Resolver(packaged=packaged, user={})
    claims = {name: resolver.claim(name) for name in packaged}
    return Profiles(_ByName(packaged, resolver.profile), claims, source=folder)


def _resolved(packaged_folder: Path, user: "Mapping[str, _Document]", named: Sequence[NamedTool] = ()) -> Profiles:
    """A user's profiles on top of the packaged ones. `named`: those whose hosts no file says."""
    packaged = _packaged_profiles(packaged_folder)
    documents = _documents()
    resolver = _Resolver(packaged=documents, user=user)
    made = {name: resolver.profile(name) for name in user}
    claims = {name: Claim(one.hosts, one.paths, one.reverse_paths, one.is_plain) for name, one in made.items()}
    claims |= {name: claim for name, claim in packaged.claims.items() if name not in user}
    files = {name: (user.get(name) or documents[name]).file for name in claims}
    _check_named(claims, named)
    _check_claims(claims, files, user=frozenset(user))
    # A packaged profile is what it was shipped as, whatever a user does to the one that it extends.
    by_name = _ByName(claims, lambda name: made.get(name) or packaged.by_name[name])
    return Profiles(by_name, claims, (packaged.source, made), frozenset(user))


@dataclass(frozen=True, slots=True)
class _Document:
    """One file, read but not yet typed."""

    file: Path
    keys: Mapping[str, Any]
    extends: str | None


class _Resolver:
    """Follows `extends`."""

    def __init__(self, *, packaged: Mapping[str, _Document], user: Mapping[str, _Document]) -> None:
        self._packaged = packaged
        self._user = user
        self._known: Known = {}
        self._wholes: dict[Path, Mapping[str, Any]] = {}

    def profile(self, name: str) -> Profile:
        """The profile of that name, a user's before a packaged one."""
        document = self._user.get(name) or self._packaged[name]
        whole = _with_formats(self._whole(name, document, ()), document.file)
        made: Profile = convert(Profile, whole, document.file, rules=PROFILE_RULES, known=self._known)
        check_upstreams(made.upstreams, made.hosts, document.file)
        _check_kind(made, document.file)
        return replace(made, name=name)

    def claim(self, name: str) -> Claim:
        """The one of a packaged profile, as its files spell it."""
        whole = self._whole(name, self._packaged[name], ())
        hosts, paths, reverse_paths = (tuple(whole.get(key, ())) for key in ("hosts", "paths", "reverse_paths"))
        return Claim(hosts, paths, reverse_paths)

    def _whole(self, name: str, document: _Document, seen: tuple[Path, ...]) -> Mapping[str, Any]:
        """All keys, the inherited ones too."""
        whole = self._wholes.get(document.file)
        if whole is None:
            whole = self._wholes[document.file] = self._read(name, document, seen)
        return whole

    def _read(self, name: str, document: _Document, seen: tuple[Path, ...]) -> Mapping[str, Any]:
        own = document.keys
        if document is not self._packaged.get(name):
            # Each layer of a user's is checked by itself first, so that an error names the file in which it stands.
            checked = _with_formats(own, document.file)
            is_layer = document.extends is not None
            convert(Profile, checked, document.file, partial=is_layer, rules=PROFILE_RULES, known=self._known)
        if document.extends is None:
            return own
        if document.file in seen:
            chain = " -> ".join(file.name for file in (*seen[seen.index(document.file) :], document.file))
            raise DocumentError(document.file, _EXTENDS, f"a circle: {chain}", "let one of them extend nothing")
        parent = self._parent(name, document)
        inherited = dict(self._whole(document.extends, parent, (*seen, document.file)))
        if name != document.extends:
            # An extension that inherited them would compete with the profile that it extends.
            inherited.pop("reverse_paths", None)
            # Keys are given for one provider's calls, not for those of whoever is like it.
            inherited.pop("upstreams", None)
        return _merge(inherited, own)

    def _parent(self, name: str, document: _Document) -> _Document:
        wanted = document.extends or ""
        if wanted == name:
            # A user's file of a packaged one's name changes that one.
            parent = self._packaged.get(name)
            if parent is None or parent is document:
                raise DocumentError(document.file, _EXTENDS, f"{name} extends itself", "name another profile")
            return parent
        # A packaged profile is what it was shipped as, whatever a user does to the one that it extends.
        user = {} if document is self._packaged.get(name) else self._user
        parent = user.get(wanted) or self._packaged.get(wanted)
        if parent is None:
            known = ", ".join(sorted({*user, *self._packaged} - {name}))
            raise DocumentError(document.file, _EXTENDS, f"there is no profile {wanted!r}", f"known: {known}")
        return parent


def _check_kind(profile: Profile, file: Path) -> None:
    """Refuse what only the other kind of profile has. DocumentError."""
    if profile.is_plain and profile.upstreams:
        raise DocumentError(file, "upstreams", "a plain profile has none", "remove them: calls go where they are sent")
    if not profile.is_plain:
        for key in ("groups", "stated", "safe_paths"):
            if getattr(profile, key):
                raise DocumentError(file, key, "only a plain profile has it", f"add kind: plain, or remove {key}")
    named = {group for meter in profile.meters for group in meter.groups}
    unknown = (named | {group for limit in profile.stated for group in limit.groups}) - {*profile.groups, NO_GROUP}
    if unknown:
        known = ", ".join((*profile.groups, NO_GROUP))
        raise DocumentError(file, "groups", f"there is no group {min(unknown)!r}", f"write one of {known}")


def _merge(inherited: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Own keys replace inherited ones; mappings key by key. Own ones come first: the first glob counts."""
    merged = change(inherited, own)
    for key in _FORMATS & inherited.keys() & own.keys():
        merged = {**merged, key: _merge_format(inherited[key], own[key])}
    return merged


def _merge_format(inherited: Any, own: Any) -> Any:
    """A format that names the one that it changes replaces what was inherited; any other one changes that."""
    if not isinstance(own, Mapping) or _EXTENDS in own:
        return own
    if isinstance(inherited, str):
        inherited = {_EXTENDS: inherited}
    return change(inherited, own) if isinstance(inherited, Mapping) else own


def _with_formats(keys: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    """The same, every format of it written out."""
    keys = dict(keys)
    if "format" in keys:
        keys["format"] = whole_format(keys["format"], file, "format")
    if isinstance(formats := keys.get("formats"), Mapping):
        keys["formats"] = {glob: whole_format(one, file, f"formats.{glob}") for glob, one in formats.items()}
    return keys


def _check_named(claims: Mapping[str, Claim], named: Sequence[NamedTool]) -> None:
    """Raises UnknownTool where a service is said to be at a host of another one."""
    owners = {host_parts(host): name for name, claim in claims.items() for host in claim.hosts}
    for tool in named:
        for host in tool.hosts:
            owner = owners[host_parts(host)]
            if owner != tool.name:
                raise UnknownTool(f"{tool.name}={host}: {owner} is there already", "name each host once")


def _check_claims(claims: Mapping[str, Claim], files: Mapping[str, Path], *, user: frozenset[str]) -> None:
    hosts: dict[tuple[str, int | None], str] = {}
    paths: dict[tuple[str, bool], str] = {}
    # Packaged ones first, so that the error names the user's file.
    for name in sorted(claims, key=lambda one: one in user):
        for index, pattern in enumerate(claims[name].hosts):
            owner = hosts.setdefault(host_parts(pattern), name)
            if owner != name:
                cure = f"remove it from one of them, or name the file {owner}.yaml to change that profile"
                raise DocumentError(
                    files[name], f"hosts[{index}]", f"{pattern} is claimed by {files[owner]} as well", cure
                )
        for index, glob in enumerate(claims[name].reverse_paths):
            owner = paths.setdefault((glob, name in user), name)
            if owner != name:
                problem = f"{glob} is claimed by {files[owner]} as well"
                raise DocumentError(files[name], f"reverse_paths[{index}]", problem, "remove it from one of them")


def _read_folder(folder: Path, *, packaged: bool = False) -> Iterator[tuple[str, _Document]]:
    """Name and document of each file, in alphabetical order."""
    seen: dict[str, Path] = {}
    for file in sorted(one for one in folder.iterdir() if one.suffix in _SUFFIXES):
        if other := seen.get(file.stem):
            raise DocumentError(file, "", f"{other.name} has the same name", "remove one of them")
        seen[file.stem] = file
        yield file.stem, _read_file(file, packaged=packaged)


def _read_file(file: Path, *, packaged: bool) -> _Document:
    cure = "write settings, such as extends: anthropic, or remove it"
    document = read_document(file, cure_when_empty=cure, packaged=packaged)
    keys = dict(document)
    extends = keys.pop(_EXTENDS, None)
    if extends is None and keys.get("kind") == ProfileKind.PLAIN.value and not (packaged and file.stem == _PLAIN):
        extends = _PLAIN
    if extends is not None and not isinstance(extends, str):
        raise DocumentError(file, _EXTENDS, "expected a profile's name", "write extends: anthropic")
    if "name" in keys:
        raise DocumentError(file, "name", "a profile is named by its file", f"rename {file.name} instead")
    return _Document(file, keys, extends)
