"""`hivemind doctor` on a machine with a real proxy: the handshake, the clock, and the cure in the proxy's own log."""

import pytest

from tests.e2e.machine import machine

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("doctor")]


@pytest.fixture(scope="module")
def mine(anthropic, authority):
    with machine(anthropic, authority) as made:
        yield made


def doctor(mine):
    return mine.hivemind("doctor")


def test_through_exec_all_is_well(mine):
    done = mine.run("exec", "--", *doctor(mine))
    assert done.returncode == 0, done.stdout
    assert "trusts the proxy for api.anthropic.com" in done.stdout
    assert "\nbad" not in done.stdout


def test_a_bundle_without_the_ca_is_found_by_the_handshake_and_the_proxy_says_the_cure_once(mine):
    upstream = mine.home / "upstream.pem"
    curl = f'curl -sS --cacert "{upstream}" https://api.anthropic.com/'
    script = f'NODE_EXTRA_CA_CERTS="{upstream}" "$@"; {curl}; {curl}; true'
    done = mine.run("exec", "--agent", "lost-1", "--", "sh", "-c", script, "sh", *doctor(mine))
    bad = [line for line in done.stdout.splitlines() if line.startswith("bad")]
    assert len(bad) == 1, done.stdout
    assert "NODE_EXTRA_CA_CERTS" in bad[0]
    assert "hivemind exec" in bad[0]
    log = mine.state / f"proxy-{mine.port}.log"
    refused = "Client TLS handshake failed. The client does not trust"
    cures = [
        "hivemind: lost-1: it does not trust the proxy's certificate for api.anthropic.com",
        "hivemind: hivemind-doctor: it does not trust the proxy's certificate for api.anthropic.com",
    ]

    def counts():
        text = log.read_text()
        return [text.count(line) for line in (refused, *cures)]

    # who refuses is gone before the proxy has read why: doctor and curl, twice
    mine.wait_for(lambda: counts()[0] == 3 and all(counts()), "the proxy's hearing of three refusals")
    assert counts() == [3, 1, 1]


def test_outside_it_says_what_is_missing(anthropic, authority):
    with machine(anthropic, authority) as untouched:
        done = untouched.run("doctor", "--agent", "claude")
    assert done.returncode == 1
    bad = [line for line in done.stdout.splitlines() if line.startswith("bad")]
    assert any("nothing listens" in line for line in bad)
    assert any("HTTPS_PROXY is not set" in line for line in bad)
    assert any("NODE_EXTRA_CA_CERTS is not set" in line for line in bad)
