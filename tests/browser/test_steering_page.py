"""The page that steers, in a real browser: who may, what it does, who the journal names, and that nobody else's page can."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect

from hivemind_addon.proxy.api.command import OpenPage
from hivemind_addon.proxy.api.control import control_socket, send_command
from lab.running_server import running_server
from tests.browser.conftest import look, running_mitmweb
from tests.browser.team import fleet
from tests.e2e.conftest import runtime_dir  # noqa: F401 - a fixture
from tests.e2e.proxy import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser"), pytest.mark.usefixtures("runtime_dir")]

BROWSER = """#!{python}
import sys
open({told!r}, "w").write(sys.argv[1])
"""
"""What `hivemind open` starts here in the place of a browser."""
TASKS = """
at_most: 2
tasks:
  plan: {command: "true"}
  build: {command: "true", depends_on: [plan]}
  test: {command: "false", depends_on: [plan], retries: 0}
  release: {command: "true", depends_on: [build, test]}
"""


def hivemind(*words, port, **more):
    command = [sys.executable, "-P", "-m", "hivemind_addon", *words, "-p", str(port)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, **more)


def wait_for_socket(team):
    team.proxy.wait_for(lambda _: control_socket(team.proxy.port).exists(), "the control socket")


def key_url(team, user="ann"):
    """The address that `hivemind open` prints, for a person of this name."""
    said = send_command(control_socket(team.proxy.port), OpenPage(user), timeout_s=PATIENCE_S)
    return said.value["url"]


@contextmanager
def steered(page, folder, *arguments, **more):
    """A fleet that waits, and a page that steers it."""
    with fleet(folder, *arguments, **more) as team:
        wait_for_socket(team)
        team.let_run()
        page.goto(key_url(team))
        expect(page.locator("#steering")).to_contain_text("the journal names ann")
        expect(page.locator("#queue")).to_contain_text("concurrency limit")
        yield team
        team.finish(all_served=False)


def acted(folder):
    """What persons did, as the journal of the newest proxy has it."""
    (file,) = folder.glob("state-*/hivemind_addon/journal.db")
    journal = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    rows = journal.execute("SELECT text, fields FROM happening WHERE event = 'PersonActed' ORDER BY id").fetchall()
    journal.close()
    return [(text, json.loads(fields).get("person", "")) for text, fields in rows]


def press(page, text, inside="body", number=0):
    page.locator(inside).get_by_role("button", name=re.compile(text)).nth(number).click()


def confirm(page, text):
    expect(page.locator("dialog")).to_be_visible()
    page.locator("dialog").get_by_role("button", name=text, exact=True).click()
    expect(page.locator("dialog")).to_be_hidden()


def test_a_person_opens_the_page_and_steers_and_the_journal_says_who(page, tmp_path, monkeypatch):
    told, fake = tmp_path / "told", tmp_path / "browser"
    fake.write_text(BROWSER.format(python=sys.executable, told=str(told)))
    fake.chmod(0o700)
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    with fleet(tmp_path) as team:
        wait_for_socket(team)
        team.let_run()
        said = hivemind("open", port=team.proxy.port, env=os.environ | {"BROWSER": str(fake), "LOGNAME": "ann"})
        assert said.returncode == 0, said.stderr
        address = told.read_text()
        assert address.startswith("file://"), "a key in a command line is everybody's"
        file = Path(address.removeprefix("file://"))
        assert file.stat().st_mode & 0o77 == 0
        page.goto(address)
        expect(page.locator("#steering")).to_contain_text("the journal names ann")
        assert page.url == team.page, "the key is in no history"
        expect(page.locator("#queue")).to_contain_text("concurrency limit")

        press(page, "^Pause 127", "#pools")
        expect(page.locator("#said")).to_contain_text("paused: nothing is sent until somebody resumes it")
        expect(page.locator("#state")).to_have_text("paused")
        expect(page.locator("#log")).to_contain_text("(by ann, on the page)")
        press(page, "^Resume 127", "#pools")
        expect(page.locator("#state")).to_have_text("serving")

        press(page, "^Cap for", "#pools")
        page.locator("dialog input").fill("2")
        confirm(page, "Set")
        expect(page.locator("#pools")).to_contain_text("capped at 2")
        press(page, "^Take back at most 2", "#overrides")
        expect(page.locator("#pools")).not_to_contain_text("capped")

        last = page.locator("#queue tr", has_text="#9")
        agent = last.locator("a").inner_text()
        ticket = last.get_attribute("data-key")
        last.get_by_role("button", name="First").click()
        expect(page.locator("#queue tr", has_text="#1")).to_have_attribute("data-key", ticket)

        row = page.locator(f'#queue tr[data-key="{ticket}"]')
        row.get_by_role("button", name="Cancel").click()
        expect(page.locator("dialog")).to_contain_text(f"{ticket} of {agent}")
        look(page, "steering-dialog")
        page.keyboard.press("Enter")  # the harmless answer has the focus
        expect(row).to_be_visible()
        row.get_by_role("button", name="Cancel").click()
        confirm(page, "Cancel it")
        expect(row).to_have_count(0)

        press(page, "^Priority of lead", "#agents")
        confirm(page, "Set")
        expect(page.locator("#overrides")).to_contain_text("priority high: lead")

        press(page, "^Budget of anybody")
        page.locator("dialog").get_by_label("tokens").fill("123456")
        confirm(page, "Set it")
        expect(page.locator("#budgets")).to_contain_text("of 123k tokens")
        press(page, "^Begin anew the budget of everyone", "#budgets")
        confirm(page, "Begin anew")
        expect(page.locator("#said")).to_contain_text("begins anew")

        press(page, "^Pause all")
        confirm(page, "Pause all")
        expect(page.locator("#state")).to_have_text("paused")
        look(page, "steering-paused")
        press(page, "^Resume all")
        expect(page.locator("#state")).to_have_text("serving")
        page.reload()
        expect(page.locator("#steering")).to_be_visible()
        press(page, "Steer no more")
        expect(page.locator("#steering")).to_be_hidden()
        expect(page.locator("main button")).to_have_count(0)
        team.finish(all_served=False)
        team.proxy.stop()
    by_ann = [text for text, person in acted(tmp_path) if person == "ann, on the page"]
    for words in ("paused", "resumed", "at most 2", "as many attempts", "moved to the front", "cancelled", "priority high",
                  "may spend 123,456 tokens", "begins anew"):  # fmt: skip
        assert any(words in text for text in by_ann), words
    assert all("by ann, on the page" in text for text in by_ann)


ATTACK = """async ([url, token]) => {
    const command = JSON.stringify({id: "evil", command: {type: "pause", pool: "*"}}), told = {};
    const tries = {
        json: {headers: {"content-type": "application/json", "x-hivemind-token": token}},
        plain: {headers: {"content-type": "text/plain"}},
        blind: {mode: "no-cors", headers: {"content-type": "text/plain"}},
        signed: {credentials: "include", headers: {"content-type": "application/json", "x-hivemind-token": token}},
    };
    for (const [name, how] of Object.entries(tries))
        told[name] = await fetch(url + "page/command", {method: "POST", body: command, ...how})
            .then((answer) => answer.type === "opaque" ? "opaque" : answer.text(), () => "refused");
    for (const path of ["report.json", "page/history/day.json", "page/fleets.json"])
        told[path] = await fetch(url + path).then((answer) => answer.text(), () => "refused");
    navigator.sendBeacon(url + "page/command", new Blob([command], {type: "text/plain"}));
    const frame = document.createElement("iframe");
    frame.name = "frame";
    document.body.append(frame);
    const form = Object.assign(document.createElement("form"), {method: "POST", action: url + "page/command", target: "frame", enctype: "text/plain"});
    const field = Object.assign(document.createElement("input"), {name: command.slice(0, -1) + ',"x":"', value: '"}'});
    form.append(field);
    document.body.append(form);
    const done = new Promise((loaded) => { frame.onload = loaded; });
    form.submit();
    await done;
    try { told.form = frame.contentDocument.body.textContent; } catch { told.form = "refused"; }
    frame.src = url;
    await new Promise((loaded) => { frame.onload = loaded; });
    try { told.frame = frame.contentDocument.body.textContent; } catch { told.frame = "refused"; }
    const other = window.open(url);
    await new Promise((wait) => setTimeout(wait, 1500));
    try { told.window = other ? String(other.closed || other.document.title) : "refused"; } catch { told.window = "refused"; }
    return told;
}"""
"""All that a page of another site may try, though it should know the token."""


def test_no_other_origin_can_steer_or_read_even_with_the_token(page, tmp_path):
    with steered(page, tmp_path) as team, running_server() as other:
        token = page.evaluate("sessionStorage.getItem('hivemind-token')")
        assert len(token) > 40
        assert page.context.cookies() == []
        evil = page.context.new_page()
        # Another port of this machine, which is another origin, though cookies know no ports.
        for url in (other.url, other.url.replace("127.0.0.1", "localhost")):
            evil.goto(f"{url}/")
            assert evil.evaluate("sessionStorage.getItem('hivemind-token')") is None
            told = evil.evaluate(ATTACK, [team.page, token])
            opaque = told.pop("blind")
            assert opaque in ("opaque", "refused"), "nobody can read it"
            window = told.pop("window")
            assert window in ("true", "refused", ""), window
            assert {name: text for name, text in told.items() if "refused" not in text and "not for other sites" not in text and text} == {}  # fmt: skip
        for name in ("steering", "state"):
            expect(page.locator(f"#{name}")).to_be_visible()
        assert team.proxy.state()["snapshot"]["pauses"] == {}
        team.finish(all_served=False)  # the proxy's end would wait for those that are in flight
        team.proxy.stop()
    assert [text for text, _ in acted(tmp_path) if "paused" in text] == []


def test_a_name_that_was_made_to_lead_here_neither_shows_nor_steers(page, tmp_path):
    """Rebinding: the browser takes a name of the attacker's for this machine, and the proxy for its own origin."""
    with steered(page, tmp_path) as team:
        token, url = page.evaluate("sessionStorage.getItem('hivemind-token')"), key_url(team)
        rebound = page.context.browser.browser_type.launch(
            executable_path=shutil.which("chromium") or shutil.which("chromium-browser"),
            args=["--no-sandbox", "--host-resolver-rules=MAP rebound.test 127.0.0.1"],
        )
        tab = rebound.new_page()
        here = f"http://rebound.test:{team.proxy.port}/"
        answer = tab.goto(url.replace("127.0.0.1", "rebound.test"))
        assert answer is None or not answer.ok
        told = tab.evaluate(
            """([url, token]) => fetch(url + "page/command", {method: "POST", headers: {"content-type": "application/json", "x-hivemind-token": token},
                body: JSON.stringify({id: "1", command: {type: "pause", pool: "*"}})}).then((answer) => answer.status, () => 0)""",
            [here, token],
        )
        assert told in (0, 400, 421, 502), told
        rebound.close()
        assert team.proxy.state()["snapshot"]["pauses"] == {}
        page.goto(url)  # it is good still: nobody has used it
        expect(page.locator("#steering")).to_be_visible()


