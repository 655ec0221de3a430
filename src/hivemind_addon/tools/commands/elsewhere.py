"""Options of hivemind-scheduler 0.2.0 that mean nothing here: why, and what to do instead.

Those of its options that mean the same here (`--host`, `--port`, `--upstream`, `--max-concurrency`, `--db`,
`--total-budget`, `--agent-budget`) are options of `hivemind run`, which is `hivemind proxy`, too.
"""

from collections.abc import Mapping

_PROFILE = (
    "a provider's profile says that: a file with `extends: {extends}` and `{key}` in --set hivemind_profiles=FOLDER"
)
_OF_THE_PROXY = (
    "that is for the proxy: hivemind proxy {name} {value}. This serves tools to agents, and finds it by --port"
)


def _in_profile(key: str) -> str:
    return _PROFILE.format(extends="anthropic", key=key)


OF_PROXY: Mapping[str, str] = {
    "--min-concurrency": "the limit falls as far as the provider makes it, to one request at the least: leave it out",
    "--max-retries": _in_profile("retry: {max_failures: 3}"),
    "--retry-base-delay": _in_profile("retry: {first_backoff_s: 1.0}"),
    "--retry-max-delay": _in_profile("retry: {max_backoff_s: 30.0}"),
    "--latency-target": "a slow answer is no overload here, the limit learns from refusals: leave it out",
    "--aimd-increase": "the limit is learned from what is refused, not moved by fixed steps: leave it out",
    "--aimd-decrease": "the limit is learned from what is refused, not moved by fixed steps: leave it out",
}
"""Of `hivemind proxy`."""
OF_SERVE: Mapping[str, str] = {
    name: _OF_THE_PROXY.format(name=name, value=value)
    for name, value in {
        "--upstream": "URL",
        "--max-concurrency": "N",
        "--total-budget": "AMOUNT",
        "--agent-budget": "AMOUNT",
        "--db": "FILE",
    }.items()
} | {name: OF_PROXY[name] for name in ("--max-retries", "--min-concurrency")}
"""Of `hivemind serve`."""
