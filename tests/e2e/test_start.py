"""How it starts: the command, the options, and what stops the start."""

import os
import re
import socket
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from hivemind_addon.tools.history.filters import Span
from hivemind_addon.tools.history.incident_history import read_incidents
from hivemind_addon.tools.history.reader import JournalReader
from tests.e2e.forked import Forked
from tests.e2e.proxy import MITMDUMP, PATIENCE_S, ROOT, free_port, running

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "hivemind_addon"
MITMPROXYS_OWN = re.compile(r"Loading script|listening at|stopped\.$|^Error logged during startup, exiting\.\.\.$")


def start_that_ends(confdir, *arguments, program=None):
    """Start one that must not go on. Its exit status and lines, mitmproxy's own left out.

    `program`: to start it from nothing; otherwise a fork of what is imported already.
    """
    command = [*(program or ["mitmdump"]), "--set", f"confdir={confdir}", *arguments, "-s", str(SCRIPT)]
    if not any(argument in ("--mode", "--listen-port") for argument in arguments):
        command += ["--listen-port", str(free_port())]
    with tempfile.NamedTemporaryFile() as log:
        if program:
            ended = subprocess.Popen(command, stdout=log.fileno(), stderr=subprocess.STDOUT, cwd=confdir)
        else:
            ended = Forked(command, log.name, confdir, dict(os.environ))
        try:
            status = ended.wait(PATIENCE_S)
        finally:
            ended.kill()
        lines = Path(log.name).read_text().splitlines()
    return status, [line for line in lines if not MITMPROXYS_OWN.search(line)]


def assert_refused(confdir, *arguments, says, **more):
    status, lines = start_that_ends(confdir, *arguments, **more)
    assert status == 1
    assert len(lines) == 1, lines
    for word in says:
        assert word in lines[0]


@pytest.mark.parametrize("program", ["mitmdump", "mitmweb"])
def test_the_readmes_command_works_literally_in_the_checkout(tmp_path, program):
    arguments = ["--no-web-open-browser", "--set", f"web_port={free_port()}"] if program == "mitmweb" else []
    with running(
        tmp_path,
        *arguments,
        scripts=("hivemind_addon", ROOT / "tests/e2e/probe.py"),
        cwd=ROOT,
        executable=MITMDUMP.with_name(program),
    ) as proxy:
        assert proxy.state()["guard_trips"] == 0
        ours = [line for line in proxy.log.splitlines() if "hivemind:" in line]
        assert [line for line in ours if " listening at " not in line] == []
        assert proxy.stop() == 0


def test_the_script_works_by_its_path_from_elsewhere(tmp_path):
    with running(tmp_path, cwd=tmp_path, executable=MITMDUMP) as proxy:
        assert proxy.state()["live"] == 0


def test_the_script_is_executable_by_itself(tmp_path):
    assert os.access(SCRIPT, os.X_OK)
    assert SCRIPT.read_text().startswith("#!/usr/bin/env -S mitmdump -s\n")


def test_a_mitmdump_whose_python_lacks_the_package_names_that_python_and_the_cure(tmp_path):
    import venv

    venv.create(tmp_path / "other", with_pip=False, symlinks=True)
    python = tmp_path / "other" / "bin" / "python"
    there = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    )
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if (
            not entry.name.startswith(("msgspec", "hivemind", "_editable_impl_hivemind", "__pycache__"))
            and not (there / entry.name).exists()
        ):
            (there / entry.name).symlink_to(entry)
    mitmdump = (
        str(python),
        "-c",
        "import sys; sys.argv[0] = 'mitmdump'; from mitmproxy.tools.main import mitmdump; mitmdump()",
    )
    assert_refused(tmp_path, program=mitmdump, says=(str(python), "msgspec", "-m pip install"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("hivemind_allow_lan=perhaps", ["hivemind_allow_lan", "perhaps", "true"]),
        ("hivemind_redirect=api.anthropic.com", ["hivemind_redirect", "HOST=ADDRESS:PORT"]),
        ("hivemind_profiles=/nonexistent", ["hivemind_profiles"]),
        ("hivemind_log=/nonexistent/events.jsonl", ["hivemind_log", "no place for a file"]),
    ],
)
def test_a_bad_option_given_by_set_stops_the_start_with_one_line(tmp_path, given, says):
    """Each of the stages that refuse one; tests/mitm/test_options.py has all the values."""
    assert_refused(tmp_path, "--set", given, says=says)


@pytest.mark.parametrize(
    ("yaml", "says"),
    [
        ("hivemind_redirect: ['a=b:99999']", ["hivemind_redirect", "HOST=ADDRESS:PORT"]),
        ("hivemind_profiles: 3", ["hivemind_profiles"]),
        ("hivemind_reverse_profile: nobody", ["hivemind_reverse_profile", "nobody", "anthropic"]),
        ("hivemind_reverse_profile: [a, b]", ["hivemind_reverse_profile"]),
        ("hivemind_notify: sh 'x", ["hivemind_notify"]),
        ("hivemind_profile: x", ["hivemind_profile:", "no such option", "did you mean hivemind_profiles?"]),
    ],
)
def test_a_bad_option_in_config_yaml_stops_the_start_with_one_line(tmp_path, yaml, says):
    (tmp_path / "config.yaml").write_text(yaml + "\n")
    assert_refused(tmp_path, says=says)


