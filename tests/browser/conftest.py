"""A real headless Chromium, the system's own, and a mitmweb with the addon for it to look at.

`make test` installs Chromium where it can (Debian, root); HIVEMIND_REQUIRE_BROWSER=1 makes its absence a failure.
Set HIVEMIND_SCREENSHOTS=folder to keep what `look` photographs.
"""

import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.e2e.conftest import (  # noqa: F401 - fixtures
    authority,
    late_port,
    providers,
    proxy_arguments,
)
from tests.e2e.proxy import MITMDUMP, PATIENCE_S, Proxy, free_port, running

MITMWEB = MITMDUMP.with_name("mitmweb")
PASSWORD = "open-sesame"
"""Of mitmweb's page."""
expect.set_options(timeout=PATIENCE_S * 1000)


@contextmanager
def chromium():
    """Chromium without a window. As long as it lives, its event loop counts as running in this thread."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        if os.environ.get("HIVEMIND_REQUIRE_BROWSER"):
            pytest.fail("there is no chromium; `make browser` installs Debian's where it may")
        pytest.skip("there is no chromium; `make browser` installs Debian's where it may")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox"], timeout=PATIENCE_S * 1000
        )
        yield started
        started.close()


@pytest.fixture(scope="package")
def browser():
    """The one of all tests in this folder, which are one group."""
    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: Browser):
    """A new tab of 1280 by 800, in its own context; a script error on it fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_S * 1000)
    tab = context.new_page()
    errors: list[str] = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    yield tab
    context.close()
    assert not errors


def look(page: Page, name: str) -> None:
    """Keep a screenshot where HIVEMIND_SCREENSHOTS says; a person is to look at it."""
    if folder := os.environ.get("HIVEMIND_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png")


@dataclass(frozen=True, slots=True)
class Web:
    """One mitmweb with the addon."""

    proxy: Proxy
    port: int
    """Of its page."""

    @property
    def url(self) -> str:
        """Its page, token and all."""
        return f"http://127.0.0.1:{self.port}/?token={PASSWORD}"


@contextmanager
def running_mitmweb(confdir: Path, *arguments: str, **more):
    """Start a mitmweb with the addon and the probe, as `tests.e2e.proxy.running` starts a mitmdump."""
    port = free_port()
    web = ["--no-web-open-browser", "--web-port", str(port), "--set", f"web_password={PASSWORD}"]
    with running(confdir, *web, *arguments, executable=MITMWEB, **more) as proxy:
        proxy.wait_for(lambda _: "Web server listening" in proxy.log, "the page's port")  # it opens after the proxy's
        yield Web(proxy, port)


@pytest.fixture(scope="session")
def web(proxy_arguments: list[str], tmp_path_factory: pytest.TempPathFactory):  # noqa: F811
    """The mitmweb that the browser tests share. A test has a key of its own, and leaves nothing held behind."""
    with running_mitmweb(tmp_path_factory.mktemp("mitmweb"), *proxy_arguments) as started:
        yield started
