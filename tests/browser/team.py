"""Agents that ask through one real proxy, and are answered when a test says so."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from tests.e2e.origin import running_origin
from tests.e2e.proxy import PATIENCE_S, running

XSS = "<img src=x onerror=alert(1)><script>document.title='taken'</script>"
PROFILE = """
extends: anthropic
hosts: ["127.0.0.1:{port}"]
concurrency: {{initial: 3, maximum: 4}}
"""
RULES = """
everyone: {budgets: [{usd: 2, per: day}]}
agents: {lead: {budgets: [{tokens: 20000, per: hour}]}}
"""
LEFT = {"requests": (120, 57), "input-tokens": (40_000, 31_000), "output-tokens": (8_000, 2_000)}
"""Of each of the provider's limits."""


class Fleet:
    """Agents that ask through one proxy, each in a thread of its own. They are answered when a test says so."""

    def __init__(self, proxy, origin):
        self.proxy = proxy
        self._origin = origin
        self._threads = ThreadPoolExecutor(40)
        self.asked = []

    @property
    def page(self):
        return f"http://127.0.0.1:{self.proxy.port}/"

    def ask(self, agent, session="", parent="", text="hello"):
        self.asked.append(self._threads.submit(self._ask, agent, session, parent, text))

    def _ask(self, agent, session, parent, text):
        headers = {"x-api-key": "sk-fleet", "content-type": "application/json"}
        headers |= {"x-claude-code-session-id": session} if session else {}
        headers |= {"x-parent-session-id": parent} if parent else {}
        content = {
            "model": "claude-sonnet-4-5",
            "max_tokens": 64,
            "messages": [{"role": "user", "content": text}],
        }
        with self.proxy.client(quote(agent, safe=""), timeout=PATIENCE_S) as client:
            return client.post(f"{self._origin.url}/v1/messages", content=json.dumps(content), headers=headers)

    def let_run(self, agents=5):
        """A team with sub-agents, more than may go at once."""
        self.ask("lead", "s-lead", text="plan the work " * 200)
        self._ask_for_a_part(1)
        self._origin.wait_for_calls(2)
        self._ask_for_tests(1)
        self._origin.wait_for_calls(3)  # so that all others wait, whichever thread is the first
        for number in range(2, agents):
            self._ask_for_a_part(number)
        # A session's own request comes before those of the sessions that it starts.
        self.proxy.wait_for(lambda state: held(state) == agents + 1, "the arrival of every worker")
        for number in range(2, agents):
            self._ask_for_tests(number)
        for number in range(3):
            self.ask(f"reviewer-{number + 1}", f"s-r{number}", text="look at it " * 200)
        self.ask(XSS, "s-x")

    def _ask_for_a_part(self, worker):
        self.ask(f"worker-{worker}", f"s-{worker}", "s-lead", "do a part of it " * 300)

    def _ask_for_tests(self, worker):
        self.ask(f"worker-{worker}", f"s-{worker}-tests", f"s-{worker}", "write its tests " * 100)

    def answer_one(self):
        self._origin.wait_for_calls(1)
        self._origin.arrived[0].go.set()

    def finish(self, *, all_served=True):
        """Without `all_served` some may wait for what a person has paused: the proxy's end answers them."""
        self._origin.open()
        if all_served:
            assert {one.result(PATIENCE_S).status_code for one in self.asked} == {200}
        self._threads.shutdown(wait=all_served)


def held(state):
    return sum(len(pool["tickets"]) for pool in state["snapshot"]["pools"])


@contextmanager
def fleet(folder, *arguments, run=running):
    """`run` starts the proxy, as `running` does."""
    with running_origin() as origin:
        reset = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
        for what, (limit, left) in LEFT.items():
            said = {"limit": str(limit), "remaining": str(left), "reset": reset}
            origin.says |= {f"anthropic-ratelimit-{what}-{one}": value for one, value in said.items()}
        (folder / "profiles").mkdir(exist_ok=True)
        (folder / "profiles" / "sim.yaml").write_text(PROFILE.format(port=origin.port))
        (folder / "agents.yaml").write_text(RULES)
        sets = [f"hivemind_profiles={folder / 'profiles'}", f"hivemind_agents={folder / 'agents.yaml'}"]
        with run(folder, *(word for one in sets for word in ("--set", one)), *arguments) as proxy:
            yield Fleet(getattr(proxy, "proxy", proxy), origin)
