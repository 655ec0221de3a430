"""The engine's side of a cluster, with a real server: the lease, what is kept, messages, and whatever goes wrong."""

import asyncio
import logging
import os
import random
import re
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from redis import Redis
from redis.exceptions import NoPermissionError, ResponseError

from hivemind_addon.plugins.cluster.engine import Engine
from hivemind_addon.plugins.cluster.messages import (
    EngineFailed,
    Fetch,
    Fetched,
    Leased,
    Publish,
    Resign,
    Stored,
    StoreKept,
    TakeLease,
)
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.proxy.system.engine_url import parse_engine_url
from lab.cluster.network import SimEngine
from tests.engine_server import EngineServer

PATIENCE_S = 60
PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"


class OneNode:
    """What an engine knows of a node, beside an engine of its own; it decides nothing."""

    def __init__(self, name: str, url: str, *, cluster: str = "team", last_words: list | None = None) -> None:
        self.me = name
        self.clock = SystemClock()
        self.outbox: list = []
        self.received: list[bytes] = []
        self.turns = 0
        self.has_untold = False
        self._last_words = last_words or []
        self._answers: asyncio.Queue = asyncio.Queue()
        self._told: list[asyncio.Future] = []
        self.engine = Engine(
            node=self,
            driver=self,
            address=parse_engine_url(url),
            name=cluster,
            after_turn=self._look,
        )

    def receive(self, data: bytes, now: float) -> None:
        self.received.append(data)

    def answered(self, answer: object, now: float) -> None:
        self._answers.put_nowait(answer)

    def drain_outbox(self, now: float) -> list:
        outbox, self.outbox = self.outbox, []
        return outbox

    def leave(self, now: float) -> None:
        self.outbox += self._last_words

    def tick(self) -> None:
        self.turns += 1

    def publish(self, to: str, *messages: bytes) -> None:
        self.outbox += [Publish(to, message) for message in messages]
        self.engine.wake()

    async def ask(self, request: object) -> object:
        self.outbox.append(request)
        self.engine.wake()
        return await asyncio.wait_for(self._answers.get(), PATIENCE_S)

    async def take(self, epoch: int = 0, *, renews: bool = False, wants: bool = True, ttl_s: float = 600.0) -> Leased:
        answer = await self.ask(TakeLease(epoch, renews, wants, ttl_s, asked_at=5.0))
        assert isinstance(answer, Leased), answer
        assert answer.asked_at == 5.0
        return answer

    async def until(self, is_so) -> None:
        """A turn at which it is so has to come."""
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                turn = asyncio.get_running_loop().create_future()
                self._told.append(turn)
                await turn

    def _look(self) -> None:
        told, self._told = self._told, []
        for turn in told:
            turn.done() or turn.set_result(None)

    async def fail(self, told: str) -> None:
        """Ask until it fails so."""
        whys = set()
        async with asyncio.timeout(PATIENCE_S):
            while not any(told in why for why in whys):
                whys.add(getattr(await self.ask(Fetch()), "why", "no failure"))

    async def connected(self) -> "OneNode":
        self.engine.start()
        while isinstance(await self.ask(Fetch()), EngineFailed):
            pass
        return self


@asynccontextmanager
async def nodes(url: str, *names: str, **more):
    made = [OneNode(name, url, **more) for name in names]
    try:
        yield [await node.connected() for node in made]
    finally:
        for node in made:
            await node.engine.close()


async def test_one_takes_the_lease_and_the_others_are_told(engine):
    async with nodes(engine.url, "a", "b") as (a, b):
        assert await a.take() == Leased("a", 1, 5.0, forgot=True)
        assert await b.take() == Leased("a", 1, 5.0)
        assert await b.take(1) == Leased("a", 1, 5.0)
        assert await a.take(1, renews=True) == Leased("a", 1, 5.0)


async def test_a_lease_goes_on_only_for_who_holds_it(engine):
    async with nodes(engine.url, "a", "b") as (a, b):
        await a.take(ttl_s=600)
        engine.send("PEXPIRE hivemind:{team}:lease 1000000")
        await b.take(1, ttl_s=5000)
        assert 900_000 < _number(engine.send("PTTL hivemind:{team}:lease")) <= 1_000_000
        await a.take(1, renews=True, ttl_s=5000)
        assert 4_000_000 < _number(engine.send("PTTL hivemind:{team}:lease")) <= 5_000_000


