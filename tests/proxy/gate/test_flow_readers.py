"""Who may read what is written on flows: people's own scripts, files of flows, filters; and nobody in a plain mitmdump."""

import pytest
from mitmproxy import master, options
from mitmproxy.addons import default_addons, dumper

from hivemind_addon.proxy.gate.addon import Hivemind
from hivemind_addon.proxy.gate.flow_readers import FlowReaders


class Reader:
    def response(self, flow):
        """Somebody's own."""


class Bystander:
    def running(self):
        """It is handed no flows."""


@pytest.fixture
async def mitmdump():
    made = master.Master(options.Options())
    made.addons.add(dumper.Dumper(), *default_addons(), Hivemind(), Bystander())
    return made


async def test_nobody_reads_in_a_plain_mitmdump(mitmdump):
    assert not FlowReaders(mitmdump)()


async def test_an_addon_that_is_handed_flows_may_read_from_when_it_comes_until_it_goes(mitmdump):
    readers, reader = FlowReaders(mitmdump), Reader()
    assert not readers()
    mitmdump.addons.add(reader)
    assert readers()
    mitmdump.addons.remove(reader)
    assert not readers()


@pytest.mark.parametrize(
    "changes",
    [
        {"save_stream_file": "flows.mitm"},
        {"dumper_filter": "~comment lost"},
        {"dumper_filter": "~u x & ~marked"},
        {"modify_headers": ["/~meta hivemind/x-a/b"]},
    ],
)
async def test_so_does_a_file_and_a_filter(mitmdump, changes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    readers = FlowReaders(mitmdump)
    assert not readers()
    for name, value in changes.items():
        setattr(mitmdump.options, name, value)
    readers.look_again()
    assert readers()
