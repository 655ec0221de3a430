"""What goes wrong in a cluster, and what holds all the same: the rows of the table in `docs/cluster.md`."""

from collections.abc import Callable

from lab.cluster.network import Weather
from lab.cluster.world import FAULTS_FROM_S, ClusterWorld, FailureScenario, Place, Promise

_LAST_FAULT_S = 4.0
_FAR_S = (0.02, 0.05)
"""To an engine on another continent."""


def _nothing(world: ClusterWorld) -> None:
    """All is well."""


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
    rng = world.rng
    world.foul_weather(
        Weather(slow_rate=0.3, slow_s=(0.1, 4), loss_rate=rng.uniform(0.1, 0.4), break_rate=0.1, double_rate=0.2)
    )


def _coordinator_stops(world: ClusterWorld) -> None:
    for _ in range(world.rng.choice([1, 2])):
        _at(world, lambda: world.stop(world.coordinator(), again_after_s=world.rng.uniform(0.5, 3)))


def _coordinator_killed(world: ClusterWorld) -> None:
    def kill() -> None:
        world.kill(world.coordinator(), again_after_s=world.rng.uniform(0.2, 4))

    _at(world, kill)
    if world.rng.random() < 0.5:
        # Two within the time in which one is elected leave the others alone.
        world.agenda.at(world.rng.uniform(_LAST_FAULT_S + 3.5, _LAST_FAULT_S + 4.5), kill)


def _member_killed(world: ClusterWorld) -> None:
    for _ in range(world.rng.choice([1, 2])):
        _at(world, lambda: world.kill(world.member(), again_after_s=world.rng.uniform(0.2, 4)))


def _coordinator_paused(world: ClusterWorld) -> None:
    _at(world, lambda: world.pause(world.coordinator(), world.rng.uniform(0.5, 6)))


def _member_paused(world: ClusterWorld) -> None:
    _at(world, lambda: world.pause(world.member(), world.rng.uniform(0.5, 6)))


def _machine_sleeps(world: ClusterWorld) -> None:
    place = world.rng.choice(world.places)
    _at(world, lambda: world.sleep(place, world.rng.uniform(2, 6)))


def _member_cut_short(world: ClusterWorld) -> None:
    _at(world, lambda: _cut(world, world.member(), world.rng.uniform(0.2, 2.0)))


def _member_cut(world: ClusterWorld) -> None:
    _at(world, lambda: _cut(world, world.member(), world.rng.uniform(3, 6)))


def _coordinator_cut(world: ClusterWorld) -> None:
    _at(world, lambda: _cut(world, world.coordinator(), world.rng.uniform(0.2, 6)))


def _engine_short(world: ClusterWorld) -> None:
    _at(world, lambda: world.engine_gone(world.rng.uniform(0.1, 1.0)))


def _engine_long(world: ClusterWorld) -> None:
    _at(world, lambda: world.engine_gone(world.rng.uniform(3, 6)))


def _engine_empty(world: ClusterWorld) -> None:
    _at(world, lambda: world.engine_gone(world.rng.uniform(0.1, 6), empty=True))


def _engine_flushed(world: ClusterWorld) -> None:
    for _ in range(world.rng.choice([1, 2])):
        _at(world, world.engine_flushed)


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


def _cut(world: ClusterWorld, place: Place, lasts_s: float) -> None:
    up, down = world.rng.choice([(True, True), (True, True), (True, False), (False, True)])
    world.cut(place, lasts_s, up=up, down=down)


def _at(world: ClusterWorld, fault: Callable[[], None]) -> None:
    world.agenda.at(world.rng.uniform(FAULTS_FROM_S, _LAST_FAULT_S), fault)


def _shares_of_others(limit: int, members: int) -> float:
    return (members - 1) * max(1, limit // members)


def _all_of_one(limit: int, members: int) -> float:  # noqa: ARG001 - as a promise is asked
    return limit


def _either(limit: int, members: int) -> float:
    return max(_all_of_one(limit, members), _shares_of_others(limit, members))


_SOMETHING_DIED = Promise(books="what died")
_ONE_FLIES_ON = Promise(over_limit=_all_of_one)
_ONE_IS_ALONE = Promise(over_limit=_all_of_one, never_alone=False)
_ALL_ARE_ALONE = Promise(over_limit=_shares_of_others, never_alone=False)
_ANYTHING = Promise(over_limit=_either, books="what died", never_alone=False)

SCENARIOS = (
    FailureScenario("nothing fails", _nothing),
    FailureScenario("messages are late, lost, doubled or out of order", _bad_hops),
    FailureScenario("messages are seconds late, or a third is lost", _very_bad_hops, _ANYTHING),
    FailureScenario("the coordinator ends in order", _coordinator_stops),
    FailureScenario("the coordinator is killed", _coordinator_killed, _SOMETHING_DIED),
    FailureScenario("a member is killed", _member_killed, _SOMETHING_DIED),
    FailureScenario("the coordinator stands still, and goes on", _coordinator_paused, _ONE_FLIES_ON),
    FailureScenario("a member stands still, and goes on", _member_paused, _ONE_FLIES_ON),
    FailureScenario("a machine sleeps, and wakes", _machine_sleeps),
    FailureScenario("a member is cut off for a moment", _member_cut_short),
    FailureScenario("a member is cut off", _member_cut, _ONE_IS_ALONE),
    FailureScenario("the coordinator is cut off", _coordinator_cut, _ONE_IS_ALONE),
    FailureScenario("the engine is gone for a moment", _engine_short),
    FailureScenario("the engine is gone", _engine_long, _ALL_ARE_ALONE),
    FailureScenario("the engine restarts empty", _engine_empty, _ALL_ARE_ALONE),
    FailureScenario("the engine loses its keys", _engine_flushed),
    FailureScenario("several of these at once", _everything, _ANYTHING),
)
