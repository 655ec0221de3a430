"""A test of the calls for help: one message to each address that a proxy would call."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from hivemind_addon.proxy.api.config_file import ALERTS_VARIABLE
from hivemind_addon.proxy.run.alerts import Alerts, BadAddresses, read_addresses
from hivemind_addon.proxy.system.clock import Clock
from hivemind_addon.tools.launch.finding import Finding, Severity


def send_test(option: str, environment: Mapping[str, str], *, clock: Clock) -> Iterator[Finding]:
    """Send it; a finding for each address. `option`: `hivemind_notify` as a running proxy shows it, or empty."""
    try:
        if option in ("", f"${ALERTS_VARIABLE}"):
            urls = environment.get(ALERTS_VARIABLE, "").split()
        else:
            file = Path(option).expanduser()
            if not file.is_file() or os.access(file, os.X_OK):
                cure = f'try it: echo \'{{"text": "a test"}}\' | {option}'
                yield Finding(Severity.NOTE, "alert.command", "alert: hivemind_notify is a command", cure)
                return
            urls = read_addresses(file)
        if not urls:
            where = f"hivemind_notify and {ALERTS_VARIABLE} are empty"
            cure = f"`export {ALERTS_VARIABLE}=ntfy://TOPIC`, for example"
            yield Finding(Severity.BAD, "alert.none", f"alert: {where}", cure)
            return
        alerts = Alerts(urls)
    except BadAddresses as error:
        said, _, cure = str(error).rpartition("; ")
        yield Finding(Severity.BAD, "alert.addresses", f"alert: {said}", cure)
        return
    for name, why in asyncio.run(alerts.send_test(clock.wall())):
        if why:
            yield Finding(Severity.BAD, "alert.refused", f"alert: {name}: {why}", "correct it, or ask the service")
        else:
            yield Finding(Severity.GOOD, "alert.taken", f"alert: {name}: the service has taken it")