def test_each_bad_option_has_its_own_line(tmp_path):
    status, lines = start_that_ends(tmp_path, "--set", "hivemind_redirect=x", "--set", "hivemind_profile=x")
    assert status == 1
    assert [line.split("hivemind: ")[-1].split(":")[0] for line in lines if "hivemind:" in line] == [
        "hivemind_profile",
        "hivemind_redirect",
    ]
    assert not any("Traceback" in line for line in lines)


def test_a_bad_profile_stops_the_start_with_one_line(tmp_path):
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "mine.yaml").write_text("hosts: [a.test]\npathz: ['/*']\n")
    says = ["mine.yaml", "pathz", "did you mean paths?"]
    assert_refused(tmp_path, "--set", f"hivemind_profiles={folder}", says=says)


WIDE = {
    "listen_host": lambda port: ("--listen-host", "0.0.0.0", "--listen-port", port),
    "one mode of two": lambda port: (
        "--mode",
        f"regular@127.0.0.1:{free_port()}",
        "--mode",
        f"reverse:http://127.0.0.1:9@0.0.0.0:{port}",
    ),
}


@pytest.mark.parametrize("how", WIDE)
def test_a_listener_for_everybody_is_refused(tmp_path, how):
    assert_refused(tmp_path, *WIDE[how](str(free_port())), says=("listen_host", "proxyauth", "hivemind_allow_lan"))


@pytest.mark.parametrize("word", ["proxyauth=somebody:secret", "hivemind_allow_lan=true"])
def test_a_listener_for_everybody_starts_with_an_explicit_word(tmp_path, word):
    with running(tmp_path, "--listen-host", "0.0.0.0", "--set", word, host="*") as proxy:
        socket.create_connection(("127.0.0.2", proxy.port), timeout=PATIENCE_S).close()


@pytest.mark.skipif(sys.platform != "linux", reason="all of 127/8 is this machine's own on Linux only")
@pytest.mark.parametrize("modes", [("regular",), ("regular", "reverse:http://127.0.0.1:9")])
def test_it_listens_on_loopback_unless_the_user_says_otherwise(tmp_path, modes):
    with running(tmp_path, modes=modes) as proxy:
        for port in proxy.ports:
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("arguments", "yaml", "expected"),
    [
        ((), "", ("lazy", "127.0.0.1")),
        ((), "connection_strategy: eager\n", ("eager", "127.0.0.1")),
        (("--set", "connection_strategy=eager", "--set", "listen_host=localhost"), "", ("eager", "localhost")),
    ],
)
def test_what_the_user_set_is_respected(tmp_path, arguments, yaml, expected):
    (tmp_path / "config.yaml").write_text(yaml)
    with running(tmp_path, *arguments) as proxy:
        assert (
            proxy.probe("option", name="connection_strategy"),
            proxy.probe("option", name="listen_host"),
        ) == expected


def test_a_bad_value_set_while_it_runs_is_rolled_back(tmp_path):
    with running(tmp_path, "--set", "hivemind_redirect=a.test=127.0.0.1:9") as proxy:
        assert "HOST=ADDRESS:PORT" in proxy.probe("set", option="hivemind_redirect=nonsense")
        assert proxy.probe("option", name="hivemind_redirect") == ["a.test=127.0.0.1:9"]
        assert proxy.probe("set", option="hivemind_redirect=b.test=127.0.0.1:8") == "ok"
        assert proxy.state()["guard_trips"] == 0


_TOLD_BINDS = """
import sys
sys.addaudithook(lambda event, args: event == "socket.bind" and print("bind", args[1][0], flush=True))
sys.argv[0] = "mitmdump"
from mitmproxy.tools.main import mitmdump
mitmdump()
"""


@pytest.mark.parametrize("mode", ["regular", "socks5"])
def test_no_port_is_bound_beyond_loopback_at_any_moment(tmp_path, mode):
    port = free_port()
    command = [sys.executable, "-c", _TOLD_BINDS, "--set", f"confdir={tmp_path}", "--mode", f"{mode}@{port}"]
    off = ("--set", "hivemind_journal=off", "--set", "hivemind_control=off")
    with subprocess.Popen([*command, *off, "-s", str(SCRIPT)], stdout=subprocess.PIPE, text=True) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "hivemind: listening at" in line:
                process.terminate()
    bound = {line.split()[1] for line in lines if line.startswith("bind ")}
    assert bound == {"127.0.0.1"}, lines
    assert process.returncode == 0


@pytest.mark.parametrize("host", [(), ("--listen-host", "127.0.0.1")])
def test_a_taken_port_still_ends_the_start_and_is_no_death_of_a_proxy(tmp_path, host):
    journal = tmp_path / "journal.db"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = ("--listen-port", str(taken.getsockname()[1]), *host, "--set", f"hivemind_journal={journal}")
        status, lines = start_that_ends(tmp_path, *arguments)
    assert status == 1
    assert any("address already in use" in line for line in lines), lines
    with JournalReader(journal) as reader:
        assert read_incidents(reader, Span(), now=2e9) == []
