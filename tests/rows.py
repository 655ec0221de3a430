"""A table of cases as one test: every row is tried, and one failure names all that are wrong."""

import functools
import inspect
from contextlib import contextmanager

import pytest


def each(names, rows):
    """Like `pytest.mark.parametrize`, as one item: a test's arguments by name, and the rows of their values.

    Fixtures are made once for all rows.
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

    def one_test(check):
        signature = inspect.signature(check)

        def cases(fixtures):
            for row in rows:
                yield row, fixtures | dict(zip(names, (row,) if len(names) == 1 else row, strict=True))

        @functools.wraps(check)
        def test(**fixtures):
            wrong = []
            for row, case in cases(fixtures):
                with _kept(wrong, row):
                    check(**case)
            assert not wrong, "\n".join(wrong)

        @functools.wraps(check)
        async def async_test(**fixtures):
            wrong = []
            for row, case in cases(fixtures):
                with _kept(wrong, row):
                    await check(**case)
            assert not wrong, "\n".join(wrong)

        made = async_test if inspect.iscoroutinefunction(check) else test
        fixtures = [one for one in signature.parameters.values() if one.name not in names]
        made.__signature__ = signature.replace(parameters=fixtures)
        return made

    return one_test


@contextmanager
def _kept(wrong, row):
    try:
        yield
    except (AssertionError, pytest.fail.Exception) as error:
        wrong.append(f"{row!r}: {error}")
    except Exception as error:
        error.add_note(f"in the row {row!r}")
        raise
