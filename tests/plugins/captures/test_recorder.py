import asyncio

import pytest

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.plugins.captures.file import read_capture
from hivemind_addon.plugins.captures.model import NotACapture
from hivemind_addon.plugins.captures.recorder import Recorder
from tests.patience import PATIENCE_S
from tests.plugins.captures.captured import STREAM, answered
from tests.proxy.gate.samples import make_flow, make_proxy


def make_recorder(proxy, path, **changes):
    settings = {"content": True, "driver": proxy.driver, "profiles": load_profiles(None)} | changes
    proxy.files.recorder = Recorder(path, **settings)
    return proxy.files.recorder


async def one_call(proxy, flow):
    """From its arrival to its end, as the layer does it."""
    exchange = proxy.make_exchange(flow)
    assert exchange.enter()
    exchange.sent()
    answered(flow)
    exchange.head(flow.response)
    exchange.look(STREAM)
    exchange.streamed()
    exchange.finished()
    return exchange


async def test_a_call_is_written_when_it_has_ended(tmp_path):
    proxy = make_proxy()
    recorder = make_recorder(proxy, tmp_path / "c")
    exchange = await one_call(proxy, make_flow(content=None))
    await recorder.stop()
    (call,) = read_capture(tmp_path / "c").calls
    assert call.id == exchange.ticket.id
    assert call.end == "delivered"
    assert [chunk.size for chunk in call.attempts[0].chunks] == [len(STREAM)]
    assert call.attempts[0].usage.output_tokens == 7


async def test_nothing_is_taped_while_nothing_is_recorded(tmp_path):
    proxy = make_proxy()
    exchange = await one_call(proxy, make_flow())
    assert exchange.tape is None
    recorder = make_recorder(proxy, tmp_path / "c")
    await recorder.stop()
    assert (tmp_path / "c").read_bytes() == b""


async def test_a_refused_call_is_kept_with_its_refusal(tmp_path):
    proxy = make_proxy()
    recorder = make_recorder(proxy, tmp_path / "c")
    proxy.driver.close()
    exchange = proxy.make_exchange(make_flow())
    exchange.enter()
    await recorder.stop()
    (call,) = read_capture(tmp_path / "c").calls
    assert (call.end, call.attempts) == ("shed", ())
    assert b"x-should-retry" in (tmp_path / "c").read_bytes()
    assert exchange.flow.response is None


async def test_what_cannot_be_recorded_is_logged_and_harms_nobody(tmp_path, caplog, monkeypatch):
    proxy = make_proxy()
    recorder = make_recorder(proxy, tmp_path / "c")
    flow = make_flow()
    monkeypatch.setattr(flow, "get_state", lambda: 1 / 0)
    exchange = await one_call(proxy, flow)
    async with asyncio.timeout(PATIENCE_S):
        await recorder.stop()
    assert "could not be captured" in caplog.text
    assert exchange.over
    assert not exchange.tripped


async def test_another_kind_of_file_is_left_alone(tmp_path):
    (tmp_path / "c").write_text("my novel")
    with pytest.raises(NotACapture):
        make_recorder(make_proxy(), tmp_path / "c")
    assert (tmp_path / "c").read_text() == "my novel"
