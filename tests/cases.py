"""A table of cases as one test: all are tried, and its failure names each one that fails."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def over(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Call the test for each case, with these arguments; written as `pytest.mark.parametrize` is, and stacked as it is.

    The fixtures are the same for all cases: what has to be fresh for each is made in the test.
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [dict(zip(names, case if len(names) > 1 else (case,), strict=True)) for case in cases]
    assert table, "there is no case"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        assert not inspect.iscoroutinefunction(test), "nobody would await it"

        @functools.wraps(test)
        def each(**fixtures: Any) -> None:
            failed = []
            for case in table:
                try:
                    test(**fixtures, **case)
                except Exception as error:  # noqa: BLE001 - all are told in the end
                    error.add_note(f"in the case {case}")
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(table)} cases fail", failed)

        signature = inspect.signature(test)
        each.__signature__ = signature.replace(  # type: ignore[attr-defined] # pytest reads which fixtures it wants
            parameters=[one for name, one in signature.parameters.items() if name not in names]
        )
        return each

    return decorate
