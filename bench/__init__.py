"""What the addon costs beside bare mitmdump: `python -m bench`.

Three ways to one simulated provider, in interleaved rounds of one run, with the same client and the same requests:

    direct   client ─────────────────────────► provider
    bare     client ──► mitmdump ────────────► provider      (a two-line script streams SSE answers)
    addon    client ──► mitmdump + addon ────► provider

With two cores or more the proxy has one for itself; client and provider share another one, for all three alike.
Ratios are taken within a round and their median over the rounds counts, so that a noisy machine disturbs both sides.
"""
