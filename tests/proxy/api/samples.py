"""Reports for what serves them."""

from hivemind_addon.proxy.api.report_source import ReportSource
from hivemind_addon.proxy.system.clock import SystemClock


def reports_of(report):
    """A source of what a function makes, in two parts."""

    def parts():
        yield
        return report()

    return ReportSource(parts, SystemClock().monotonic)
