"""The test message, by the real Apprise, to a service on this machine."""

import json

from hivemind_addon.tools.launch.alert import send_test
from hivemind_addon.tools.launch.finding import Severity
from tests.proxy.run.test_alerts import SECRET, service, to  # noqa: F401 - a fixture


def found(option, clock, **environment):
    return [(finding.verdict, finding.text) for finding in send_test(option, environment, clock=clock)]


def test_each_address_of_the_environment_or_of_the_options_file_gets_a_message(service, clock, tmp_path):  # noqa: F811
    taken = (Severity.GOOD, "alert: address 1 (JSON): the service has taken it")
    assert found("", clock, HIVEMIND_ALERTS=to(service)) == [taken]
    assert found("$HIVEMIND_ALERTS", clock, HIVEMIND_ALERTS=to(service)) == [taken]
    file = tmp_path / "alerts"
    file.write_text(to(service))
    file.chmod(0o600)
    assert found(str(file), clock) == [taken]
    assert [json.loads(body)["title"] for _, _, body in service.got] == ["hivemind: test"] * 3


def test_what_keeps_a_message_from_its_service_is_said_without_secrets(service, clock):  # noqa: F811
    service.status = 403
    ((verdict, text),) = found("", clock, HIVEMIND_ALERTS=to(service))
    assert verdict is Severity.BAD
    assert "403" in text
    assert SECRET not in text
    ((verdict, text),) = found("", clock, HIVEMIND_ALERTS=f"nothing://{SECRET}")
    assert (verdict, SECRET in text) == (Severity.BAD, False)


def test_where_there_is_no_address_it_says_how_to_have_one(clock):
    ((verdict, text),) = found("", clock)
    assert verdict is Severity.BAD
    assert "export HIVEMIND_ALERTS=" in text
    ((verdict, text),) = found("/bin/sh …", clock)
    assert (verdict, "is a command; try it" in text) == (Severity.NOTE, True)
