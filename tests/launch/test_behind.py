"""One agent behind the proxy."""

from urllib.parse import unquote, urlsplit

from hivemind_addon.api.proxy_user import proxy_words
from hivemind_addon.api.report import ProxyView
from hivemind_addon.api.ticket import Delivery
from hivemind_addon.tools.launch import behind
from hivemind_addon.tools.launch.behind import asked_words, environment_changes
from hivemind_addon.tools.launch.programs import load_programs

PROXY = ProxyView(pid=7, port=9090, listens=("127.0.0.1:9090",), confdir="/c", hosts=("api.anthropic.com",))


def test_what_is_asked_for_is_what_the_proxy_reads():
    words = asked_words(Delivery.WHOLE, priority="low", waits_s=1800, task="night/review-1")
    read = proxy_words(".".join(words))
    assert (read.delivery, read.priority.name, read.patience_s) == (Delivery.WHOLE, "LOW", 1800)
    assert read.task == "night/review-1"
    assert asked_words(Delivery.STREAM) == ["stream"]
    assert asked_words(Delivery.AUTO, priority="low") == ["prio-low"], "the proxy goes by what the agent says of itself"


def test_the_environment_has_the_name_the_port_and_one_bundle_with_the_users_own(monkeypatch):
    asked = []
    monkeypatch.setattr(behind, "write_bundle", lambda confdir, users: asked.append((str(confdir), users)) or "/b.pem")
    base = {"SSL_CERT_FILE": "/company.pem", "CURL_CA_BUNDLE": "/company.pem"}
    changed = environment_changes(PROXY, base, agent="night.a", words=["whole", "task-night/a"], table=load_programs())
    assert asked == [("/c", ["/company.pem"])]
    assert (changed["HIVEMIND_AGENT"], changed["HIVEMIND_PORT"]) == ("night.a", "9090")
    url = urlsplit(changed["HTTPS_PROXY"])
    assert (unquote(url.username), unquote(url.password)) == ("night.a", "whole.task-night/a")
    assert changed["SSL_CERT_FILE"] == "/b.pem"
