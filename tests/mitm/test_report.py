from pathlib import Path

from mitmproxy.test import taddons

from hivemind_addon.proxy.mitm.report import make_report
from tests.mitm.samples import make_flow, make_intake


async def test_a_report_says_who_the_proxy_is_and_what_it_does():
    intake = make_intake()
    exchange = intake.intake(make_flow())
    assert exchange.enter()
    with taddons.context() as context:
        context.options.update(confdir="~/of-mine")
        report = make_report(intake, [("127.0.0.1", 4711), ("::1", 4712)])
    assert (report.proxy.port, report.proxy.listens) == (4711, ("127.0.0.1:4711", "::1:4712"))
    assert report.proxy.confdir == str(Path("~/of-mine").expanduser())
    assert "api.anthropic.com" in report.proxy.hosts
    assert [pool.in_flight for pool in report.snapshot.pools] == [1]
    assert [session.live for session in report.tally.sessions] == [1]