def test_agents_cannot_steer_through_the_proxy_even_with_the_token(page, tmp_path):
    with steered(page, tmp_path) as team:
        token = page.evaluate("sessionStorage.getItem('hivemind-token')")
        with team.proxy.client("agent-7") as client:
            for base in ("http://hivemind.internal", "https://hivemind.internal", team.page.rstrip("/")):
                headers = {"origin": base, "x-hivemind-token": token, "content-type": "application/json"}
                command = {"id": "1", "command": {"type": "pause", "pool": "*"}}
                answer = client.post(f"{base}/page/command", json=command, headers=headers)
                assert answer.status_code in (403, 502), base
                assert client.get(f"{base}/page/fleets.json", headers=headers).status_code in (401, 502)
        assert team.proxy.state()["snapshot"]["pauses"] == {}
        assert token not in team.proxy.log
        assert token not in team.proxy.probe("known")


def test_a_page_whose_token_is_good_no_more_says_so(page, tmp_path):
    with steered(page, tmp_path):
        page.evaluate("sessionStorage.setItem('hivemind-token', 'x')")
        press(page, "^Pause 127", "#pools")
        expect(page.locator("#said")).to_contain_text("`hivemind open` opens one that steers")
        expect(page.locator("#steering")).to_be_hidden()


def test_history_a_request_and_a_fleet_are_shown_and_can_be_read_by_everybody(page, tmp_path):
    with steered(page, tmp_path) as team:
        team.answer_one()
        expect(page.locator("#totals > div", has_text="delivered").locator("b")).to_have_text("1")
        (state,) = tmp_path.glob("state-*")
        file = tmp_path / "night.yaml"
        file.write_text(TASKS)
        hivemind("fleet", "run", str(file), port=team.proxy.port, env=os.environ | {"XDG_STATE_HOME": str(state)})

        page.get_by_role("navigation").get_by_role("link", name="History").click()
        expect(page.locator("figure")).to_have_count(4)
        expect(page.locator("figure", has_text="Requests").first).to_contain_text("13 requests, 1 delivered")
        expect(page.locator("figure canvas")).to_have_count(4)
        page.get_by_text("Requests as a table").click()
        expect(page.get_by_role("region", name="Requests, table").locator("td").first).to_have_text("1")
        readable(page, "history")
        page.get_by_role("button", name="30 days").click()
        expect(page.locator("figure", has_text="Cost by agent and day").or_(page.locator("figure", has_text="Tokens by agent and day"))).to_be_visible()  # fmt: skip

        page.get_by_role("link", name="Now").click()
        waits = page.locator("#queue tr", has_text="concurrency limit")
        waits.get_by_role("link", name="worker-3").first.click()
        expect(page.locator("#request")).to_contain_text("waits now")
        expect(page.locator("#request")).to_contain_text(re.compile(r"queued, \d"))
        expect(page.locator(".tree .tree .tree")).not_to_have_count(0)
        expect(page.locator(".tree > li > p").first).to_contain_text("lead")
        readable(page, "request")
        press(page, "^Cancel")
        confirm(page, "Cancel it")
        expect(page.locator("#request .acts")).to_have_count(0)
        # Of what is over another is shown: of this one the proxy has just read the journal, and does not at once again.
        page.get_by_role("link", name="Now").click()
        row = waits.filter(has_text="worker-2").first
        ticket = row.get_attribute("data-key")
        row.get_by_role("button", name="Cancel").click()
        confirm(page, "Cancel it")
        expect(page.locator(f'#queue tr[data-key="{ticket}"]')).to_have_count(0)
        page.goto(f"{team.page}request/{ticket}")
        expect(page.locator("#request")).to_contain_text("never ran")

        page.get_by_role("link", name="Fleets").click()
        expect(page.locator("#fleets")).to_contain_text("2 done, 1 failed, 1 skipped")
        page.locator("#fleets a").click()
        expect(page.locator("#fleet svg .task")).to_have_count(4)
        expect(page.locator("#fleet svg path")).to_have_count(4)
        expect(page.locator("#fleet table")).to_contain_text("test failed: exit status 1")
        readable(page, "fleet")
        press(page, "Steer no more")
        page.reload()
        expect(page.locator("#fleet")).to_contain_text("shown to their owner only")

        page.goto(f"{team.page}request/0123456789ab")
        expect(page.locator("#request")).to_contain_text("knows no request 0123456789ab")
        page.goto(team.page)
        readable(page, "now")