async def test_a_lease_that_ended_begins_a_new_epoch_but_for_who_had_it_last(engine):
    async with nodes(engine.url, "a", "b") as (a, b):
        await a.take()
        engine.send("DEL hivemind:{team}:lease")
        assert await b.take(1, wants=False) == Leased("", 1, 5.0)
        assert await a.take(1, renews=True) == Leased("a", 1, 5.0), "nobody had it meanwhile"
        engine.send("DEL hivemind:{team}:lease")
        assert await b.take(1) == Leased("b", 2, 5.0)
        engine.send("DEL hivemind:{team}:lease")
        assert await a.take(1, renews=True) == Leased("a", 3, 5.0), "somebody had it meanwhile"


async def test_who_resigns_gives_the_lease_back_and_only_his_own(engine):
    async with nodes(engine.url, "a", "b") as (a, b):
        await a.take()
        b.outbox.append(Resign(1))
        a.outbox.append(Resign(2))
        assert await b.ask(Fetch()) == await a.ask(Fetch()) == Fetched(None)
        assert await b.take(1) == Leased("a", 1, 5.0)
        a.outbox.append(Resign(1))
        await a.ask(Fetch())
        assert await b.take(1) == Leased("b", 2, 5.0)


async def test_the_epoch_never_falls_though_the_engine_forgets(engine):
    async with nodes(engine.url, "a", "b") as (a, b):
        assert (await a.take(41)).epoch == 42
        engine.send("FLUSHALL")
        # Who was away takes it first, in an epoch of long ago; who knows better takes it from him.
        assert await b.take(5) == Leased("b", 6, 5.0, forgot=True)
        assert await a.take(42, wants=False) == Leased("", 42, 5.0, forgot=True)
        assert await a.take(42) == Leased("a", 43, 5.0, forgot=True)
        assert await b.take(6, renews=True) == Leased("a", 43, 5.0)


async def test_what_is_kept_is_written_by_the_newest_coordinator_only(engine):
    async with nodes(engine.url, "a", "b") as (a, b):
        assert await a.ask(Fetch()) == Fetched(None)
        await a.take()
        assert await a.ask(StoreKept(1, b"\x00first")) == Stored(done=True)
        assert await b.ask(StoreKept(2, b"not its lease")) == Stored(done=False)
        engine.send("DEL hivemind:{team}:lease")
        await b.take(1)
        assert await a.ask(StoreKept(1, b"late")) == Stored(done=False)
        assert (await b.ask(Fetch())).data == b"\x00first"
        assert await b.ask(StoreKept(2, b"second")) == Stored(done=True)
        engine.send("DEL hivemind:{team}:lease")
        assert await a.ask(StoreKept(1, b"later still")) == Stored(done=False)
        assert (await a.ask(Fetch())).data == b"second"


async def test_how_old_what_is_kept_is_the_engine_says_by_its_own_clock(engine):
    async with nodes(engine.url, "a") as (a,):
        await a.take()
        await a.ask(StoreKept(1, b"kept"))
        assert 0 <= (await a.ask(Fetch())).age_s < PATIENCE_S
        seconds, _ = engine.send("TIME").decode().split("\r\n")[2::2][:2]
        engine.send(f"HSET hivemind:{{team}}:kept at {int(seconds) - 1800}")
        assert 1800 <= (await a.ask(Fetch())).age_s < 1800 + PATIENCE_S
        engine.send(f"HSET hivemind:{{team}}:kept at {int(seconds) + 1800}")
        assert (await a.ask(Fetch())).age_s == 0, "its clock was set back"


