import asyncio

from hivemind_addon.lab.sim.exchange import ConnectionLog, Incoming, WriteGate, pause


def incoming(target: str) -> Incoming:
    log = ConnectionLog(1, http2=False, sni=None)
    return Incoming(method="POST", target=target, headers={}, host="sim", log=log)


def test_a_body_is_counted_whole_and_kept_up_to_its_bound():
    request = incoming("/v1/messages?beta=true")
    request.keep_bytes = 5
    request.receive(b"abc")
    request.receive(b"defg")
    assert (request.path, request.query) == ("/v1/messages", "beta=true")
    assert (request.size, bytes(request.body)) == (7, b"abcde")


def test_only_an_upload_is_hashed():
    assert incoming("/upload").sha256 is not None
    assert incoming("/v1/messages").sha256 is None


def test_a_connections_view_does_not_change_with_it():
    log = ConnectionLog(1, http2=True, sni="api.example")
    view = log.view()
    log.requests += 1
    log.hosts.add("api.example")
    assert (view.requests, view.hosts) == (0, frozenset())
    assert (log.view().requests, log.view().hosts) == (1, {"api.example"})


async def test_a_gate_lets_all_who_wait_go_on():
    gate = WriteGate()
    waiting = [asyncio.create_task(gate.wait()) for _ in range(3)]
    await asyncio.wait(waiting, timeout=0)
    assert not any(task.done() for task in waiting)
    gate.release()
    done, _ = await asyncio.wait(waiting, timeout=120)
    assert len(done) == 3
    assert repr(gate) == "<Gate 0 waiting>"


async def test_a_cancelled_pause_leaves_nobody_waiting():
    task = asyncio.create_task(pause(60))
    await asyncio.wait([task], timeout=0)
    task.cancel()
    await asyncio.wait([task], timeout=120)
    assert task.cancelled()
