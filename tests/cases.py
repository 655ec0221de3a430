"""A table of cases as one test: all are tried, and its failure names each one that fails."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest


def each(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Call the test for each case, with these arguments; written as `pytest.mark.parametrize` is, and stacked as it is.

    The fixtures are the same for all cases: what has to be fresh for each is made in the test.
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [dict(zip(names, (case,) if len(names) == 1 else case, strict=True)) for case in cases]
    assert table, "there is no case"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def over_all(**fixtures: Any) -> None:
            failed: list[Exception] = []
            for case in table:
                with _kept(failed, case):
                    test(**fixtures, **case)
            _tell(failed)

        @functools.wraps(test)
        async def over_all_async(**fixtures: Any) -> None:
            failed: list[Exception] = []
            for case in table:
                with _kept(failed, case):
                    await test(**fixtures, **case)
            _tell(failed)

        def _tell(failed: list[Exception]) -> None:
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(table)} cases fail", failed)

        made: Any = over_all_async if inspect.iscoroutinefunction(test) else over_all
        signature = inspect.signature(test)
        made.__signature__ = signature.replace(  # pytest reads which fixtures it wants
            parameters=[one for name, one in signature.parameters.items() if name not in names]
        )
        return made

    return decorate


@contextmanager
def _kept(failed: list[Exception], case: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except pytest.fail.Exception as error:
        failed.append(AssertionError(f"{error}, in the case {case}"))
    except Exception as error:  # noqa: BLE001 - all are told in the end
        error.add_note(f"in the case {case}")
        failed.append(error)
