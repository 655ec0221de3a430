from pathlib import Path

import pytest

from hivemind_addon.tools.mcp.page import filled

PAGE = Path(__file__).parents[3] / "docs" / "mcp.md"
MARKS = "".join(f"<!-- {name} -->\n<!-- end -->\n" for name in ("permissions", "own tools", "allowed tools"))


def test_tools_with_their_arguments_stand_between_the_marks(golden):
    golden("page.md", filled(MARKS))
    assert filled(filled(MARKS)) == filled(MARKS)
    assert filled(PAGE.read_text()).count("<!--") == PAGE.read_text().count("<!--")


def test_a_page_without_a_mark_is_named():
    with pytest.raises(AssertionError, match="has no permissions"):
        filled("# Tools")