def test_a_request_leads_to_its_flow_in_mitmweb(page, tmp_path):
    with steered(page, tmp_path, run=running_mitmweb):
        page.locator("#queue").get_by_role("link", name="reviewer-2").click()
        link = page.get_by_role("link", name="Its flow in mitmweb")
        ticket = page.url.rpartition("/")[2]
        expect(link).to_have_attribute("href", re.compile(r"^http://127\.0\.0\.1:\d+/#/flows\?s="))
        web = link.get_attribute("href")
        tab = page.context.new_page()
        tab.goto(web.partition("#")[0] + "?token=open-sesame")  # as a person does once
        expect(tab.locator("tr", has_text="/v1/messages").first).to_be_visible()
        tab.goto("about:blank")  # an open mitmweb writes its own filter into the address at the next flow
        tab.goto(web)
        expect(tab.locator("tbody tr", has_text="/v1/messages")).to_have_count(1)
        expect(tab.locator("tbody")).to_contain_text(ticket)
        tab.close()


NAMES = """() => [...document.querySelectorAll("a, button, input, select, summary, [tabindex='0']")].filter((one) => one.checkVisibility() &&
    !(one.getAttribute("aria-label") || one.textContent || one.labels?.length).toString().trim()).map((one) => one.outerHTML)"""
