"""`hivemind pools`: one row a pool of limits, from the report of a running proxy."""

import click
import msgspec

from hivemind_addon.api.command import names_pool
from hivemind_addon.api.report import PoolTally
from hivemind_addon.api.snapshot import MeterView, PoolView
from hivemind_addon.api.words import count, lasting, span
from hivemind_addon.tools.commands.names import pool_names
from hivemind_addon.tools.commands.printing import Format, Row, format_option, print_rows
from hivemind_addon.tools.commands.proxy import one_line, port_option, report_of
from hivemind_addon.tools.dash.glyphs import plain

_TABLE = {
    "pool": "pool",
    "state": "state",
    "slots": "in flight",
    "queued": "queued",
    "waits": "waits p50 / p95",
    "meters": "left of its limits",
    "learned": "learned",
    "garbage": "garbage",
}
_SPARE = ("waits", "learned")
_CSV = (
    "pool",
    "state",
    "in_flight",
    "limit",
    "cap",
    "queued",
    "paused",
    "breaker",
    "blocked_for_s",
    "wait_p50_s",
    "wait_p95_s",
    "admitted",
    "delivered",
    "throttled",
    "garbage",
    "input_tokens",
    "output_tokens",
    "usd",
)


@click.command()
@click.argument("glob", default="*", shell_complete=pool_names)
@port_option
@format_option
@one_line
def pools(glob: str, port: int, form: Format) -> None:
    """Every pool, what shares one set of limits: what is left of them, what runs and waits, what was learned.

    GLOB is a pool's name, its host, or a pattern of either: quote it. `in flight` is of the adaptive limit; `=4`
    behind it is what a person lets it be at most.

    \b
    Examples:
      hivemind pools
      hivemind pools api.anthropic.com
      hivemind pools '*/claude-opus*' --json | jq '.[].meters'
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    report = report_of(port)
    known = report.snapshot.pools
    chosen = [pool for pool in known if names_pool(glob, pool.key)]
    if known and not chosen:
        raise click.ClickException(f"no pool {glob!r}; there are {', '.join(plain(str(pool.key)) for pool in known)}")
    chosen.sort(key=lambda pool: (-(pool.queued + pool.in_flight), str(pool.key)))
    tallies = {tally.key: tally for tally in report.tally.pools}
    if form is Format.TABLE:
        rows = [_worded(pool, tallies.get(pool.key)) for pool in chosen]
        columns = {key: heading for key, heading in _TABLE.items() if key != "garbage" or any(row[key] for row in rows)}
        print_rows(rows, columns, form, none="nothing was sent to any provider yet", spare=_SPARE)
    else:
        print_rows([_plain(pool, tallies.get(pool.key)) for pool in chosen], {key: key for key in _CSV}, form)


def _plain(pool: PoolView, tally: PoolTally | None) -> Row:
    """For programs."""
    return {
        "pool": str(pool.key),
        "account_name": pool.account_name,
        "state": _state(pool),
        "in_flight": pool.in_flight,
        "limit": pool.limit,
        "cap": pool.cap,
        "queued": pool.queued,
        "paused": pool.paused,
        "breaker": pool.breaker,
        "breaker_tries_in_s": pool.breaker_tries_in_s,
        "blocked_for_s": pool.blocked_for_s,
        "wall": msgspec.to_builtins(pool.wall),
        "meters": msgspec.to_builtins(pool.meters),
        "windows": msgspec.to_builtins(pool.windows),
        "learned": msgspec.to_builtins(pool.learned),
        "wait_p50_s": tally.wait_p50_s if tally else None,
        "wait_p95_s": tally.wait_p95_s if tally else None,
        "admitted": tally.admitted if tally else 0,
        "delivered": tally.delivered if tally else 0,
        "throttled": tally.throttled if tally else 0,
        "garbage": tally.garbage if tally else 0,
        "input_tokens": tally.usage.total_input_tokens if tally else 0,
        "output_tokens": tally.usage.output_tokens if tally else 0,
        "tokens": tally.tokens if tally else 0,
        "wasted_tokens": tally.wasted_tokens if tally else 0,
        "usd": tally.micro_usd / 1e6 if tally else 0.0,
        "wasted_usd": tally.wasted_micro_usd / 1e6 if tally else 0.0,
    }


def _worded(pool: PoolView, tally: PoolTally | None) -> Row:
    """For people."""
    windows = [
        f"{plain(one.name)} {'?' if one.used is None else f'{one.used:.0%}'} used"
        + ("" if one.resets_in_s is None else f", anew in {lasting(one.resets_in_s)}")
        for one in pool.windows
    ]
    waits = ""
    if tally and tally.wait_p50_s is not None and tally.wait_p95_s is not None:
        waits = f"{span(tally.wait_p50_s)} / {span(tally.wait_p95_s)}"
    return {
        "pool": plain(str(pool.key)),
        "state": _state(pool),
        "slots": f"{pool.in_flight}/{pool.limit}" + (f" ={pool.cap}" if pool.cap is not None else ""),
        "queued": pool.queued,
        "waits": waits,
        "meters": "\n".join([*map(_meter, pool.meters), *windows]),
        "learned": "\n".join(plain(one.text) for one in pool.learned),
        "garbage": tally.garbage if tally else 0,
    }


def _meter(meter: MeterView) -> str:
    shared = f", {len(meter.shared_by)} pools together" if meter.shared_by else ""
    return f"{plain(meter.name)} {count(meter.level)}/{count(meter.limit)}{shared}"


def _state(pool: PoolView) -> str:
    """What keeps the pool, the hardest first."""
    if pool.paused:
        return "paused"
    if pool.wall is not None:
        return f"spent for {lasting(pool.wall.ends_in_s)}: {plain(pool.wall.reason)}"
    if pool.breaker != "closed":
        tries = "" if pool.breaker_tries_in_s is None else f", tries in {span(pool.breaker_tries_in_s)}"
        return f"provider down{tries}"
    if pool.blocked_for_s > 0:
        return f"told to wait {span(pool.blocked_for_s)}"
    return "busy" if pool.in_flight or pool.queued else "idle"
