"""How it starts: the command, the options, what stops the start, and how many files it may open."""

import os
import re
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from hivemind_addon.tools.history.filters import Span
from hivemind_addon.tools.history.incident_history import read_incidents
from hivemind_addon.tools.history.reader import JournalReader
from tests.e2e.forked import Forked
from tests.e2e.proxy import MITMDUMP, PATIENCE_S, ROOT, free_port, options, running

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
    """By one line that says all this."""
    status, lines = start_that_ends(confdir, *arguments, **more)
    assert status == 1
    assert len(lines) == 1, lines
    assert [word for word in says if word not in lines[0]] == [], lines[0]


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


def test_the_script_works_by_its_path_from_elsewhere_and_is_executable_by_itself(tmp_path):
    with running(tmp_path, cwd=tmp_path) as proxy:
        assert proxy.state()["live"] == 0
    assert os.access(SCRIPT, os.X_OK)
    assert SCRIPT.read_text().startswith("#!/usr/bin/env -S mitmdump -s\n")


def test_a_mitmdump_whose_python_lacks_the_package_names_that_python_and_the_cure(tmp_path):
    venv.create(tmp_path / "other", with_pip=False, symlinks=True)
    python = tmp_path / "other" / "bin" / "python"
    there = next((tmp_path / "other" / "lib").glob("python*/site-packages"))
    ours = ("msgspec", "hivemind", "_editable_impl_hivemind", "__pycache__")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(ours) and not (there / entry.name).exists():
            (there / entry.name).symlink_to(entry)
    script = "import sys; sys.argv[0] = 'mitmdump'; from mitmproxy.tools.main import mitmdump; mitmdump()"
    assert_refused(tmp_path, program=(str(python), "-c", script), says=(str(python), "msgspec", "-m pip install"))
    # PyInstaller's mark, which the binaries of mitmproxy.org and Homebrew have.
    binary = (str(python), "-c", f"import sys; sys.frozen = True; {script}")
    assert_refused(tmp_path, program=binary, says=("standalone binary", "hivemind run"))


# What stops the start -----------------------------------------------------------------------------------------------------

BY_SET = {
    "hivemind_allow_lan=perhaps": ["hivemind_allow_lan", "perhaps", "true"],
    "hivemind_redirect=api.anthropic.com": ["hivemind_redirect", "HOST=ADDRESS:PORT"],
    "hivemind_profiles=/nonexistent": ["hivemind_profiles"],
    "hivemind_capture=/nowhere/night.flow": ["hivemind_capture: ", "is no place for a file"],
}
BY_FILE = {
    "hivemind_profiles: 3": ["hivemind_profiles"],
    "hivemind_reverse_profile: nobody": ["hivemind_reverse_profile", "nobody", "anthropic"],
    "hivemind_profile: x": ["hivemind_profile:", "no such option", "did you mean hivemind_profiles?"],
}
"""Each of the stages that refuse one, and what it says; tests/proxy/gate/test_options.py has all the values."""


def test_a_bad_option_a_bad_profile_or_a_foreign_file_stops_the_start_with_one_line(tmp_path, subtests):
    for given, says in BY_SET.items():
        with subtests.test(given):
            assert_refused(tmp_path, "--set", given, says=says)
    for yaml, says in BY_FILE.items():
        with subtests.test(yaml):
            (tmp_path / "config.yaml").write_text(f"{yaml}\n")
            assert_refused(tmp_path, says=says)
    (tmp_path / "config.yaml").unlink()
    with subtests.test("a profile"):
        (tmp_path / "profiles").mkdir()
        (tmp_path / "profiles" / "mine.yaml").write_text("hosts: [a.test]\npathz: ['/*']\n")
        says = ["mine.yaml", "pathz", "did you mean paths?"]
        assert_refused(tmp_path, *options(profiles=tmp_path / "profiles"), says=says)
    with subtests.test("a capture into something else"):
        file = tmp_path / "novel.txt"
        file.write_text("It was a dark and stormy night.")
        says = [f"hivemind_capture: {file}: it is there and holds something else; name another file"]
        assert_refused(tmp_path, *options(capture=file), says=says)
        assert file.read_text() == "It was a dark and stormy night."
    with subtests.test("two options"):
        status, lines = start_that_ends(tmp_path, *options(redirect="x", profile="x"))
        names = [line.split("hivemind: ")[-1].split(":")[0] for line in lines if "hivemind:" in line]
        assert (status, names) == (1, ["hivemind_profile", "hivemind_redirect"])


def test_a_taken_port_still_ends_the_start_and_is_no_death_of_a_proxy(tmp_path):
    journal = tmp_path / "journal.db"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = ("--listen-port", str(taken.getsockname()[1]), *options(journal=journal))
        status, lines = start_that_ends(tmp_path, *arguments)
    assert status == 1
    assert any("address already in use" in line for line in lines), lines
    with JournalReader(journal) as reader:
        assert read_incidents(reader, Span(), now=2e9) == []


