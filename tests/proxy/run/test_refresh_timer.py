import asyncio

from hivemind_addon.proxy.run.refresh_timer import REFRESHES_PER_S, RefreshTimer


async def test_it_is_called_only_while_there_is_something_to_do():
    left = [3]
    done = asyncio.Event()

    def part():
        left[0] -= 1
        if not left[0]:
            done.set()
        return left[0] > 0

    timer = RefreshTimer([part])
    assert "at rest" in repr(timer)
    loop = asyncio.get_running_loop()
    began = loop.time()
    timer.wake()
    timer.wake()
    async with asyncio.timeout(120):
        await done.wait()
    assert loop.time() - began > 2 / REFRESHES_PER_S
    assert left == [0]
    assert "at rest" in repr(timer)


async def test_all_parts_are_called_also_when_the_first_has_more_to_do():
    called = []
    timer = RefreshTimer([lambda: bool(called.append("a")) or True, lambda: bool(called.append("b"))])
    timer.refresh()
    assert called == ["a", "b"]
    assert "running" in repr(timer)
    timer.stop()
    assert "at rest" in repr(timer)


async def test_a_part_that_fails_is_told_and_leaves_the_others_alone(caplog):
    called = []

    def fails():
        raise RuntimeError("boom")

    timer = RefreshTimer([fails, lambda: bool(called.append(1))])
    timer.refresh()
    timer.refresh()
    assert called == [1, 1]
    assert len(caplog.records) == 1
    assert "boom" in caplog.text