IDS = """() => { const ids = [...document.querySelectorAll("[id]")].map((one) => one.id); return ids.filter((id, place) => ids.indexOf(id) !== place); }"""
CONTRAST = """() => {
    const parse = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
    const light = (rgb) => { const [r, g, b] = rgb.map((one) => one / 255).map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const ground = (one) => { for (; one; one = one.parentElement) { const colour = parse(getComputedStyle(one).backgroundColor); if (colour[3]) return colour; } return [255, 255, 255]; };
    const bad = [];
    for (const one of document.querySelectorAll("body *:not(svg *):not(option)")) {
        if (!one.checkVisibility() || ![...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
        const [a, b] = [light(parse(getComputedStyle(one).color)), light(ground(one))].sort((x, y) => y - x);
        if ((a + 0.05) / (b + 0.05) < 4.5) bad.push(one.outerHTML.slice(0, 120));
    }
    return bad;
}"""


def readable(page, name):
    """Names for what cannot be seen, contrast, one landmark and one heading of the first rank, and room for a phone."""
    assert page.evaluate(NAMES) == []
    assert page.evaluate(IDS) == []
    assert page.locator("main, [role=main]").count() == page.locator("h1").count() == 1
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width, height in ((1280, 900), (320, 720)):
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)
            look(page, f"{name}-{scheme}-{width}")
        assert page.evaluate(CONTRAST) == [], scheme
    page.emulate_media(media="print", color_scheme="light")
    assert page.locator("nav, #acts, #steering, footer").locator("visible=true").count() == 0
    look(page, f"{name}-print")
    page.emulate_media(media="screen", color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 800})


def test_everything_can_be_done_with_the_keyboard_alone(page, tmp_path):
    with steered(page, tmp_path):
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_have_text("To the content")
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent") == "Pause all…":
                break
        opener = page.evaluate("document.activeElement.textContent")
        assert opener == "Pause all…"
        page.keyboard.press("Enter")
        expect(page.locator("dialog")).to_be_visible()
        assert page.evaluate("document.querySelector('dialog').contains(document.activeElement)")
        page.keyboard.press("Escape")
        expect(page.locator("dialog")).to_be_hidden()
        expect(page.locator(":focus")).to_have_text("Pause all…")
        page.keyboard.press("Enter")
        expect(page.locator("dialog")).to_be_visible()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#state")).to_have_text("paused")
        # What is drawn anew once a second takes the focus from nobody.
        focused = page.locator("#queue").get_by_role("button", name="Cancel").nth(3)
        focused.focus()
        row = page.evaluate("document.activeElement.closest('tr').dataset.key")
        page.wait_for_function("told => document.querySelector('#about').textContent !== told", arg=page.locator("#about").inner_text())  # fmt: skip
        assert page.evaluate("document.activeElement.closest('tr')?.dataset.key") == row
