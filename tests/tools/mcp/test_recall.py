"""What was taken out of a context is read again: by agents in parts, by people whole."""

import json
import os
import pty
import subprocess
import sys

from click.testing import CliRunner
from msgspec import Raw

from hivemind_addon.plugins.contexts.store import ContextStore, TakenResult
from hivemind_addon.tools.cli import main
from tests.patience import PATIENCE_S
from tests.tools.mcp.stage import failing, given

FACT = "the port is 4711"
ID, OTHER = "3f9c01ab2e77", "3f9d01ab2e77"


def kept(folder):
    blocks = json.dumps([{"type": "text", "text": "x" * 30}, {"type": "text", "text": FACT}]).encode()
    ContextStore(folder).keep_results(
        [
            TakenResult(ID, 1_795_345_317.25, "one", "s-1", "toolu_1", Raw(blocks)),
            TakenResult(OTHER, 1_795_345_317.25, "one", "s-1", "", Raw(b'{"output":"\\u20ac"}')),
        ]
    )
    return folder


async def test_an_agent_reads_it_by_its_id_in_parts_whoever_it_is(stage):
    kept(stage.journal.parent / "contexts")
    async with stage.client("two") as client:
        whole = await given(client, "recall", id=ID)
        assert whole == {"text": f"{'x' * 30}\n{FACT}", "next_offset": None, "total_chars": 31 + len(FACT)}
        first = await given(client, "recall", id=ID, chars=31)
        rest = await given(client, "recall", id=ID, offset=first["next_offset"])
        assert first["text"] + rest["text"] == whole["text"]
        assert rest["text"] == FACT


async def test_no_agent_finds_what_it_cannot_name(stage):
    kept(stage.journal.parent / "contexts")
    async with stage.client("two") as client:
        assert "3f9d" not in await failing(client, "recall", id="3f9")
        assert "nothing that was taken out" in await failing(client, "recall", id="0" * 12)


def test_a_person_reads_it_by_the_beginning_of_its_id(tmp_path):
    folder = str(kept(tmp_path / "contexts"))

    def run(*words):
        done = CliRunner().invoke(main, ["context", "recall", *words, "--folder", folder])
        return done.exit_code, done.output

    assert run("3f9c") == (0, f"{'x' * 30}\n{FACT}\n")
    assert json.loads(run("3f9d", "--json")[1])["value"] == {"output": "€"}
    for words, why in (("3f9", "3f9c01ab2e77 or 3f9d01ab2e77"), ("f", "nothing that was taken out")):
        status, said = run(words)
        assert status == 1
        assert why in said
        assert said.count("\n") == 1


def test_a_terminal_is_not_steered_by_what_a_tool_has_printed(tmp_path):
    red = "\x1b[31mred\x1b[0m\tand more"
    value = Raw(json.dumps(red).encode())
    ContextStore(tmp_path).keep_results([TakenResult(ID, 1_795_345_317.25, "one", "s-1", "", value)])
    command = [sys.executable, "-P", "-m", "hivemind_addon", "context", "recall", ID, "--folder", str(tmp_path)]
    piped = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S)
    assert piped.stdout.decode().rstrip() == red
    ours, theirs = pty.openpty()
    try:
        subprocess.run(command, stdout=theirs, check=True, timeout=PATIENCE_S)
        shown = os.read(ours, 4096).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "\x1b" not in shown
    assert "red" in shown
