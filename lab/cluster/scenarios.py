"""Faults of a cluster, and the promises that hold all the same: the rows of the table in `docs/cluster.md`."""

from collections.abc import Callable
from functools import partial

from lab.cluster.network import Weather
from lab.cluster.world import FAULTS_FROM_S, ClusterWorld, FailureScenario

type Faults = Callable[[ClusterWorld], None]
_LAST_FAULT_S = 4.0
_FAR_S = (0.02, 0.05)
"""To an engine on another continent."""


def _strikes(strike: Faults, *times: int) -> Faults:
    """A strike at a random instant, so many times."""

    def faults(world: ClusterWorld) -> None:
        for _ in range(world.rng.choice(times) if times else 1):
            world.agenda.at(world.rng.uniform(FAULTS_FROM_S, _LAST_FAULT_S), strike, world)

    return faults


def _bad_hops(world: ClusterWorld) -> None:
    rng = world.rng
    weather = Weather(
        hop_s=rng.choice([Weather().hop_s, _FAR_S]),
        slow_rate=rng.choice([0.0, 0.1, 0.3]),
        slow_s=(0.01, 0.3),
        loss_rate=rng.choice([0.0, 0.02, 0.1]),
        double_rate=rng.choice([0.0, 0.1]),
    )
    world.agenda.at(FAULTS_FROM_S, world.foul_weather, weather)


def _very_bad_hops(world: ClusterWorld) -> None:
    loss_rate = world.rng.uniform(0.1, 0.4)
    world.foul_weather(Weather(slow_rate=0.3, slow_s=(0.1, 4), loss_rate=loss_rate, break_rate=0.1, double_rate=0.2))


def _coordinator_killed(world: ClusterWorld) -> None:
    def kill(world: ClusterWorld) -> None:
        world.kill(world.coordinator(), world.rng.uniform(0.2, 4))

    _strikes(kill)(world)
    if world.rng.random() < 0.5:
        # Two within the time in which one is elected leave the others alone.
        world.agenda.at(world.rng.uniform(_LAST_FAULT_S + 3.5, _LAST_FAULT_S + 4.5), kill, world)


def _machine_sleeps(world: ClusterWorld) -> None:
    place = world.rng.choice(world.places)
    _strikes(lambda world: world.pause(place, world.rng.uniform(2, 6), machine=True))(world)


_coordinator_stops = _strikes(lambda world: world.stop(world.coordinator(), world.rng.uniform(0.5, 3)), 1, 2)
_member_killed = _strikes(lambda world: world.kill(world.member(), world.rng.uniform(0.2, 4)), 1, 2)
_coordinator_paused = _strikes(lambda world: world.pause(world.coordinator(), world.rng.uniform(0.5, 6)))
_member_paused = _strikes(lambda world: world.pause(world.member(), world.rng.uniform(0.5, 6)))
_member_cut_short = _strikes(lambda world: world.cut(world.member(), world.rng.uniform(0.2, 2.0)))
_member_cut = _strikes(lambda world: world.cut(world.member(), world.rng.uniform(3, 6)))
_coordinator_cut = _strikes(lambda world: world.cut(world.coordinator(), world.rng.uniform(0.2, 6)))
_engine_short = _strikes(lambda world: world.engine_gone(world.rng.uniform(0.1, 1.0)))
_engine_long = _strikes(lambda world: world.engine_gone(world.rng.uniform(3, 6)))
_engine_empty = _strikes(lambda world: world.engine_gone(world.rng.uniform(0.1, 6), empty=True))
_engine_flushed = _strikes(ClusterWorld.engine_flushed, 1, 2)


def _everything(world: ClusterWorld) -> None:
    rng = world.rng
    faults = [
        _coordinator_stops, _coordinator_killed, _member_killed, _coordinator_paused, _member_paused, _machine_sleeps,
        _member_cut, _coordinator_cut, _engine_short, _engine_long, _engine_empty, _engine_flushed,
    ]  # fmt: skip
    if rng.random() < 0.5:
        rng.choice([_bad_hops, _very_bad_hops])(world)
    for fault in rng.sample(faults, rng.choice([2, 3])):
        fault(world)


def _shares_of_others(limit: int, members: int) -> float:
    return (members - 1) * max(1, limit // members)


def _all_of_one(limit: int, members: int) -> float:  # noqa: ARG001 - as a promise is asked
    return limit


def _either(limit: int, members: int) -> float:
    return max(limit, _shares_of_others(limit, members))


_something_dies = partial(FailureScenario, exact_books=False)
_one_flies_on = partial(FailureScenario, over_limit=_all_of_one)
_one_is_alone = partial(FailureScenario, over_limit=_all_of_one, never_alone=False)
_all_are_alone = partial(FailureScenario, over_limit=_shares_of_others, never_alone=False)
_anything = partial(FailureScenario, over_limit=_either, exact_books=False, never_alone=False)

SCENARIOS = (
    FailureScenario("nothing fails", lambda world: None),  # noqa: ARG005 - all is well
    FailureScenario("messages are late, lost, doubled or out of order", _bad_hops),
    _anything("messages are seconds late, or a third is lost", _very_bad_hops),
    FailureScenario("the coordinator ends in order", _coordinator_stops),
    _something_dies("the coordinator is killed", _coordinator_killed),
    _something_dies("a member is killed", _member_killed),
    _one_flies_on("the coordinator stands still, and goes on", _coordinator_paused),
    _one_flies_on("a member stands still, and goes on", _member_paused),
    FailureScenario("a machine sleeps, and wakes", _machine_sleeps),
    FailureScenario("a member is cut off for a moment", _member_cut_short),
    _one_is_alone("a member is cut off", _member_cut),
    _one_is_alone("the coordinator is cut off", _coordinator_cut),
    FailureScenario("the engine is gone for a moment", _engine_short),
    _all_are_alone("the engine is gone", _engine_long),
    _all_are_alone("the engine restarts empty", _engine_empty),
    FailureScenario("the engine loses its keys", _engine_flushed),
    _anything("several of these at once", _everything),
)
