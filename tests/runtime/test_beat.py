import asyncio

from hivemind_addon.proxy.runtime.beat import BEATS_PER_S, Beat


async def test_it_beats_only_while_there_is_something_to_do():
    left = [3]
    done = asyncio.Event()

    def part():
        left[0] -= 1
        if not left[0]:
            done.set()
        return left[0] > 0

    beat = Beat([part])
    assert "at rest" in repr(beat)
    loop = asyncio.get_running_loop()
    began = loop.time()
    beat.wake()
    beat.wake()
    async with asyncio.timeout(120):
        await done.wait()
    assert loop.time() - began > 2 / BEATS_PER_S
    assert left == [0]
    assert "at rest" in repr(beat)


async def test_all_parts_are_called_also_when_the_first_has_more_to_do():
    called = []
    beat = Beat([lambda: bool(called.append("a")) or True, lambda: bool(called.append("b"))])
    beat.beat()
    assert called == ["a", "b"]
    assert "running" in repr(beat)
    beat.stop()
    assert "at rest" in repr(beat)


async def test_a_part_that_fails_is_told_and_leaves_the_others_alone(caplog):
    called = []

    def fails():
        raise RuntimeError("boom")

    beat = Beat([fails, lambda: bool(called.append(1))])
    beat.beat()
    beat.beat()
    assert called == [1, 1]
    assert len(caplog.records) == 1
    assert "boom" in caplog.text
