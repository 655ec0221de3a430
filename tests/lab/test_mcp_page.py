from lab.generators.mcp_page import parts
from lab.markdown import markdown_filled

MARKS = "".join(f"<!-- {name} -->\n<!-- end -->\n" for name in ("permissions", "own tools", "allowed tools"))


def test_tools_with_their_arguments_stand_between_the_marks(golden):
    golden("page.md", markdown_filled(MARKS, parts()))
