"""Tests of one `xdist_group` run in one process, one after the other: what they share is there once."""

import os

import pytest


@pytest.mark.xdist_group("groups")
@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="without -n all tests are in one process")
def test_groups_stay_together(request):
    """The scheduler knows a group by the name behind the test's; a pytest that it does not know loses it in silence."""
    assert request.node.nodeid.endswith("@groups")
