"""Tests of one `xdist_group` run in one process, one after the other: what they share is there once."""

import os
import re
from pathlib import Path

import pytest

from tests.conftest import LONGEST_FIRST


@pytest.mark.xdist_group("groups")
@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="without -n all tests are in one process")
def test_groups_stay_together(request):
    """The scheduler knows a group by the name behind the test's; a pytest that it does not know loses it in silence."""
    assert request.node.nodeid.endswith("@groups")


def test_every_group_that_begins_first_is_there():
    folder = Path(__file__).parent
    marked = set(re.findall(r"xdist_group\(\"([^\"]+)\"\)", "".join(map(Path.read_text, folder.rglob("test_*.py")))))
    files = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("test_*.py")}
    assert set(LONGEST_FIRST) - marked - files == set()
