"""The goals and what was measured, as a table between two marks of a page."""

import re

BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
_HEAD = "| | goal | measured | |\n| --- | --- | --- | --- |\n"
_ROW = re.compile(r"^\| (?!\| goal)([^|]+) \|[^\n]*$", re.MULTILINE)


def table(rows):
    """Rows → Markdown."""
    return _HEAD + "".join(f"{line(row)}\n" for row in rows)


def line(row):
    """One row."""
    verdict = {None: "", True: "kept", False: "**not kept**"}[row.kept]
    return f"| {row.what} | {row.goal} | {row.measured} | {verdict} |"


def written(before, rows):
    """A page with these rows between its marks, in place of those of the same name; the others stay."""
    head, begun, rest = before.partition(BEGIN)
    old, _, tail = rest.partition(END) if begun else ("", "", "")
    lines = {name: whole for name, whole in ((match[1], match[0]) for match in _ROW.finditer(old)) if name != "---"}
    lines |= {row.what: line(row) for row in rows}
    return f"{head}{BEGIN}\n{_HEAD}{''.join(f'{one}\n' for one in lines.values())}{END}{tail or '\n'}"
