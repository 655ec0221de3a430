"""Who asks: agent, session and account, from what an unmodified agent sends anyway."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote_plus

from msgspec import Raw, Struct

from hivemind_addon.formats.base.memo import REMEMBERED_CHARS, by_text, by_thing
from hivemind_addon.formats.base.patterns import glob_matches, matching_path, normal_path
from hivemind_addon.formats.profile.model import CallRule, ClientRule, Profile, RequestPlace
from hivemind_addon.formats.wire.proxy_user import MAX_HEADER_CHARS, clean, short_hash
from hivemind_addon.formats.wire.request import RequestFacts
from hivemind_addon.kernel.values.ticket import CallKind

_BODY = "body"
_SAID_BYTES = 2000
_TEXT_KEY = b'"text":'
"""As a member of an object; within a text its quotes would be escaped."""
_ACCOUNT_CHARS = 12
"""48 bits of a key's hash tell accounts apart; of a key with some 200 random bits they let nobody guess anything."""
_HEADS = 1024
"""So many heads are remembered for each set of conditions."""

HEADLESS = (
    # Claude Code names its entry point (2026-11): `sdk-cli` is `claude -p`, the others are its SDKs and its action on
    # GitHub. In a terminal it is `cli`, in an editor `claude-vscode`.
    ClientRule({"user-agent": r"^claude-cli/[^(]*\([^)]*\b(sdk-(cli|ts|py)|claude-code-github-action)\b"}),
    # Its background sessions.
    ClientRule({"x-app": "^cli-bg$"}),
    # Codex names its originator (2026-11): `codex exec`, and its SDKs, which run that. In a terminal it is
    # `codex_cli_rs` or `codex-tui`, in an editor `codex_vscode`.
    ClientRule({"originator": "^codex_(exec|sdk_[a-z]+)$"}),
    ClientRule({"user-agent": "^codex_(exec|sdk_[a-z]+)/"}),
)
"""Clients that say that they run headless. What every agent sends is in docs/delivery.md."""

ANONYMOUS = "anonymous"
"""The account of requests without a credential, as local servers take them."""


class Identity(Struct, frozen=True, gc=False):
    """Names that are fit for logs: printable, at most 80 characters, never a credential."""

    agent: str
    session: str
    account: str
    """What the request names; else `key-` and a hash of the credential; else `anonymous`."""
    parent_session: str = ""
    """The session that started this one; empty: none is known."""
    name: str = ""
    """Of the agent, by which rules know it: without a machine's."""


class Machine(Struct, frozen=True, gc=False):
    """What a member of a cluster has to say of itself, where requests come to several machines."""

    has_own_agents: bool = False
    """An agent of the same name at another machine is another agent: names end with `@` and the machine's."""
    name: str = ""
    account_key: bytes = b""
    """Credentials are hashed with it; all members have the same one. Empty: without."""


ALONE = Machine()
"""A proxy that is in no cluster."""


class _Place(NamedTuple):
    """Where a request names something: a header, a text in the JSON object that it holds (`header#member`), or one of
    the request's own body (`body#member`).
    """

    header: str
    """Empty: it is in the body."""
    member: str

    @classmethod
    def parse(cls, text: str) -> "_Place":
        name, _, member = text.partition("#")
        return cls("" if name == _BODY and member else name, member)

    def value(self, headers: Mapping[str, str], members: Mapping[str, str]) -> str:
        """What stands there; empty: nothing. `members`: the body's."""
        if not self.header:
            return members.get(self.member, "").strip()
        value = headers.get(self.header, "")
        if not value:
            return ""
        value = value.strip()[:MAX_HEADER_CHARS]
        return _texts(value).get(self.member, "") if self.member and value else value


class _Places:
    """Some places, of which the first counts at which anything else stands."""

    __slots__ = ("_headers", "_places")

    def __init__(self, places: Sequence[_Place]) -> None:
        self._places = tuple(places)
        self._headers = None if any(one.member for one in places) else tuple(one.header for one in places)
        """Where all of them are headers."""

    def first(self, headers: Mapping[str, str], members: Mapping[str, str], *, unlike: str = "") -> str:
        """What stands there; empty: nothing does."""
        if self._headers is not None:  # of a dozen headers a request has one or none
            values = [headers[name].strip()[:MAX_HEADER_CHARS] for name in filter(headers.get, self._headers)]
        else:
            values = [place.value(headers, members) for place in self._places]
        for value in values:
            if value and value != unlike:
                return value
        return ""


