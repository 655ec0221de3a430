"""Profiles that are edited while the proxy runs."""

import asyncio
import dataclasses
import logging
import os

import pytest

from hivemind_addon.api.ticket import PoolKey
from hivemind_addon.proxy.mitm.options import read_profiles
from hivemind_addon.proxy.mitm.profiles_folder import LOOK_EVERY_S, ProfilesFolder
from tests.core.samples import ticket
from tests.mitm.samples import make_intake

HOST = "llm.test"
POOL = PoolKey(host=HOST, account="key-1", model_group="m")


def write(folder, text, name="mine", mtime_ns=1):
    file = folder / f"{name}.yaml"
    file.write_text(f"extends: openai-compatible\nhosts: [{HOST}]\n{text}\n")
    os.utime(file, ns=(mtime_ns, mtime_ns))


@pytest.fixture
async def intake(tmp_path):
    write(tmp_path, "concurrency: {initial: 1, maximum: 1}")
    made = make_intake()
    made.settings = settings(made, tmp_path)
    profile = made.settings.profiles.by_name["mine"]
    now = made.driver.clock.monotonic()
    for name in ("a", "b", "c"):
        made.driver.submit(ticket(name, session=name, at=now, pool=POOL), profile.pool_settings)
    yield made
    made.profiles_folder.stop()


def settings(intake, folder):
    return dataclasses.replace(intake.settings, profiles=read_profiles(folder, "", None), profiles_folder=folder)


def in_flight(intake):
    return intake.driver.snapshot().pools[0].in_flight


async def look(intake):
    """What its timer does every two seconds."""
    folder = intake.profiles_folder
    assert folder._timer.when() <= asyncio.get_running_loop().time() + LOOK_EVERY_S
    folder._timer.cancel()
    folder._look()
    if folder._reading is not None:
        await folder._reading


async def test_an_edited_profile_reaches_the_pools_that_there_are(intake, tmp_path):
    intake.profiles_folder.follow(intake.settings)
    assert in_flight(intake) == 1
    write(tmp_path, "concurrency: {initial: 3, maximum: 3}", mtime_ns=2)
    await look(intake)
    assert in_flight(intake) == 3
    write(tmp_path, "concurrency: {initial: 1, maximum: 1}", mtime_ns=3)
    await look(intake)
    assert intake.driver.snapshot().pools[0].limit == 1


async def test_a_folder_that_is_set_reaches_them_at_once(intake, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    write(other, "concurrency: {initial: 2, maximum: 2}")
    intake.profiles_folder.follow(settings(intake, other))
    assert in_flight(intake) == 2


async def test_a_host_that_another_profile_claims_now_has_that_ones_settings(intake, tmp_path):
    intake.profiles_folder.follow(intake.settings)
    write(tmp_path, "concurrency: {initial: 3, maximum: 3}", name="newer", mtime_ns=2)
    (tmp_path / "mine.yaml").unlink()
    await look(intake)
    assert in_flight(intake) == 3


async def test_a_change_for_the_worse_is_told_once_and_all_stays(intake, tmp_path, caplog):
    intake.profiles_folder.follow(intake.settings)
    with caplog.at_level(logging.WARNING):
        write(tmp_path, "concurrency: {initial: none}", mtime_ns=2)
        await look(intake)
        await look(intake)
    assert [record.getMessage().endswith("(the profiles stay as they were)") for record in caplog.records] == [True]
    assert in_flight(intake) == 1
    write(tmp_path, "concurrency: {initial: 2, maximum: 2}", mtime_ns=3)
    await look(intake)
    assert in_flight(intake) == 2


async def test_without_a_folder_nothing_is_looked_at(intake):
    folder = ProfilesFolder(intake)
    folder.follow(dataclasses.replace(intake.settings, profiles_folder=None))
    assert folder._timer is None
