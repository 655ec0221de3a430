"""A local model server behind the queue: llama.cpp's own, before a tiny model of random weights.

python -m lab.bench.local             the tables; half a minute, an idle machine
python -m lab.bench.local --write     and into docs/local-models.md
"""

import json
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import httpx

from hivemind_addon.formats.base.resources import script_path
from lab.bench.stack import free_port
from lab.fleets.programs import LLAMA_CPP, install
from lab.markdown import markdown_filled, markdown_table

PAGE = Path(__file__).parents[2] / "docs" / "local-models.md"
PAIRS = 300
SLOTS, AT_ONCE, TOKENS = 2, 8, 1500
PROFILE = "llama-cpp"


@dataclass(frozen=True, slots=True)
class Answer:
    """A streamed answer, and when the parts came, in seconds of a common clock."""

    status: int
    text: str
    tokens: int
    sent_at: float
    begun_at: float
    ended_at: float

    @property
    def first_s(self) -> float:
        """Until the first bytes of the body."""
        return self.begun_at - self.sent_at


@contextmanager
def running_llama(folder: Path, *, slots: int) -> Iterator[str]:
    """The server's address. Raises NotInstalled."""
    python = install([LLAMA_CPP]).executable(LLAMA_CPP)
    log = (folder / "llama.log").open("wb")
    command = [python, str(Path(__file__).with_name("llama_server.py")), str(folder), str(slots)]
    with log, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as server:
        assert server.stdout
        address = server.stdout.readline().decode().strip()
        if not address:
            raise SystemExit(f"llama.cpp's server did not start: {(folder / 'llama.log').read_text()}")
        yield address


@contextmanager
def running_proxy(folder: Path, upstream: str, name: str, *more: str) -> Iterator[str]:
    """The address of a mitmdump before the server, as users start mitmdump."""
    port, log = free_port(), folder / f"{name}.log"
    command = [str(Path(sys.executable).with_name("mitmdump")), "--mode", f"reverse:{upstream}@127.0.0.1:{port}"]
    command += ["--set", f"confdir={folder}", "--set", "flow_detail=0", *more]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            with httpx.Client(trust_env=False) as client:
                for _ in range(600):
                    try:
                        if client.get(f"http://127.0.0.1:{port}/health").status_code == httpx.codes.OK:
                            break
                    except httpx.TransportError:
                        select.select([], [], [], 0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def ask(client: httpx.Client, address: str, words: str, tokens: int, *, usage: bool = False) -> Answer:
    """A streamed chat completion of exactly so many tokens."""
    body = {
        "messages": [{"role": "user", "content": words}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": usage},
    }
    sent_at, begun_at, said, count = time.perf_counter(), 0.0, [], 0
    with client.stream("POST", f"{address}/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            begun_at = begun_at or time.perf_counter()
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                said.extend(choice["delta"].get("content") or "" for choice in event["choices"])
                count = event.get("timings", {}).get("predicted_n", count)
    return Answer(response.status_code, "".join(said), count, sent_at, begun_at, time.perf_counter())


def at_once(address: str, count: int = AT_ONCE, tokens: int = TOKENS) -> list[Answer]:
    """So many at the same time, by the beginning of their answers."""
    with ThreadPoolExecutor(count) as pool, httpx.Client(timeout=120, trust_env=False) as client:
        asked = [pool.submit(ask, client, address, f"w{number}", tokens) for number in range(count)]
        return sorted((one.result() for one in asked), key=lambda answer: answer.begun_at)


def most_at_once(answers: list[Answer]) -> int:
    """The most answers that were under way at the same time."""
    changes = sorted([(one.begun_at, 1) for one in answers] + [(one.ended_at, -1) for one in answers])
    under_way = most = 0
    for _, change in changes:
        under_way += change
        most = max(most, under_way)
    return most


def added_table(addresses: dict[str, str]) -> str:
    """The first byte's time each way, in turns."""
    first_s: dict[str, list[float]] = {name: [] for name in addresses}
    with httpx.Client(trust_env=False) as client:
        for number in range(PAIRS + 10):
            for name, address in addresses.items():
                answer = ask(client, address, f"w{number % 200}", 16)
                if number >= 10:
                    first_s[name].append(answer.first_s)
    direct, rows = first_s["direct"], []
    for name, took_s in first_s.items():
        added = [mine - bare for mine, bare in zip(took_s, direct, strict=True)]
        more = "| " if name == "direct" else f"{median(added) * 1e3:.2f} ms | {quantiles(added, n=20)[-1] * 1e3:.2f} ms"
        rows.append(f"{name} | {median(took_s) * 1e3:.2f} ms | {more}")
    titles = "first byte, of 16 tokens | median | added, median of pairs | added, P95"
    return f"{markdown_table(titles, rows)}\n{PAIRS} requests each way, in turns, over kept connections."


def queue_table(addresses: dict[str, str]) -> str:
    """What a silent queue looks like."""
    rows = []
    for name in ("direct", "through hivemind"):
        answers = at_once(addresses[name])
        refused = sum(one.status != httpx.codes.OK for one in answers)
        waits = " ".join(f"{one.first_s:.2f}" for one in answers)
        took_s = max(one.ended_at for one in answers) - min(one.sent_at for one in answers)
        rows.append(f"{name} | {refused} | {most_at_once(answers)} | {waits} | {took_s:.2f} s")
    titles = (
        f"{AT_ONCE} at once, {TOKENS:,} tokens each | refused | most answers at once | first bytes after, s | all done"
    )
    return f"{markdown_table(titles, rows)}\nThe server has {SLOTS} slots."


def main() -> None:
    """Print the tables, or write the page."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(running_llama(folder, slots=SLOTS))
        ours = ("-s", str(script_path()), "--set", f"hivemind_reverse_profile={PROFILE}")
        addresses = {
            "direct": server,
            "through bare mitmdump": stack.enter_context(running_proxy(folder, server, "bare")),
            "through hivemind": stack.enter_context(running_proxy(folder, server, "ours", *ours)),
        }
        found = {"added": added_table(addresses), "queue": queue_table(addresses)}
    print("\n".join(found.values()))
    if "--write" in sys.argv[1:]:
        PAGE.write_text(markdown_filled(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
