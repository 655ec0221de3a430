"""`python -m lab.bench.machines [--quick] [--only SCENARIO] [--output PAGE]`: machines on one key, and their troubles.

Starts a simulated provider, a Valkey or Redis server, proxies and agents on loopback, lets the scenarios happen in
turn, and prints goals beside measurements; all together take about twelve minutes. Exit status 1: a goal was
not kept.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from lab.bench.machines.scenarios import SCENARIOS, table
from lab.bench.machines.stage import Plan, smaller
from lab.fleets.proxy import NotServing
from lab.markdown import markdown_filled


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.machines", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=tuple(SCENARIOS), help="may be given again")
    parser.add_argument("--quick", action="store_true", help="two machines, few agents, short times")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the logs and journals there")
    parser.add_argument("--output", type=Path, metavar="PAGE", help="write the table into this page")
    options = parser.parse_args(arguments)
    if options.output and (options.only or options.quick):
        parser.error("--output takes the whole table: leave out --only and --quick")
    if not (shutil.which("valkey-server") or shutil.which("redis-server")):
        parser.error("there is no valkey-server and no redis-server on this machine: install redis-server")
    plan = smaller(Plan()) if options.quick else Plan()
    tell = partial(print, file=sys.stderr, flush=True)
    rows, broken = [], False
    for name in options.only or SCENARIOS:
        tell(f"{time.strftime('%H:%M:%S')} {name}")
        with tempfile.TemporaryDirectory(prefix="hm-", ignore_cleanup_errors=True) as place:
            try:
                rows += asyncio.run(SCENARIOS[name](plan, Path(place), tell))
            except* NotServing as errors:
                broken = True
                for error in errors.exceptions:
                    tell(f"{name} BROKEN: {error}")
            if options.keep:
                shutil.copytree(place, options.keep / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
    print(table(rows))
    if options.output:
        page = options.output.read_text(encoding="utf-8")
        options.output.write_text(markdown_filled(page, {"measured": table(rows)}), encoding="utf-8")
    return 1 if broken or any(row.kept is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
