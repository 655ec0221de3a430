import pytest

from tests.plugins.fleets.leases.store import EngineMachine, Machine


@pytest.fixture(params=["file", "engine"])
def machine(request, tmp_path):
    """One for each kind of store."""
    if request.param == "file":
        return Machine(tmp_path / "leases.db")
    return EngineMachine(request.getfixturevalue("engine"))


@pytest.fixture
def store(machine):
    with machine.store() as made:
        yield made
