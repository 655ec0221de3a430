import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hivemind_addon.formats.wire.proxy_user import proxy_words
from hivemind_addon.tools.launch.environment import PROXY_VARIABLES, bypasses, changes, exports, proxy_url
from hivemind_addon.tools.launch.programs import load_programs
from tests.cases import each

HOSTS = ("api.anthropic.com", "*.openai.azure.com", "localhost:11434")


def changed(base, *, patience=True, agent="agent-1"):
    return changes(
        base,
        url=proxy_url(8080, agent=agent, words=["whole"]),
        bundle=Path("/state/bundle.pem"),
        hosts=HOSTS,
        table=load_programs(),
        patience=patience,
    )


@each("agent", ["agent-1", "a b/c:d@e", "größe"])
def test_the_name_survives_its_way_through_the_url(agent):
    url = urlsplit(proxy_url(8080, agent=agent, words=["whole", "prio-low"]))
    assert (unquote(url.username), url.hostname, url.port) == (agent, "127.0.0.1", 8080)
    words = proxy_words(unquote(url.password))
    assert (words.delivery.value, words.priority.name) == ("whole", "LOW")


def test_without_words_there_is_a_password_all_the_same():
    assert proxy_url(1, agent="a", words=[]) == "http://a:x@127.0.0.1:1"


def test_every_spelling_and_every_ca_variable_is_set():
    result = changed({"SSL_CERT_FILE": "/company.pem", "https_proxy": "http://corp:3128"})
    for name in PROXY_VARIABLES:
        assert result[name] == result[name.lower()] == "http://agent-1:whole@127.0.0.1:8080"
    assert {result[name] for name in load_programs().ca_variables} == {"/state/bundle.pem"}
    assert result["NODE_USE_ENV_PROXY"] == "1"


def test_patience_is_set_where_the_user_set_none():
    assert changed({})["API_TIMEOUT_MS"] == "3600000"
    assert "API_TIMEOUT_MS" not in changed({"API_TIMEOUT_MS": "5"})
    assert "API_TIMEOUT_MS" not in changed({}, patience=False)


@each(
    ("before", "after"),
    [
        ("", "localhost,127.0.0.1,::1"),
        ("*", "localhost,127.0.0.1,::1"),
        ("example.com,.anthropic.com", "example.com,localhost,127.0.0.1,::1"),
        ("anthropic.com *.anthropic.com api.anthropic.com:443 example.com", "example.com,localhost,127.0.0.1,::1"),
        ("localhost, 10.0.0.0/8", "localhost,10.0.0.0/8,127.0.0.1,::1"),
        ("east.openai.azure.com", "localhost,127.0.0.1,::1"),
        ("notanthropic.com", "notanthropic.com,localhost,127.0.0.1,::1"),
    ],
)
def test_what_would_let_a_provider_go_past_is_taken_out_of_no_proxy(before, after):
    result = changed({"no_proxy": before})
    assert result["NO_PROXY"] == result["no_proxy"] == after


def test_loopback_stays_out_of_the_proxy_even_where_a_profile_names_it():
    assert not bypasses("localhost", HOSTS)
    assert not bypasses("*", ["localhost:11434"])


def test_a_shell_reads_what_exports_prints():
    awkward = {"A": 'it\'s "quoted" $HOME `x`\nand more', "B": ""}
    script = exports(awkward) + 'printf "%s|%s" "$A" "$B"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{awkward['A']}|"
