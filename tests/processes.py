"""Processes of the system, by their ids."""

from hivemind_addon.plugins.fleets.leases.holder import look


def is_alive(pid):
    """Whether it still runs; one that has ended may wait for long until somebody asks for its status."""
    return look(pid) is not None
