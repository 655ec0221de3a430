"""Either store against a model of twenty lines: same answers, whatever happens in whatever order."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from hivemind_addon.plugins.fleets.leases.model import Lease, LeaseOver
from hivemind_addon.plugins.fleets.leases.sqlite_store import FORGOTTEN_AFTER_S
from tests.plugins.fleets.leases.store import EngineMachine, Machine, asks

PLACES = {"lock": 1, "fork": 1, "pair": 2}
NAMES = st.sets(st.sampled_from(sorted(PLACES)), min_size=1).map(sorted)
AGENTS = st.sampled_from("abcd")


class Model:
    """Who holds and who waits, as lists."""

    def __init__(self):
        self.leases = []  # [agent, names, ends_at, id]
        self.line = []  # [waiter, agent, names, asked_at]
        self.token = 0

    def pass_time(self, now, dead):
        self.leases = [one for one in self.leases if one[2] > now and one[0] not in dead]
        self.line = [one for one in self.line if one[3] > now - FORGOTTEN_AFTER_S and one[1] not in dead]

    def ahead(self, names, waiter):
        place = next((index for index, one in enumerate(self.line) if one[0] == waiter), len(self.line))
        taken = [set(one[1]) for one in self.leases] + [set(one[2]) for one in self.line[:place]]
        return [name for name in names if sum(name in one for one in taken) >= PLACES[name]]


class StoreMachine(RuleBasedStateMachine):
    leases = Bundle("leases")

    def begin(self):
        """The machine, where all stores are empty."""
        raise NotImplementedError

    def end(self):
        pass

    def lose_everything(self):
        """What ends all leases at once; time goes on, or begins again."""
        raise NotImplementedError

    def __init__(self):
        super().__init__()
        self.machine = self.begin()
        # Two processes.
        self.stores = [self.machine.store(), self.machine.store()]
        self.model = Model()
        self.now = 1000.0
        self.places = {}

    def teardown(self):
        for store in self.stores:
            store.close()
        self.end()

    @rule(
        target=leases,
        which=st.integers(0, 1),
        agent=AGENTS,
        wanted=NAMES,
        ttl_s=st.integers(1, 20),
        waits=st.booleans(),
    )
    def acquire(self, which, agent, wanted, ttl_s, waits):
        if agent in self.machine.dead:
            return None
        # One capacity for each request: those with another are asked for apart.
        capacity = PLACES[wanted[0]]
        wanted = [name for name in wanted if PLACES[name] == capacity]
        waiter = f"{agent}-waits" if waits else ""
        self.model.pass_time(self.now, self.machine.dead)
        if waits:
            mine = next((one for one in self.model.line if one[0] == waiter), None)
            if mine and mine[2] != wanted:
                self.model.line.remove(mine)
        expected = self.model.ahead(wanted, waiter)
        answer = self.stores[which].acquire(
            asks(agent, *wanted, ttl_s=ttl_s, capacity=capacity), self.now, waiter=waiter
        )
        mine = next((one for one in self.model.line if waits and one[0] == waiter), None)
        if isinstance(answer, Lease):
            assert expected == []
            assert [grant.name for grant in answer.grants] == wanted
            assert all(grant.token > self.model.token for grant in answer.grants)
            self.model.token = max(grant.token for grant in answer.grants)
            self.model.leases.append([agent, wanted, self.now + ttl_s, answer.id])
            if mine:
                self.model.line.remove(mine)
            return answer.id
        assert list(answer.ahead) == expected != []
        assert 0 < answer.retry_in_s <= 1
        if mine:
            mine[3] = self.now
        elif waits:
            self.model.line.append([waiter, agent, wanted, self.now])
        return None

    @rule(which=st.integers(0, 1), lease=consumes(leases))
    def release(self, which, lease):
        self.model.pass_time(self.now, ())
        held = next((one for one in self.model.leases if one[3] == lease), None)
        try:
            self.stores[which].release(lease or "none", self.now)
            self.model.leases.remove(held)
        except LeaseOver:
            assert held is None or held[0] in self.machine.dead

    @rule(which=st.integers(0, 1), lease=leases, ttl_s=st.integers(1, 20))
    def renew(self, which, lease, ttl_s):
        self.model.pass_time(self.now, self.machine.dead)
        held = next((one for one in self.model.leases if one[3] == lease), None)
        try:
            assert self.stores[which].renew(lease or "none", ttl_s, self.now).left_s == ttl_s
            held[2] = self.now + ttl_s
        except LeaseOver:
            assert held is None

    @rule(which=st.integers(0, 1), agent=AGENTS)
    def leave(self, which, agent):
        self.stores[which].leave(f"{agent}-waits")
        self.model.line = [one for one in self.model.line if one[0] != f"{agent}-waits"]

    @rule(seconds=st.sampled_from([0.25, 0.5, 2.0, 4.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(agent=AGENTS)
    def somebody_dies(self, agent):
        if len(self.machine.dead) < 2:
            self.machine.dead.add(agent)

    @rule(which=st.integers(0, 1))
    def a_process_starts_again(self, which):
        self.stores[which].close()
        self.stores[which] = self.machine.store()

    @rule()
    def all_leases_end_at_once(self):
        self.lose_everything()
        self.model.leases, self.model.line = [], []

    @invariant()
    def no_name_has_more_holders_than_places(self):
        self.model.pass_time(self.now, self.machine.dead)
        standings = self.stores[0].standings(self.now)
        assert all(len(one.leases) <= PLACES[one.name] for one in standings)
        held = {(one.name, lease.id) for one in standings for lease in one.leases}
        assert held == {(name, one[3]) for one in self.model.leases for name in one[1]}
        waiting = [(one.name, [waiter.agent for waiter in one.waiting]) for one in standings if one.waiting]
        assert waiting == sorted(
            (name, line) for name in PLACES if (line := [one[1] for one in self.model.line if name in one[2]])
        )


class FileMachine(StoreMachine):
    def begin(self):
        self.folder = Path(tempfile.mkdtemp())
        return Machine(self.folder / "leases.db")

    def end(self):
        shutil.rmtree(self.folder)

    def lose_everything(self):
        """The machine starts again."""
        self.machine.boot += "+"
        self.now = 5.0


FileMachine.TestCase.settings = settings(stateful_step_count=25)
TestFileMachine = FileMachine.TestCase


class EngineStoreMachine(StoreMachine):
    server = None

    def begin(self):
        self.lose_everything()
        return EngineMachine(self.server)

    def lose_everything(self):
        """The engine starts again with nothing; that takes time."""
        assert self.server.send("FLUSHALL").startswith(b"+OK")
        self.now = getattr(self, "now", 0.0) + 0.25


EngineStoreMachine.TestCase.settings = settings(stateful_step_count=25, max_examples=settings.default.max_examples // 2)


class TestEngineMachine(EngineStoreMachine.TestCase):
    @pytest.fixture(autouse=True)
    def has_a_server(self, engine_server):
        if not engine_server.runs:
            engine_server.start()
        EngineStoreMachine.server = engine_server