@pytest.mark.parametrize("seed", range(5))
async def test_the_simulated_engine_answers_as_a_real_one(engine, seed):
    """What the simulation proves counts for a real server: both are asked the same, at random."""
    rng, simulated = random.Random(seed), SimEngine()
    async with nodes(engine.url, "a", "b", "c") as made:
        for step in range(80):
            node, newest = rng.choice(made), simulated.counter
            near = rng.choice([0, newest, newest, newest, newest + 1])
            chance = rng.random()
            if chance < 0.1:  # its time is over
                engine.send("DEL hivemind:{team}:lease")
                simulated.carry_out(Resign(newest), simulated.holder(0.0), 0.0)
                continue
            if chance < 0.13:
                engine.send("FLUSHALL")
                simulated.lose_keys()
                continue
            requests = [
                TakeLease(near, bool(near) and rng.random() < 0.5, rng.random() < 0.8, 600.0, asked_at=5.0),
                StoreKept(near, b"%d" % step),
                Resign(near),
            ]
            request = rng.choices(requests, (5, 3, 1))[0]
            expected = simulated.carry_out(request, node.me, 0.0)
            if expected is None:
                node.outbox.append(request)
            else:
                assert await node.ask(request) == expected, (step, request)
            kept = await node.ask(Fetch())
            assert kept.data == simulated.carry_out(Fetch(), node.me, 0.0).data, (step, request)


async def test_messages_come_whole_and_in_order_and_only_to_whom_they_are_sent(engine):
    async with nodes(engine.url, "a", "b") as (a, b), nodes(engine.url, "b", cluster="other") as (stranger,):
        sent = [bytes([number % 256]) * (number * 37 % 9000) for number in range(500)]
        a.publish("b", *sent)
        b.publish("b", b"to myself")
        await b.until(lambda: len(b.received) == 501)
        b.received.remove(b"to myself")
        assert b.received == sent
        assert not stranger.received
        assert b.turns < 300, "what came together is one turn"


async def test_the_last_words_of_who_ends_are_heard(engine):
    async with nodes(engine.url, "a") as (a,):
        async with nodes(engine.url, "b", last_words=[Publish("a", b"farewell"), Resign(1)]) as (b,):
            await b.take()
        await a.until(lambda: a.received == [b"farewell"])
        assert await a.take(1) == Leased("a", 2, 5.0)


async def test_an_engine_that_dies_fails_what_is_asked_and_is_found_again(caplog):
    server = EngineServer().start()
    try:
        async with nodes(server.url, "a", "b") as (a, b):
            server.kill()
            assert isinstance(await a.ask(Fetch()), EngineFailed)
            a.publish("b", b"lost")
            assert isinstance(await a.ask(TakeLease(0, False, True, 1.0, 5.0)), EngineFailed)
            assert not a.engine.is_connected
            server.start()
            for node in (a, b):
                while isinstance(await node.ask(Fetch()), EngineFailed):
                    pass
            a.publish("b", b"again")
            await b.until(lambda: b.received)
            assert b.received == [b"again"]
    finally:
        server.stop()
    told = [record.getMessage() for record in caplog.records if record.name == "hivemind"]
    assert sum("tried again until it is back" in line for line in told) == 2, "once each"
    assert sum("is back after" in line for line in told) == 2


async def test_an_engine_that_answers_no_more_holds_nobody_up():
    server = EngineServer().start()
    try:
        async with nodes(server.url, "a") as (a,):
            os.kill(server.pid, signal.SIGSTOP)
            answer = await a.ask(Fetch())
            assert isinstance(answer, EngineFailed)
            assert "does not answer in time" in answer.why
            os.kill(server.pid, signal.SIGCONT)
            while isinstance(await a.ask(Fetch()), EngineFailed):
                pass
    finally:
        server.stop()


TROUBLES = {
    "no password": (("--requirepass", "open-sesame"), "", "refuses the user or the password"),
    "wrong password": (("--requirepass", "open-sesame"), ":barley-bread@", "HIVEMIND_CLUSTER_PASSWORD"),
    "no channel": (
        ("--user", "ali", "on", ">barley-bread", "~*", "+@all", "resetchannels"),
        "ali:barley-bread@",
        "its ACL needs `~hivemind:{team}:* &hivemind:{team}:*",
    ),
}


@pytest.mark.parametrize("case", TROUBLES)
async def test_an_engine_that_does_not_let_us_in_is_told_with_the_cure_and_no_password(case, caplog):
    options, user, told = TROUBLES[case]
    server = EngineServer(*options).start()
    node = OneNode("a", server.url.replace("//", f"//{user}"))
    try:
        node.engine.start()
        await node.fail(told)
    finally:
        await node.engine.close()
        server.stop()
    lines = [record.getMessage() for record in caplog.records]
    assert sum(told in line for line in lines) == 1
    assert not any(word in line for line in lines for word in ("barley-bread", "open-sesame"))