class _Source:
    """A place of an account or of a credential, taken apart once."""

    __slots__ = ("_header", "_pattern", "_query", "place")

    def __init__(self, place: RequestPlace) -> None:
        self._header = "" if place.member else place.header
        self.place = _Place("" if place.body else place.header, place.member or place.body)
        self._query = place.query
        pattern = place.match or place.path
        self._pattern = re.compile(pattern, re.IGNORECASE) if pattern else None

    def value(self, headers: Mapping[str, str], members: Mapping[str, str], path: str) -> str:
        """What stands there; empty: nothing. `path`: with its query."""
        if self._header:
            value = headers.get(self._header, "").strip()
        elif self._query:
            value = _parameter(path, self._query)
        elif self.place.member:
            value = self.place.value(headers, members)
        else:
            value = normal_path(path)
        if self._pattern is None or not value:
            return value
        found = self._pattern.search(value[:MAX_HEADER_CHARS])
        if found is None:
            return ""
        return "/".join(filter(None, found.groups())) if found.re.groups else found[0]


def _parameter(path: str, name: str) -> str:
    """The first value of a parameter in a path's query."""
    query = path.partition("?")[2].partition("#")[0]
    named = (one.partition("=") for one in query.split("&")) if query else ()
    return next((unquote_plus(value).strip() for key, _, value in named if unquote_plus(key) == name and value), "")


class _HeaderConditions:
    """Several conditions, each of place → regular expression: all of its own must be found.

    Answers are remembered by what stands at the places: most of it is the same with every request of an agent.
    """

    def __init__(self, conditions: Sequence[Mapping[str, str]]) -> None:
        self.places = {_Place.parse(name) for condition in conditions for name in condition}
        self._headers = sorted(place.header for place in self.places if not place.member)
        self._members = sorted(place for place in self.places if place.member)
        order = [*(_Place(header, "") for header in self._headers), *self._members]
        self._conditions = [
            [(order.index(_Place.parse(name)), re.compile(text, re.IGNORECASE)) for name, text in condition.items()]
            for condition in conditions
        ]
        self._known: dict[tuple[str | None, ...], tuple[bool, ...]] = {}

    def hold(self, headers: Mapping[str, str], members: Mapping[str, str]) -> tuple[bool, ...]:
        """Which of the conditions hold, in their order."""
        said = tuple(map(headers.get, self._headers))
        if self._members:
            said += tuple([place.value(headers, members) for place in self._members])
        known = self._known.get(said)
        if known is None:
            values = [(value or "").strip()[:MAX_HEADER_CHARS] for value in said]
            known = tuple(all(pattern.search(values[at]) for at, pattern in one) for one in self._conditions)
            if sum(map(len, values)) <= REMEMBERED_CHARS:
                if len(self._known) >= _HEADS:
                    self._known.clear()
                self._known[said] = known
        return known


class CallTest(NamedTuple):
    """A rule of what a request is for, as far as its body decides."""

    rule: CallRule
    system: bytes
    """In lower case, as the following."""
    says: bytes


class _Asker:
    """A profile's rules of who asks and what for, taken apart once."""

    def __init__(self, profile: Profile) -> None:
        self.sessions = _places(profile.session_headers)
        self.sub_agents = _places(profile.subagent_headers)
        self.parents = _places(profile.parent_headers)
        self.parents_beside = tuple(
            (_Place.parse(own), _Place.parse(parent)) for own, parent in profile.parent_beside.items()
        )
        self.accounts = tuple(map(_Source, profile.account))
        self.credentials = tuple(map(_Source, profile.credentials))
        self.calls = tuple(
            CallTest(rule, rule.system.lower().encode(), rule.says.lower().encode()) for rule in profile.calls
        )
        self.heads_of_calls = _HeaderConditions([rule.headers for rule in profile.calls])
        self.headless = _HeaderConditions([rule.headers for rule in (*profile.headless, *HEADLESS)])


_asker = by_thing(_Asker)


def _places(names: Iterable[str]) -> _Places:
    return _Places(tuple(map(_Place.parse, names)))


class Names(NamedTuple):
    """What a request calls the sessions that it comes from; empty: it does not."""

    session: str
    parent: str
    """The session that started this one."""
    sub_agent: str
    """Within the session."""


def names_in(profile: Profile, headers: Mapping[str, str], facts: RequestFacts) -> Names:
    """What stands at a profile's places. `headers` has lower-case names."""
    rules, members = _asker(profile), facts.members
    session = rules.sessions.first(headers, members) or facts.session_hint
    parent = rules.parents.first(headers, members, unlike=session)
    if not parent and rules.parents_beside:
        beside = _Places([parent for own, parent in rules.parents_beside if own.value(headers, members)])
        parent = beside.first(headers, members, unlike=session)
    return Names(
        session=session,
        parent=parent or facts.parent_hint,
        sub_agent=rules.sub_agents.first(headers, members, unlike=session),
    )


def account_of(
    profile: Profile, headers: Mapping[str, str], members: Mapping[str, str], path: str, machine: Machine = ALONE
) -> str:
    """What a request names, else a hash of its credential. `path`: with its query.

    What headers and bodies name is the same at every machine.
    """
    rules = _asker(profile)
    if named := _whole(rules.accounts, headers, members, path):
        return clean(named)
    credential = _whole(rules.credentials, headers, members, path)
    return f"key-{short_hash(credential, _ACCOUNT_CHARS, machine.account_key)}" if credential else ANONYMOUS


