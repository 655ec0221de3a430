"""Tables as one test: every row is tried, and one failure names all that are wrong."""

import pytest


def offenders(rows, check):
    """What is wrong, by row; `check(*row)` asserts it of one."""
    found = []
    for row in rows:
        values = row if isinstance(row, tuple) else (row,)
        try:
            check(*values)
        except (AssertionError, pytest.fail.Exception) as error:
            found.append(f"{row!r}: {error}")
    return found
