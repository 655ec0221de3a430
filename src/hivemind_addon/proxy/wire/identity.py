"""Who asks: agent, session and account, from what an unmodified agent sends anyway."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from msgspec import Raw

from hivemind_addon.api.proxy_user import MAX_HEADER_CHARS, clean, short_hash
from hivemind_addon.api.ticket import CallKind
from hivemind_addon.proxy.profile.model import CallRule, ClientRule, Profile
from hivemind_addon.proxy.wire.request import RequestFacts
from hivemind_addon.system.patterns import glob_matches, matching_path

_BODY = "body"
_SAID_BYTES = 2000

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


@dataclass(frozen=True, slots=True)
class Identity:
    """Names that are fit for logs: printable, at most 80 characters, never a credential."""

    agent: str
    session: str
    account: str
    """What the request names; else `key-` and a hash of the credential; else `anonymous`."""
    parent_session: str = ""
    """The session that started this one; empty: none is known."""


def identify(profile: Profile, headers: Mapping[str, str], facts: RequestFacts, proxy_user: str, peer: str) -> Identity:
    """Name the agent behind one request. `headers` has lower-case names; empty `proxy_user`: none was given.

    `peer` is the client's connection (address and port): the last resort of an agent that says nothing.
    """
    named = next(_values(headers, facts, profile.session_headers, unlike=""), facts.session_hint)
    beside = [parent for own, parent in profile.parent_beside.items() if _value(headers, facts, own)]
    parent = next(_values(headers, facts, (*profile.parent_headers, *beside), unlike=named), facts.parent_hint)
    sub_agent = next(_values(headers, facts, profile.subagent_headers, unlike=named), "")
    account = _account(profile, headers)
    # Without a name of its own an agent has the one of its tree of sessions, so that a new session is no new agent.
    agent = proxy_user or f"{product(headers)}-{short_hash(parent or named or peer)}"
    session = named or proxy_user or f"{agent}@{peer}"
    if sub_agent:
        session, parent = f"{session}/{sub_agent}", session
    return Identity(
        agent=clean(agent),
        session=clean(session),
        account=account,
        parent_session=clean(parent) if parent != session else "",
    )


def call_kind(
    profile: Profile, headers: Mapping[str, str], facts: RequestFacts, path: str, *, has_parent: bool
) -> CallKind:
    """What a request is for: by the profile's rules, else a sub-agent's where it has a parent, else a turn."""
    for rule in profile.calls:
        if _rule_matches(rule, headers, facts, path):
            return rule.kind
    return CallKind.SUBAGENT if has_parent else CallKind.TURN


def is_headless(profile: Profile, headers: Mapping[str, str]) -> bool:
    """Whether a client says that nobody watches it. `headers` has lower-case names."""
    return any(
        all(
            re.search(text, headers.get(name, "")[:MAX_HEADER_CHARS], re.IGNORECASE)
            for name, text in rule.headers.items()
        )
        for rule in (*profile.headless, *HEADLESS)
    )


def _rule_matches(rule: CallRule, headers: Mapping[str, str], facts: RequestFacts, path: str) -> bool:
    return (
        (rule.tools is None or rule.tools == facts.has_tools)
        and (rule.max_messages is None or len(facts.messages) <= rule.max_messages)
        and (not rule.paths or matching_path(rule.paths, path) is not None)
        and (not rule.models or any(glob_matches(glob, facts.model) for glob in rule.models))
        and all(re.search(text, _value(headers, facts, name), re.IGNORECASE) for name, text in rule.headers.items())
        and _is_said(rule.system, (*facts.preamble, *facts.messages)[:1])
        and _is_said(rule.says, facts.messages[-1:])
    )


def _is_said(words: str, raws: Iterable[Raw]) -> bool:
    """Whether the beginning of any of these, as it stands in the JSON, has the words; no words are always said."""
    wanted = words.lower().encode()
    return not wanted or any(wanted in bytes(memoryview(raw)[:_SAID_BYTES]).lower() for raw in raws)


def _values(headers: Mapping[str, str], facts: RequestFacts, names: Iterable[str], *, unlike: str) -> Iterator[str]:
    return (value for name in names if (value := _value(headers, facts, name)) and value != unlike)


def _value(headers: Mapping[str, str], facts: RequestFacts, name: str) -> str:
    """A header's value, a text in the JSON object that it holds (`name#member`), or one of the request's own body
    (`body#member`); empty where there is none.
    """
    name, _, member = name.partition("#")
    if name == _BODY and member:
        return facts.members.get(member, "").strip()
    value = headers.get(name, "").strip()[:MAX_HEADER_CHARS]
    return _texts(value).get(member, "") if member and value else value


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


def _account(profile: Profile, headers: Mapping[str, str]) -> str:
    if named := _first(headers, profile.request_account_headers):
        return clean(named)
    credential = _first(headers, profile.credential_headers)
    return f"key-{short_hash(credential, 12)}" if credential else ANONYMOUS


def _first(headers: Mapping[str, str], names: Iterable[str]) -> str:
    return next((value for name in names if (value := headers.get(name, "").strip())), "")


def product(headers: Mapping[str, str]) -> str:
    """The user agent's first product without its version: `claude-cli`."""
    return re.split(r"[/\s(]", headers.get("user-agent", "").strip(), maxsplit=1)[0] or "client"
