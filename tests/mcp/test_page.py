from hivemind_addon.tools.mcp.page import page
from hivemind_addon.tools.mcp.scope import Permission
from hivemind_addon.tools.mcp.tools import TOOLS


def test_every_tool_with_its_arguments_and_every_permission_is_in_it():
    text = page()
    for tool in TOOLS:
        assert f"\n### {tool.name}\n\n{tool.description}" in text
    for permission in Permission:
        assert f"\n| `{permission.value}` | `" in text
    assert "\n| `names` | list of texts | required | All of them are taken at once" in text
    assert "\n| `priority` | `critical`, `high`, `low`, `normal` | `normal` |" in text
    assert "\n| `seconds` | number, 1 to 3,600 | `60` | It ends by itself |" in text


def test_what_needs_leave_stands_apart():
    own, _, allowed = page().partition("## Tools that have to be allowed")
    assert "### status" in own
    assert "### submit" not in own
    assert "### submit" in allowed
