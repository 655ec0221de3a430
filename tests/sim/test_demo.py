import dataclasses

from hivemind_addon.api.ticket import Dimension
from hivemind_addon.lab.sim import demo
from hivemind_addon.lab.sim.agents import HOST, Habits
from hivemind_addon.lab.sim.certificate import write_certificates
from hivemind_addon.lab.sim.demo import DemoSettings, PhaseName, demo_settings
from hivemind_addon.lab.sim.limits import LimitKind
from hivemind_addon.proxy.profile.load import load_profiles

SMALL = DemoSettings(
    agents=4,
    habits=Habits(turns=2, opening_chars=100, think_s=(0, 0), latency_s=(0, 0.01), chunks=(2, 4), interval_s=0),
)


class Watcher:
    """Remembers what it saw."""

    def __init__(self):
        self.seen = []

    def began(self, name):
        self.seen.append(name)

    def ticked(self, progress):
        self.seen.append(progress)

    def ended(self, result):
        self.seen.append(result)


async def direct(settings, tmp_path):
    watcher = Watcher()
    certificates = write_certificates(tmp_path, HOST, demo.datetime.now(demo.UTC))
    return await demo._direct(settings, certificates, watcher), watcher.seen


def test_what_is_not_given_is_as_usual():
    assert demo_settings() == DemoSettings()
    settings = demo_settings(agents=3, turns=2, seed=9, kind=LimitKind.WINDOW)
    assert (settings.agents, settings.habits.turns, settings.seed) == (3, 2, 9)
    assert {limit.kind for limit in settings.limits} == {LimitKind.WINDOW}


def test_the_provider_limits_requests_input_and_output():
    assert {limit.dimension for limit in DemoSettings().limits} == {
        Dimension.REQUESTS,
        Dimension.INPUT_TOKENS,
        Dimension.OUTPUT_TOKENS,
    }


def test_the_profile_differs_from_the_packaged_one_in_its_windows_only(tmp_path):
    (tmp_path / "anthropic.yaml").write_text(demo.profile_of_windows(7))
    changed = load_profiles(tmp_path).by_name["anthropic"]
    packaged = load_profiles(None).by_name["anthropic"]
    assert {meter.window_s for meter in changed.meters} == {7}
    unchanged = tuple(dataclasses.replace(meter, window_s=60) for meter in changed.meters)
    assert dataclasses.replace(changed, meters=unchanged) == packaged


async def test_a_phase_is_watched_from_its_beginning_to_its_end(tmp_path):
    result, seen = await direct(SMALL, tmp_path)
    assert seen[0] is PhaseName.DIRECT
    assert seen[-1] is result
    assert all(progress.turns == 8 for progress in seen[1:-1])


async def test_the_numbers_of_a_phase_add_up(tmp_path):
    result, _ = await direct(dataclasses.replace(SMALL, seed=3), tmp_path)
    assert result.alive + len(result.deaths) == result.agents == 4
    assert result.requests == result.attempts
    assert result.failed == result.requests - result.turns_done
    assert result.elapsed_s >= result.bound.bound_s


async def test_without_trouble_nothing_is_wasted_and_everybody_lives(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "FAULTS", {})
    result, _ = await direct(SMALL, tmp_path)
    assert (result.alive, result.turns_done, result.failed, result.wasted_tokens) == (4, 8, 0, 0)


async def test_the_tokens_of_the_dead_are_wasted(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "FAULTS", {"error-in-the-middle": 1.0})
    settings = dataclasses.replace(SMALL, habits=dataclasses.replace(SMALL.habits, streamed=1.0))
    result, _ = await direct(settings, tmp_path)
    assert (result.alive, result.turns_done) == (0, 0)
    assert set(result.deaths.values()) == {"overloaded_error in a stream"}
    assert result.wasted_tokens > 0


async def test_agents_that_never_come_to_an_end_are_lost(tmp_path):
    habits = dataclasses.replace(SMALL.habits, think_s=(3600, 3600))
    result, _ = await direct(dataclasses.replace(SMALL, habits=habits, phase_max_s=0.05), tmp_path)
    assert result.alive == 0
    assert set(result.deaths.values()) == {"not done after 0.05 s"}
