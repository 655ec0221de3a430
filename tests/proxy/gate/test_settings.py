"""What changes while the proxy runs: the agents file, and profiles."""

import asyncio
import dataclasses
import logging
import os

import pytest

from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.kernel.values.ticket import PoolKey, Priority
from hivemind_addon.proxy.gate.settings import LOOK_EVERY_S, AgentsFile, read_profiles
from tests.kernel.samples import ticket
from tests.proxy.gate.samples import make_proxy


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "agents.yaml"
    path.write_text("everyone: {max_priority: high}")
    return path


def change(file, text, mtime_ns):
    file.write_text(text)
    os.utime(file, ns=(mtime_ns, mtime_ns))


def highest(agents, now):
    return agents.rules(now).granted("any").max_priority


def test_without_a_file_there_are_no_rules():
    assert highest(AgentsFile(None), 0.0) is Priority.NORMAL


def test_a_bad_file_is_refused_at_the_start(file):
    file.write_text("everyone: {max_priority: urgent}")
    with pytest.raises(DocumentError):
        AgentsFile(file)


def test_a_change_is_read_again_without_a_restart(file):
    agents = AgentsFile(file)
    assert highest(agents, 0.0) is Priority.HIGH
    change(file, "everyone: {max_priority: critical}", 1)
    assert highest(agents, LOOK_EVERY_S / 2) is Priority.HIGH
    assert highest(agents, LOOK_EVERY_S) is Priority.CRITICAL


def test_a_change_for_the_worse_is_told_once_and_changes_nothing(file):
    agents = AgentsFile(file)
    change(file, "everyone: {max_priority: urgent}", 1)
    told = []
    for step in range(5):
        rules = agents.rules(step * LOOK_EVERY_S, log=lambda *words: told.append(words))
        assert rules.granted("any").max_priority is Priority.HIGH
    assert len(told) == 1


def test_a_file_that_is_gone_for_a_moment_changes_nothing(file):
    agents = AgentsFile(file)
    file.unlink()
    assert agents.rules(0.0, log=lambda *_: None).granted("any").max_priority is Priority.HIGH
    change(file, "everyone: {max_priority: low}", 1)
    assert highest(agents, LOOK_EVERY_S) is Priority.LOW


HOST = "llm.test"
POOL = PoolKey(host=HOST, account="key-1", model_group="m")


def write(folder, text, name="mine", mtime_ns=1):
    file = folder / f"{name}.yaml"
    file.write_text(f"extends: openai-compatible\nhosts: [{HOST}]\n{text}\n")
    os.utime(file, ns=(mtime_ns, mtime_ns))


@pytest.fixture
async def proxy(tmp_path):
    write(tmp_path, "concurrency: {initial: 1, maximum: 1}")
    made = make_proxy()
    made.settings.current = settings(made, tmp_path)
    profile = made.settings.current.profiles.by_name["mine"]
    now = made.driver.clock.monotonic()
    for name in ("a", "b", "c"):
        made.driver.submit(ticket(name, session=name, at=now, pool=POOL), profile.pool_settings)
    yield made
    made.settings.stop()


def settings(proxy, folder):
    return dataclasses.replace(proxy.settings.current, profiles=read_profiles(folder, "", None), profiles_folder=folder)


@pytest.mark.parametrize(
    ("files", "most", "of_option", "of_few"),
    [
        (None, 4096, 3000, "concurrency.maximum of profile few"),
        (65_536, 4096, 3000, "concurrency.maximum of profile few"),
        (1024, 288, 288, "concurrency.maximum of profile few"),
        (64, 5, 5, "ulimit -n, now 64"),
    ],
)
def test_a_pool_has_no_more_in_flight_than_there_are_open_files_for(
    monkeypatch, tmp_path, files, most, of_option, of_few
):
    monkeypatch.setattr("hivemind_addon.proxy.gate.settings.raise_limit", lambda: files)
    write(tmp_path, "")
    (tmp_path / "few.yaml").write_text("kind: plain\nhosts: [few.test]\nconcurrency: {initial: 8, maximum: 8}\n")

    def bounds(profile, option=None):
        return read_profiles(tmp_path, "", option).by_name[profile].pool_settings.concurrency

    assert bounds("mine").maximum == most
    assert bounds("mine", 3000).maximum == of_option
    assert bounds("mine", 2).maximum_from == "hivemind_max_concurrency"
    assert (bounds("few").initial, bounds("few").maximum) == (min(8, most), min(8, most))
    assert bounds("few").maximum_from == of_few


def in_flight(proxy):
    return proxy.driver.snapshot().pools[0].in_flight


async def look(proxy):
    """What its timer does every two seconds."""
    folder = proxy.settings
    assert folder._timer.when() <= asyncio.get_running_loop().time() + LOOK_EVERY_S
    folder._timer.cancel()
    folder._look()
    if folder._reading is not None:
        await folder._reading


async def test_an_edited_profile_reaches_the_pools_that_there_are(proxy, tmp_path):
    proxy.settings.follow(proxy.settings.current)
    assert in_flight(proxy) == 1
    write(tmp_path, "concurrency: {initial: 3, maximum: 3}", mtime_ns=2)
    await look(proxy)
    assert in_flight(proxy) == 3
    write(tmp_path, "concurrency: {initial: 1, maximum: 1}", mtime_ns=3)
    await look(proxy)
    assert proxy.driver.snapshot().pools[0].limit == 1


async def test_a_folder_that_is_set_reaches_them_at_once(proxy, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    write(other, "concurrency: {initial: 2, maximum: 2}")
    proxy.settings.follow(settings(proxy, other))
    assert in_flight(proxy) == 2


async def test_a_host_that_another_profile_claims_now_has_that_ones_settings(proxy, tmp_path):
    proxy.settings.follow(proxy.settings.current)
    write(tmp_path, "concurrency: {initial: 3, maximum: 3}", name="newer", mtime_ns=2)
    (tmp_path / "mine.yaml").unlink()
    await look(proxy)
    assert in_flight(proxy) == 3


async def test_a_change_for_the_worse_is_told_once_and_all_stays(proxy, tmp_path, caplog):
    proxy.settings.follow(proxy.settings.current)
    with caplog.at_level(logging.WARNING):
        write(tmp_path, "concurrency: {initial: none}", mtime_ns=2)
        await look(proxy)
        await look(proxy)
    assert [record.getMessage().endswith("(the profiles stay as they were)") for record in caplog.records] == [True]
    assert in_flight(proxy) == 1
    write(tmp_path, "concurrency: {initial: 2, maximum: 2}", mtime_ns=3)
    await look(proxy)
    assert in_flight(proxy) == 2


async def test_without_a_folder_nothing_is_looked_at():
    proxy = make_proxy()
    proxy.settings.follow(proxy.settings.current)
    assert proxy.settings._timer is None
