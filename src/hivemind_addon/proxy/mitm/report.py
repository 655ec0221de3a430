"""What the proxy says of itself, to whoever asks by the control socket or a page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mitmproxy import ctx

from hivemind_addon import __version__
from hivemind_addon.api.report import QUEUED_TOLD, ProxyView, Report
from hivemind_addon.api.snapshot import SCHEMA_VERSION
from hivemind_addon.proxy.mitm.listeners import web_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hivemind_addon.proxy.mitm.intake import Intake


def make_report(intake: Intake, listens: Sequence[tuple[str, int]]) -> Report:
    """Everything that is told, now. `listens`: at least one address."""
    profiles, clock = intake.settings.profiles.by_name.values(), intake.driver.clock
    return Report(
        version=SCHEMA_VERSION,
        proxy=ProxyView(
            pid=os.getpid(),
            port=listens[0][1],
            listens=tuple(f"{host}:{port}" for host, port in listens),
            confdir=str(Path(ctx.options.confdir).expanduser()),
            hosts=tuple(sorted({host for profile in profiles for host in profile.hosts})),
            version=__version__,
            began_wall=intake.began_wall,
            web=web_page(),
            open_files=intake.places.limit,
            unscheduled=tuple(sorted(intake.unscheduled)),
        ),
        snapshot=intake.driver.snapshot(most_queued=QUEUED_TOLD),
        tally=intake.runtime.tally.view(clock.monotonic()),
        told_wall=clock.wall(),
    )
