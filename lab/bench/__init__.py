"""What the addon costs beside bare mitmdump: `python -m lab.bench`.

Three ways to one provider, in interleaved rounds of one run, with the same client and the same requests:

    direct   client ─────────────────────────► provider
    bare     client ──► mitmdump ────────────► provider      (a two-line script streams SSE answers)
    addon    client ──► mitmdump + addon ────► provider

With two cores or more the proxy has one for itself; client and provider share another one, for all three alike.
Ratios are taken within a round and their median over the rounds counts, so that a noisy machine disturbs both sides;
every second round goes the other way round. On a busy machine trust what is counted (`python -m lab.bench.calls`), then
processor time, then ratios of times; absolute times never.

    python -m lab.bench --only "1 KB plain, 20" --rounds 4     some cells
    python -m lab.bench.calls --only "1 KB plain, 1" --top 40  calls, hooks, tasks, timers, writes, garbage: no times
    python -m lab.bench.decisions                              the core alone
"""
