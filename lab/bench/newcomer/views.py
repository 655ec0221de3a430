"""What a new user sees of `hivemind demo --watch`: a film of its terminal, and each view's picture."""

import io
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from lab.bench.newcomer import drawing
from lab.bench.newcomer.house import House
from lab.bench.newcomer.terminal import Terminal

START_S = 60
_PALETTE = 96
"""Colours of a kept picture: pages have few, and a third of the bytes is enough for them."""
SIZE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}


@dataclass(frozen=True, slots=True)
class Addresses:
    """Of a running demo, as the screen says them."""

    page: str
    mitmweb: str

    @property
    def port(self) -> int:
        """The proxy's."""
        return int(re.search(r":(\d+)/", self.page)[1])


@contextmanager
def watching(house: House, *, film: bool = False, every_s: float = 0.0) -> Iterator[tuple[Terminal, Addresses]]:
    """`hivemind demo --watch` in a terminal of 80 by 24, until the block ends."""
    with Terminal(house.environment, house.home) as terminal:
        terminal.film = film
        terminal.type("hivemind demo --watch", every_s=every_s)
        terminal.until(r"?token=", "the address of mitmweb", START_S)
        terminal.until("in flight", "agents at work", START_S)
        page = re.search(r"http://127\.0\.0\.1:\d+/(?=\s*$)", terminal.text, re.MULTILINE)
        mitmweb = re.search(r"http://\S+\?token=\w+", terminal.text)
        assert page, terminal.text
        assert mitmweb, terminal.text
        yield terminal, Addresses(page[0], mitmweb[0])


def end(terminal: Terminal, key: str = "q") -> str:
    """Leave what is watched: what is to be seen then."""
    terminal.press(key)
    terminal.until(lambda text: "calls upstream" in text and text.rstrip().endswith("$"), "the end", 30)
    return terminal.text


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's own."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    assert executable, "there is no chromium; `make browser` installs Debian's where it may"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, address: str, **context: object) -> Iterator[Page]:
    """A tab with a page. An error of the scripts is raised."""
    tab = browser.new_context(**({"viewport": SIZE} | context)).new_page()
    errors: list[str] = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(address)
    yield tab
    tab.context.close()
    assert not errors, errors


def status_page(tab: Page) -> bytes:
    """The proxy's page with agents on it."""
    tab.locator("body", has_text="api.anthropic.com").wait_for()
    tab.locator("body", has_text="agent-0").wait_for()
    tab.wait_for_timeout(500)
    return tab.screenshot()


def mitmweb_list(tab: Page) -> bytes:
    """The list of flows, some of them held."""
    tab.locator(".flow-table tr.has-request").first.wait_for()
    for _ in range(20):  # the newest are at its end, and only what is in sight is drawn
        tab.locator(".flow-table").evaluate("table => table.scrollTop = table.scrollHeight")
        tab.wait_for_timeout(250)
        if tab.locator(".flow-table tr.intercepted").count() > 1:
            break
    return tab.screenshot()


def mitmweb_story(tab: Page) -> bytes:
    """A delivered flow as a conversation."""
    tab.locator(".flow-table tr", has_text="delivered").last.click()
    tab.locator(".flow-detail", has_text="api.anthropic.com/key-").first.wait_for()
    tab.wait_for_timeout(500)  # its text comes after it
    return tab.screenshot()


def status(house: House, port: int) -> str:
    """`hivemind status` in a terminal, as SVG."""
    with Terminal(house.environment, house.home, rows=40) as terminal:
        code, _ = terminal.run(f"hivemind status -p {port}", START_S)
        assert code == 0, terminal.text
        rows = [row for row in terminal.now() if "ended-" not in "".join(text for text, _ in row)]
        while rows and "".join(text for text, _ in rows[-1]).strip() in ("", "$"):
            rows.pop()
        return drawing.still(rows, "hivemind status")


def all_views(house: House, *, seconds: float) -> Iterator[tuple[str, bytes]]:
    """Each picture behind the file's name, of two demos; the first is watched and filmed for so long."""
    with watching(house, film=True, every_s=0.06) as (terminal, _):
        terminal.look(seconds)
        end(terminal)
        terminal.look(1)
        yield "demo.svg", drawing.moving(terminal.cut(), "hivemind demo --watch").encode()
    with chromium() as browser, watching(house) as (terminal, at):
        terminal.look(15)
        yield "status.svg", status(house, at.port).encode()
        for scheme in ("light", "dark"):
            with opened(browser, at.page, color_scheme=scheme) as tab:
                yield f"status-page-{scheme}.png", small(status_page(tab))
        with opened(browser, at.page, viewport=PHONE, color_scheme="light") as tab:
            yield "status-page-phone.png", small(status_page(tab))
        with opened(browser, at.mitmweb) as tab:
            yield "mitmweb-held.png", small(mitmweb_list(tab))
            yield "mitmweb-story.png", small(mitmweb_story(tab))
        end(terminal)


def small(png: bytes) -> bytes:
    """The same picture in fewer colours."""
    image = Image.open(io.BytesIO(png)).convert("RGB").quantize(_PALETTE, dither=Image.Dither.NONE)
    kept = io.BytesIO()
    image.save(kept, "PNG", optimize=True)
    return kept.getvalue()