def identify(names: Names, account: str, product: str, user: str, peer: str, machine: Machine = ALONE) -> Identity:
    """Name the agent behind one request. `product`: its client's. Empty `user`: the proxy was given none.

    `peer` is the client's connection (address and port): the last resort of an agent that says nothing; in a cluster
    it names the proxy, too.
    """
    return _identify(names, account, product, user, "" if user or names.session else peer, machine)


@lru_cache(maxsize=256)
def _identify(names: Names, account: str, product: str, user: str, peer: str, machine: Machine) -> Identity:
    named, parent, sub_agent = names
    # Without a name of its own an agent has the one of its tree of sessions, so that a new session is no new agent.
    name = clean(user or f"{product}-{short_hash(parent or named or peer)}")
    agent = f"{name}@{machine.name}" if machine.has_own_agents else name
    session = named or (agent if user else f"{name}@{peer}")
    if sub_agent:
        session, parent = f"{session}/{sub_agent}", session
    return Identity(
        agent=agent,
        session=clean(session),
        account=account,
        parent_session=clean(parent) if parent and parent != session else "",
        name=name,
    )


def calls_of(
    profile: Profile, headers: Mapping[str, str], members: Mapping[str, str], path: str
) -> tuple[CallTest, ...]:
    """The profile's rules of what a request is for that one with this head may fit, in their order."""
    rules = _asker(profile)
    if not rules.calls:
        return ()
    fits = rules.heads_of_calls.hold(headers, members)
    return tuple(
        test
        for test, is_head in zip(rules.calls, fits, strict=True)
        if is_head and (not test.rule.paths or matching_path(test.rule.paths, path) is not None)
    )


def call_kind(calls: Iterable[CallTest], facts: RequestFacts, *, has_parent: bool) -> CallKind:
    """What a request is for: by the first rule that it fits, else a sub-agent's where it has a parent, else a turn."""
    beginning = said = None
    for rule, system, says in calls:
        if rule.tools is not None and rule.tools != facts.has_tools:
            continue
        if rule.max_messages is not None and len(facts.messages) > rule.max_messages:
            continue
        if rule.models and not any(glob_matches(glob, facts.model) for glob in rule.models):
            continue
        if system:
            if beginning is None:
                beginning = _beginning(facts.preamble[:1] or facts.messages[:1])
            if system not in beginning:
                continue
        if says:
            if said is None:
                said = _said(facts.messages[-1:])
            if says not in said:
                continue
        return rule.kind
    return CallKind.SUBAGENT if has_parent else CallKind.TURN


def places_of(profile: Profile) -> tuple[set[str], set[str]]:
    """The headers, and the names in bodies, that tell whose account it is, and what for; those of sessions apart."""
    rules = _asker(profile)
    places = {source.place for source in (*rules.accounts, *rules.credentials)}
    for conditions in (rules.heads_of_calls, rules.headless):
        places.update(conditions.places)
    return {one.header for one in places if one.header}, {one.member for one in places if not one.header and one.member}


def is_headless(profile: Profile, headers: Mapping[str, str]) -> bool:
    """Whether a client says that nobody watches it. `headers` has lower-case names."""
    return any(_asker(profile).headless.hold(headers, {}))


def _beginning(raws: Sequence[Raw]) -> bytes:
    """How the first of these begins, as it stands in the JSON, in lower case; there may be none."""
    return bytes(memoryview(raws[0])[:_SAID_BYTES]).lower() if raws else b""


def _said(raws: Sequence[Raw]) -> bytes:
    """The same, and how its last text begins: what a program asks may stand after the results of tools."""
    if not raws:
        return b""
    said, view = bytes(raws[0]), _beginning(raws)
    at = said.rfind(_TEXT_KEY)
    return view if at < _SAID_BYTES else view + said[at : at + _SAID_BYTES].lower()


@lru_cache(maxsize=64)
def _texts(value: str) -> Mapping[str, str]:
    """The texts of a header that holds a JSON object; many rules ask for the same one."""
    try:
        members = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(members, dict):
        return {}
    return {name: text.strip() for name, text in members.items() if isinstance(text, str)}


def _whole(sources: Iterable[_Source], headers: Mapping[str, str], members: Mapping[str, str], path: str) -> str:
    """What the first of these says that says anything."""
    for source in sources:
        if value := source.value(headers, members, path):
            return value
    return ""


def product(headers: Mapping[str, str]) -> str:
    """The user agent's first product without its version: `claude-cli`."""
    return _product(headers.get("user-agent", ""))


@by_text
def _product(user_agent: str) -> str:
    return re.split(r"[/\s(]", user_agent.strip(), maxsplit=1)[0] or "client"
