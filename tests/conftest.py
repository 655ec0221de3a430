"""What all tests share: a clock that only tests move, and how hard hypothesis looks.

A run looks at the same examples as the one before, alone or among others, here or in CI, so that a commit passes or
fails once and for all.
`HYPOTHESIS_PROFILE=deep pytest …` looks longer and elsewhere; it prints its seed, and `HYPOTHESIS_SEED=…` repeats it.
"""

import gc
import os
import random
import re
import signal
import tempfile
import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tests.engine_server import engine, engine_server  # noqa: F401 - for all tests
from tests.golden import golden, pytest_addoption  # noqa: F401 - for all tests

# Where the variable CI is set, hypothesis's own profile would have each test seeded by its source, not by our seed.
_EVERYWHERE = settings(
    settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# Without a database: it tries first what failed in this folder once.
settings.register_profile("fast", _EVERYWHERE, max_examples=60, database=None)
settings.register_profile("deep", _EVERYWHERE, max_examples=2000)
_FOR_TESTS = {"HIVEMIND_REQUIRE_AGENTS", "HIVEMIND_REQUIRE_BROWSER", "HIVEMIND_REQUIRE_ENGINE", "HIVEMIND_SCREENSHOTS"}
_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "fast")
settings.load_profile(_PROFILE)
if _PROFILE != "deep":
    # One draw in twenty is a constant from the source of our modules that happen to be loaded, which depends on what
    # else is run; hypothesis has no setting for that. It may fail here one day: then its successor is to be found.
    pytest.MonkeyPatch().setattr(providers, "_get_local_constants", Constants)


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads it
def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed of hypothesis here, so that it can be printed; and let the machine be the same everywhere."""
    gc.disable()  # until all tests are collected
    if config.getoption("hypothesis_seed", None) is None:
        # Every worker of a parallel run has to choose the same.
        seed = random.SystemRandom().randrange(2**32) if _PROFILE == "deep" else 1
        config.option.hypothesis_seed = int(os.environ.setdefault("HYPOTHESIS_SEED", str(seed)))
    for name in [name for name in os.environ if name.startswith("HIVEMIND_") and name not in _FOR_TESTS]:
        del os.environ[name]  # the person who runs the tests may be behind a proxy of ours
    # What is journaled and learned on this machine is no test's business; short, for paths of sockets.
    state = tempfile.TemporaryDirectory(prefix="hivemind-", ignore_cleanup_errors=True)
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name
    os.environ["TZ"] = "UTC"  # "today" is the same everywhere
    time.tzset()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A script's background has it ignored, and so would what the tests start.
        signal.signal(signal.SIGINT, signal.default_int_handler)


LONGEST_FIRST = (
    *(
        "browser",
        "real agents",
        "retries",
        "sim/test_scenarios",
        "price",
        "lab/test_bench",
        "tasks",
        "run",
        "e2e/test_start",
    ),
    *("simulated agents", "kernel/test_hidden_limits", "newcomer", "stop", "delivery", "hooks", "cluster"),
    *("lab/test_prove", "budgets", "test_docs", "websocket", "passthrough", "top"),
    *(
        "steer",
        "pages",
        "sim/test_library",
        "sim/test_trial",
        "sim/test_random",
        "kernel/test_limiters",
        "tools",
        "providers",
    ),
    *("capture", "modes", "access", "guard", "leftovers", "hold", "kernel/test_scheduler_machine"),
)
"""Groups that take seconds: begun at the end, one would leave the other processes of a parallel run with nothing to do."""


LONG = re.compile(
    "test_(budgets|campaign|cli|connections|decoding|dialect|digest|engine|examples|fleets|framings|google|hidden_limits|"
    "history|imports|json_schema|library|limiters|live|looking|metrics|overshoot|picture|policy|program|"
    "proxy_command|random|report|runner|scenarios|scheduler_machine|server|shapes|sharing|simulation|terminal|watched|"
    "weight|whatif|who_goes_next|world)"
)
"""Files, wherever they are, that take seconds of processor time."""


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks and xdist reads them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the longest groups begin first, and be every other file a group: what its tests share is made once."""
    for item in items:
        if LONG.fullmatch(item.path.stem):
            item.add_marker("long")
    if not config.getoption("loadgroup", default=False):  # xdist sets it in its processes
        return
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}

    def place(item: pytest.Item) -> int:
        if (marked := item.get_closest_marker("xdist_group")) is None:
            name = item.path.relative_to(config.rootpath / "tests").with_suffix("").as_posix()
            item.add_marker(pytest.mark.xdist_group(marked := name))
        else:
            marked = marked.args[0]
        return places.get(marked, len(places))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """The garbage collector need not look through all modules and tests again and again."""
    gc.freeze()
    gc.enable()


def pytest_report_header(config: pytest.Config) -> str:
    return f"hypothesis: profile {_PROFILE}, HYPOTHESIS_SEED={config.option.hypothesis_seed}"


class FakeClock:
    """Time that moves only when told."""

    def __init__(self, now: float = 1000.0, wall_offset_s: float = 1.7e9) -> None:
        self.now = now
        self._wall_offset_s = wall_offset_s
        self._asleep_s = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + self._wall_offset_s

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def awake(self) -> float:
        return self.now - self._asleep_s

    def sleep(self, seconds: float) -> None:
        """The machine sleeps."""
        self.now += seconds
        self._asleep_s += seconds

    def set(self, seconds: float) -> None:
        """Somebody sets the wall clock on, or back."""
        self._wall_offset_s += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
