"""SQL views over a journal. Questions read these views, so that a rule about requests stands in one place.

`JournalReader` creates the views in the temporary schema of its connection; the file stays unchanged. Every table and
column of `proxy/journal/schema.py` keeps its name here. Names and columns may become permanent later:

    requests  each `ticket`; `end` is `lost` also where the proxy died and no later proxy has written so yet
    attempts  each `attempt`; `outcome` is `lost` likewise. A lost attempt may have been billed: as in budgets, `tokens`
              and `micro_usd` are then the expected amounts. `tokens_out`: the output; `tokens_in`: the other tokens,
              all input; `tokens_cached`: the part that came from the provider's cache
    costs     each of `attempts` with columns of the request: agent, group, task, session, lineage, model, pool, host,
              arrived, end, and `tries`, the number of all attempts
    retries   those of `costs` that were followed by another attempt, `backed_off_s` after they ended
    runs      each `run`; `lasted_s`, and in `fate` whether the proxy runs or how it ended
"""

# ruff: noqa: S608 - all names are of this project

from hivemind_addon.proxy.journal.tables import AttemptRow, Row, TicketRow

LOST = "lost"
"""The end of a request, and the outcome of an attempt, that the proxy's death cut off."""
ENDS = ("delivered", "gave up", "refused", LOST, "shed", "cancelled")
"""The ends of requests. `refused` is for good: a budget was spent, or the account is refused; `shed` may come back."""
_OF_REQUEST = ("agent", '"group"', "task", "session", "lineage", "model", "pool", "host", "arrived", '"end"')


def views(live_run: int) -> tuple[str, ...]:
    """The statements that create the views. Requests that other runs than `live_run` left open are lost."""
    end = f"""CASE WHEN t."end" = '' AND t.run != {live_run} THEN '{LOST}' ELSE t."end" END"""
    lost = f"(a.outcome = '' AND (SELECT run FROM ticket WHERE id = a.ticket) != {live_run})"
    booked = "CASE WHEN a.outcome = '{lost}' OR {is_lost} THEN a.expected_{unit} ELSE a.{unit} END"
    changed = {unit: booked.format(lost=LOST, is_lost=lost, unit=unit) for unit in ("tokens", "micro_usd")}
    changed["outcome"] = f"CASE WHEN {lost} THEN '{LOST}' ELSE a.outcome END"
    return (
        f"CREATE TEMP VIEW requests AS SELECT {_columns(TicketRow, 't', {'end': end})} FROM ticket t",
        f"""
        CREATE TEMP VIEW attempts AS SELECT {_columns(AttemptRow, "a", changed)},
            {changed["tokens"]} - coalesce(a.output_tokens, 0) AS tokens_in,
            coalesce(a.cache_read_tokens, 0) AS tokens_cached, coalesce(a.output_tokens, 0) AS tokens_out
        FROM attempt a
        """,
        f"""
        CREATE TEMP VIEW costs AS SELECT a.*, {", ".join(f"r.{name}" for name in _OF_REQUEST)}, r.attempts AS tries
        FROM attempts a JOIN requests r ON r.id = a.ticket
        """,
        """
        CREATE TEMP VIEW retries AS SELECT *, max(0, coalesce(retry_at - ended, 0)) AS backed_off_s
        FROM costs WHERE retry_reason != ''
        """,
        f"""
        CREATE TEMP VIEW runs AS SELECT *, coalesce(ended, seen) - began AS lasted_s,
            CASE WHEN ended IS NOT NULL THEN 'stopped' WHEN id = {live_run} THEN 'runs' WHEN listened THEN 'died'
            ELSE 'was killed while it started' END AS fate
        FROM run
        """,
    )


def _columns(kind: type[Row], table: str, changed: dict[str, str]) -> str:
    plain = {name: f'{table}."{name}"' for name in kind.__struct_fields__}
    return ", ".join(f'{sql} AS "{name}"' for name, sql in (plain | changed).items())
