import asyncio
import dataclasses
from pathlib import Path

import pytest
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.test import taddons

from hivemind_addon.api.command import Pause, Record, Said, SetConfig, ShowConfig
from hivemind_addon.api.control import read_report, send_command
from hivemind_addon.api.events import PersonActed
from hivemind_addon.proxy.mitm.control_socket import ControlSocket
from hivemind_addon.proxy.mitm.options import add_options, read_settings
from tests.mitm.samples import make_intake
from tests.patience import PATIENCE_S


class Options:
    """Declares our options, and has the files follow them, as the addon does."""

    name = "options"

    def __init__(self, intake):
        self.intake = intake

    def load(self, loader):
        add_options(loader)

    def configure(self, updated):
        if "hivemind_capture" in updated:
            self.intake.settings = dataclasses.replace(read_settings(self.intake.options), journal=None)
            self.intake.files.follow(self.intake.settings)


@pytest.fixture
async def intake(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("hivemind_addon.system.folders.LONGEST_SOCKET_PATH", 1000)
    monkeypatch.chdir(tmp_path)
    made = make_intake()
    with taddons.context(Proxyserver()) as context:
        made.options = context.options
        context.master.addons.add(Options(made))
        server = context.master.addons.get("proxyserver")
        monkeypatch.setattr(type(server), "listen_addrs", lambda _: [("127.0.0.1", 4711), ("127.0.0.1", 4712)])
        yield made
        await made.files.close()


def choose(intake, control):
    intake.settings = dataclasses.replace(intake.settings, control=control)


async def test_others_read_what_goes_on_while_the_proxy_runs(intake, caplog):
    control, chosen = ControlSocket(intake), Path("own.sock")  # relative: a test's folder is too deep for a socket
    choose(intake, chosen)
    await control.open()
    report = await asyncio.to_thread(read_report, chosen, timeout_s=PATIENCE_S)
    assert report.proxy.listens == ("127.0.0.1:4711", "127.0.0.1:4712")
    assert report.snapshot.at > 0
    choose(intake, control=False)
    await control.open()
    assert not chosen.exists()
    chosen.write_text("not a socket")
    choose(intake, chosen)
    await control.open()
    assert "no control socket" in caplog.text


async def test_it_opens_only_when_the_ports_are_known(intake):
    control, chosen, bound = ControlSocket(intake), Path("own.sock"), asyncio.get_running_loop().create_future()
    choose(intake, chosen)
    opening = asyncio.ensure_future(control.open(after=bound))
    await asyncio.wait([opening], timeout=0)
    assert not chosen.exists()
    bound.set_result(None)
    await opening
    assert chosen.exists()
    control.close()
    assert not chosen.exists()


async def test_a_person_steers_and_records(intake, tmp_path):
    control, chosen, file = ControlSocket(intake), Path("own.sock"), tmp_path / "of.flow"
    choose(intake, chosen)
    await control.open()

    async def tell(command):
        return await asyncio.to_thread(send_command, chosen, command, timeout_s=PATIENCE_S)

    assert (await tell(Pause())).done
    assert await tell(Record(None)) == Said(done=False, text="nothing was recorded")
    assert await tell(Record(str(file))) == Said(done=True, text=f"recording into {file}")
    assert intake.files.recorder.path == file
    assert await tell(Record(str(file))) == Said(done=False, text=f"{file} is recorded already")
    assert await tell(Record(None)) == Said(done=True, text="recording no more")
    assert intake.files.recorder is None
    told = [event.text for event in intake.runtime.events if isinstance(event, PersonActed)]
    assert told[-2:] == [f"recording into {file}", "recording no more"]
    control.close()


async def test_a_person_sees_and_sets_options(intake):
    control, chosen = ControlSocket(intake), Path("own.sock")
    choose(intake, chosen)
    await control.open()

    async def tell(command):
        return await asyncio.to_thread(send_command, chosen, command, timeout_s=PATIENCE_S)

    said = await tell(ShowConfig())
    assert {"name", "value", "default", "help", "settable", "guarded"} == set(said.value[0])
    assert (await tell(SetConfig("hivemind_keep", "3 flows"))).done
    assert not (await tell(SetConfig("hivemind_keep", "3 flows"))).value
    assert (await tell(SetConfig("hivemind_keep", "4 flows", by="ann"))).done
    told = [(event.text, event.by) for event in intake.runtime.events if isinstance(event, PersonActed)]
    assert told == [
        ("hivemind_keep is now 3 flows (by a person)", ""),
        ("hivemind_keep is now 4 flows (by agent ann)", "ann"),
    ]
    control.close()
