"""Many machines on one key, for real: proxies, an engine, agents and a strict provider, and what came of each failure."""
