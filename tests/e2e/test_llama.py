"""llama.cpp's own server, with a model of random weights, behind a real mitmdump."""

import os

import httpx
import pytest

from lab.bench.local import PROFILE, ask, at_once, most_at_once, running_llama
from lab.fleets.programs import NotInstalled
from tests.e2e.proxy import in_flight, options, running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("llama")]

SLOTS = 2


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    try:
        with running_llama(tmp_path_factory.mktemp("llama"), slots=SLOTS) as address:
            yield address
    except NotInstalled as error:
        if os.environ.get("HIVEMIND_REQUIRE_AGENTS") == "1":
            pytest.fail(str(error))
        pytest.skip(f"llama.cpp's server does not run: {error}")


@pytest.fixture(scope="module")
def proxy(llama, tmp_path_factory):
    settings = options(reverse_profile=PROFILE)
    with running(tmp_path_factory.mktemp("proxy"), *settings, modes=("regular", f"reverse:{llama}")) as proxy:
        yield proxy
        assert "Traceback" not in proxy.log, proxy.log


@pytest.mark.parametrize("usage", [False, True], ids=["its timings tell the tokens", "usage asked for"])
def test_a_stream_comes_as_the_server_sent_it_and_its_tokens_are_counted(proxy, llama, usage):
    before = proxy.settled()["snapshot"]["counters"]
    with httpx.Client(trust_env=False, timeout=60) as client:
        direct = ask(client, llama, "w1 w2", 40, usage=usage)
        ours = ask(client, f"http://127.0.0.1:{proxy.ports[1]}", "w1 w2", 40, usage=usage)
    assert (ours.status, ours.text, ours.tokens) == (200, direct.text, 40)
    after = proxy.settled()["snapshot"]["counters"]
    assert {name: after[name] - before[name] for name in ("tickets", "delivered", "output_tokens")} == {
        "tickets": 1,
        "delivered": 1,
        "output_tokens": 40,
    }


def test_its_queue_is_silent_and_nobody_is_refused(proxy, llama):
    for address in (llama, f"http://127.0.0.1:{proxy.ports[1]}"):
        answers = at_once(address, 6, 400)
        assert [one.status for one in answers] == [200] * 6
        assert {one.tokens for one in answers} == {400}
        assert most_at_once(answers) <= SLOTS + 1  # an answer ends for its client a moment after it ended there
        assert answers[SLOTS + 1].begun_at > min(one.ended_at for one in answers)
    assert in_flight(proxy.settled()) == 0
