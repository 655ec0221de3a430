"""Golden files: text for people, kept beside the tests that make it, and read by a person when it changes.

A test asks for the fixture and hands it what was printed:

    def test_people_see_who_waits(golden):
        golden("agents.txt", run("agents").stdout)

The file is `golden/agents.txt` in the test's own folder. `pytest --accept-golden` writes what is there now; what has
changed is to be read in `git diff` before it is committed.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

type Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept-golden", action="store_true", help="Write golden files as tests find them now.")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with a file in `golden/` beside the test. Blanks at the ends of lines do not count."""
    folder = request.path.parent / "golden"
    accept: bool = request.config.getoption("--accept-golden")

    def compare(name: str, text: str) -> None:
        found = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
        file = folder / name
        if accept:
            file.parent.mkdir(exist_ok=True)
            if not file.is_file() or file.read_text(encoding="utf-8") != found:
                file.write_text(found, encoding="utf-8")
            return
        where = file.relative_to(Path(__file__).parents[1])
        assert file.is_file(), f"{where} is missing; `pytest --accept-golden` writes it"
        assert found == file.read_text(encoding="utf-8"), f"not as in {where}; is that right? pytest --accept-golden"

    return compare
