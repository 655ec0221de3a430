"""A new user: the wheel in an empty home, the first lines of docs/start.md, and what each view shows then.

`make newcomer` is the long form, with packages from their registries and a real agent.
"""

import io
import re

import numpy as np
import pytest
from PIL import Image

from hivemind_addon.sim.standalone import AGENTS
from lab.bench.newcomer import views
from lab.bench.newcomer.house import ROOT, borrowed, built_wheel
from lab.bench.newcomer.lines import Typist, left_running, lines_of
from lab.bench.newcomer.pictures import IMAGES
from tests.browser.conftest import chromium
from tests.e2e.proxy import free_port

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("newcomer")]
_CELLS = (32, 20)
"""Across and down."""
ALIKE = 0.5
"""The same view of another run has 0.65 at least; without its style, its data or anything at all it has 0.23 at most."""


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """Nothing of ours is in it but the wheel; when all is over, nothing runs in it any more."""
    folder = tmp_path_factory.mktemp("newcomer")
    made = borrowed(folder / "house", built_wheel(folder))
    yield made
    assert list(left_running(made)) == []


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


def committed(name: str) -> bytes:
    return (IMAGES / name).read_bytes()


def test_a_call_without_a_key_is_scheduled_by_the_lines_of_the_start_page(house):
    page = ROOT / "docs" / "start.md"
    ports = {"sim": free_port(), "proxy": free_port()}
    # In the place of Claude Code, which is not installed here: what `hivemind sim` tells to type for curl.
    curl = AGENTS["curl"].format(url=f"http://127.0.0.1:{ports['proxy']}")
    with Typist(house, ports, {'claude -p "hello"': f"curl -sS --fail {curl.removeprefix('curl ')}"}) as typist:
        for line in lines_of(page):
            if not line.startswith(("uv tool", "hivemind demo", "hivemind exec")):
                typist.type(line)
        assert '"type":"message"' in typist.seen['claude -p "hello"'].replace(" ", "").replace("\n", "")
        assert re.search(r"1 request .*1 delivered", typist.seen["hivemind status"])
        assert "delivered" in typist.seen["hivemind history"]


def test_every_view_of_the_demo_looks_as_its_picture(house, browser):
    with views.watching(house) as (terminal, at):
        terminal.look(2)
        svg = views.status(house, at.port)
        assert all(word in svg for word in ("hivemind", "api.anthropic.com", "requests", "agent-1"))
        found = {}
        for scheme in ("light", "dark"):
            with views.opened(browser, at.page, color_scheme=scheme) as tab:
                found[f"status-page-{scheme}.png"] = views.status_page(tab)
        with views.opened(browser, at.mitmweb) as tab:
            found["mitmweb-held.png"] = views.mitmweb_list(tab)
            found["mitmweb-story.png"] = views.mitmweb_story(tab)
        assert "0 lost" in views.end(terminal, "\x03")
    alike = {name: round(likeness(png, committed(name)), 2) for name, png in found.items()}
    assert all(value > ALIKE for value in alike.values()), f"{alike}: look, and renew them by `make pictures`"


def test_a_page_that_is_empty_or_has_lost_its_style_is_not_alike(browser):
    with views.opened(browser, "about:blank") as tab:
        empty = tab.screenshot()
        tab.set_content("<h1>500 Internal Server Error</h1><p>Something went wrong.</p>" + "<p>agent-0 waits</p>" * 40)
        plain = tab.screenshot()
    for name in ("status-page-light.png", "status-page-dark.png", "mitmweb-held.png", "mitmweb-story.png"):
        assert max(likeness(one, committed(name)) for one in (empty, plain)) < ALIKE / 2
        assert likeness(committed(name), committed(name)) == 1


def test_pictures_are_small_and_the_film_is_of_the_whole_way():
    pictures = [path for path in IMAGES.iterdir() if path.suffix in (".png", ".svg")]
    assert all(path.stat().st_size < 150_000 for path in pictures), "run `make pictures`"
    pages = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    assert [path.name for path in pictures if f"images/{path.name})" not in pages] == []
    film = (IMAGES / "demo.svg").read_text(encoding="utf-8")
    assert all(word in film for word in ("hivemind demo --watch", "in flight", "delivered", "calls upstream"))
    assert not re.search(r"<script|https?://(?!www\.w3\.org/|127\.0\.0\.1)", film), "nothing runs, nothing is fetched"


def likeness(one: bytes, other: bytes) -> float:
    """Of two screenshots of a view, by where something is drawn, and on which ground: 0 (nothing in common) to 1."""
    first, second = (np.asarray(Image.open(io.BytesIO(png)).convert("L"), dtype=float) for png in (one, other))
    if first.shape != second.shape or _is_dark(first) != _is_dark(second):
        return 0.0
    drawn, expected = _drawn(first), _drawn(second)
    both, either = np.minimum(drawn, expected).sum(), np.maximum(drawn, expected).sum()
    return float(both / either) if either else 0.0


def _is_dark(picture: np.ndarray) -> bool:
    return float(np.median(picture)) < 128


def _drawn(picture: np.ndarray) -> np.ndarray:
    """How much each cell's brightness varies, from 0 to 1."""
    across, down = _CELLS
    height, width = picture.shape
    cut = picture[: height // down * down, : width // across * across]
    cells = cut.reshape(down, height // down, across, width // across)
    return np.minimum(cells.std(axis=(1, 3)) / 24, 1.0)