# Where it listens ---------------------------------------------------------------------------------------------------------


def test_a_listener_for_everybody_wants_an_explicit_word(tmp_path, subtests):
    says, wide = ("listen_host", "proxyauth", "hivemind_allow_lan"), f"reverse:http://127.0.0.1:9@0.0.0.0:{free_port()}"
    with subtests.test("listen_host"):
        assert_refused(tmp_path, "--listen-host", "0.0.0.0", says=says)
    with subtests.test("one mode of two"):
        assert_refused(tmp_path, "--mode", f"regular@127.0.0.1:{free_port()}", "--mode", wide, says=says)
    for word in ("proxyauth=somebody:secret", "hivemind_allow_lan=true"):
        with (
            subtests.test(word),
            running(tmp_path, "--listen-host", "0.0.0.0", "--set", word, host="*") as proxy,
        ):
            socket.create_connection(("127.0.0.2", proxy.port), timeout=PATIENCE_S).close()


@pytest.mark.skipif(sys.platform != "linux", reason="all of 127/8 is this machine's own on Linux only")
def test_it_listens_on_loopback_unless_the_user_says_otherwise(tmp_path):
    with running(tmp_path, modes=("regular", "reverse:http://127.0.0.1:9")) as proxy:
        assert proxy.probe("option", name="connection_strategy") == "lazy"
        assert proxy.probe("option", name="listen_host") == "127.0.0.1"
        for port in proxy.ports:
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), timeout=PATIENCE_S)
    (tmp_path / "config.yaml").write_text("connection_strategy: eager\n")
    with running(tmp_path, "--set", "listen_host=localhost", *options(redirect="a.test=127.0.0.1:9")) as proxy:
        assert proxy.probe("option", name="connection_strategy") == "eager"
        assert proxy.probe("option", name="listen_host") == "localhost"
        # A bad value set while it runs is rolled back.
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


def test_no_port_is_bound_beyond_loopback_at_any_moment(tmp_path):
    modes = ("--mode", f"regular@{free_port()}", "--mode", f"socks5@{free_port()}")
    command = [sys.executable, "-c", _TOLD_BINDS, "--set", f"confdir={tmp_path}", *modes]
    command += [*options(journal="off", control="off"), "-s", str(SCRIPT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "hivemind: listening at" in line:
                process.terminate()
    bound = {line.split()[1] for line in lines if line.startswith("bind ")}
    assert bound == {"127.0.0.1"}, lines
    assert process.returncode == 0


# More clients than there are files for ------------------------------------------------------------------------------------

CLIENTS = 345


@pytest.fixture
def limited(tmp_path):
    """Makes a mitmdump that begins with a soft and a hard limit of open files."""

    def make(soft, hard):
        script = tmp_path / "mitmdump"
        script.write_text(f'#!/bin/sh\nulimit -Sn {soft} && ulimit -Hn {hard} && exec {MITMDUMP} "$@"\n')
        script.chmod(0o700)
        return running(tmp_path / "conf", executable=script)

    return make


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_served(client, port):
    connection = HTTPConnection("127.0.0.1", port)
    connection.sock = client
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        return answer.status in (200, 503) and bool(answer.read())  # 503: it is busy, and says so
    except (OSError, HTTPException):
        return False


def is_healthy(port):
    with closing(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)) as client:
        return is_served(client, port)


def crowd(stack, port):
    return [
        stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)) for _ in range(CLIENTS)
    ]


def test_beyond_a_hard_limit_of_files_some_clients_are_refused_and_nothing_spins(limited):
    with limited(256, 256) as proxy:
        with ExitStack() as stack:
            clients = crowd(stack, proxy.port)
            served = next(number for number, client in enumerate(clients[:3]) if is_served(client, proxy.port))
            before, began = cpu_s(proxy.process.pid), time.monotonic()
            time.sleep(1)  # the machine's own time: a spin would show in it
            share = (cpu_s(proxy.process.pid) - before) / (time.monotonic() - began)
            assert share < 0.5
            assert is_served(clients[served], proxy.port)
            assert proxy.log.count("\n") < 5 * CLIENTS
            assert "out of system resource" not in proxy.log
            assert proxy.log.count("open files let") == 1
        deadline = time.monotonic() + PATIENCE_S
        while not is_healthy(proxy.port):  # it hears one by one that they have gone
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_soft_limit_of_files_is_raised_and_all_clients_are_served(limited):
    with limited(256, 4096) as proxy, ExitStack() as stack:
        assert all(is_served(client, proxy.port) for client in crowd(stack, proxy.port))
        assert "open files let" not in proxy.log