async def test_the_rights_that_the_page_gives_are_enough():
    rights = re.search(r"ACL SETUSER (hivemind on >PASSWORD .*)", PAGE.read_text())[1]
    server = EngineServer().start()
    try:
        assert server.send(f"ACL SETUSER {rights}").startswith(b"+OK")
        async with nodes(server.url.replace("//", "//hivemind:PASSWORD@"), "a", "b") as (a, b):
            await a.take()
            assert await a.ask(StoreKept(1, b"kept")) == Stored(done=True)
            assert (await b.ask(Fetch())).data == b"kept"
            a.publish("b", b"hello")
            await b.until(lambda: b.received == [b"hello"])
            a.outbox.append(Resign(1))
            assert (await a.ask(TakeLease(1, False, False, 1.0, 5.0))).holder == ""
        with Redis.from_url(server.url, username="hivemind", password="PASSWORD") as user:
            assert "redis_version" in user.info("server")
            for command in (
                *("FLUSHALL", "FLUSHDB", "SWAPDB 0 1", "KEYS *", "CLIENT KILL TYPE normal", "CONFIG GET *", "SHUTDOWN"),
                *("GET other", "SET other 1", "PUBLISH other x", "ACL LIST", "RESTORE hivemind:x 0 x"),
            ):
                with pytest.raises(NoPermissionError):
                    user.execute_command(*command.split())
            for script in ("FLUSHALL", "KEYS", "SWAPDB"):
                with pytest.raises(ResponseError):
                    user.eval(f"return redis.call('{script}', '0', '1')", 0)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--replicaof", "127.0.0.1 1"), "is a read-only replica; name the primary"),
        (("--maxmemory", "1"), "has no memory left; raise its maxmemory"),
    ],
    ids=["replica", "memory"],
)
async def test_an_engine_that_writes_nothing_is_told_once_with_the_cure(options, told, caplog):
    server = EngineServer(*options).start()
    try:
        async with nodes(server.url, "a") as (a,):
            for _ in range(3):
                answer = await a.ask(TakeLease(0, False, True, 1.0, 5.0))
                assert isinstance(answer, EngineFailed)
                assert told in answer.why
            assert a.engine.is_connected, "messages go on"
    finally:
        server.stop()
    assert sum(told in record.getMessage() for record in caplog.records) == 1


async def test_tls_is_checked_and_its_errors_say_what_to_do(tmp_path, caplog):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    leaf = authority.issue_cert("127.0.0.1")
    leaf.private_key_and_cert_chain_pem.write_to_path(tmp_path / "leaf.pem")
    files = [option for name in ("key", "cert") for option in (f"--tls-{name}-file", str(tmp_path / "leaf.pem"))]
    server = EngineServer()
    server._options = (*files, "--tls-auth-clients", "no", "--tls-port", str(server.port), "--port", "0")
    try:
        server.start()
        url = server.url.replace("redis:", "valkeys:")
        async with nodes(f"{url}?ssl_ca_certs={tmp_path / 'ca.pem'}", "a") as (a,):
            assert (await a.take()).holder == "a"
        for wrong, told in ((url, "?ssl_ca_certs=FILE"), (server.url, "has closed the connection")):
            node = OneNode("b", wrong)
            node.engine.start()
            await node.fail(told)
            await node.engine.close()
    finally:
        server.stop()


async def test_tls_where_none_is_spoken_says_so(engine, monkeypatch):
    monkeypatch.setattr("hivemind_addon.plugins.cluster.engine.CONNECT_S", 0.2)
    node = OneNode("b", engine.url.replace("redis:", "valkeys:"))
    node.engine.start()
    await node.fail("does not answer a TLS handshake")
    await node.engine.close()


def _number(answer: bytes) -> int:
    return int(answer[1:])


@pytest.fixture(autouse=True)
def _log(caplog):
    caplog.set_level(logging.INFO, logger="hivemind")
