import hashlib
import re
from importlib.resources import files

from hivemind_addon.proxy.page import document
from hivemind_addon.proxy.page.document import ASSETS, STRICTEST_POLICY, make_document

TEXT = make_document()[0].decode()
OURS = {name: content.decode() for name, (_, content) in ASSETS.items() if not name.startswith("uPlot")}


def test_it_needs_nothing_from_elsewhere():
    loads = set(re.findall(r"(?:src|href|action)\s*=\s*[\"']?([^\"'\s>]+)", TEXT))
    pages = {"/", "/history", "/fleets", "/report.json", "/metrics", "/health", "#main"}
    assert {one for one in loads if not one.startswith("data:")} - pages == {
        f"/page/{name}" for name in ("page.css", "uPlot.min.css", "uPlot.iife.min.js", "page.js")
    }
    imported = {name for text in OURS.values() for name in re.findall(r"from \"\./([\w.]+)\"", text)}
    assert imported <= ASSETS.keys()
    names = ("http://www.w3.org/2000/svg", "HTTPS_PROXY=http://agent-1")
    for text in OURS.values():
        others = re.sub("|".join(map(re.escape, names)), "", text)
        assert not re.search(r"@import|url\(|https?://", others)


def test_every_answer_has_a_policy_of_its_own_and_nothing_stands_in_the_document():
    (first, policy), (second, other) = make_document(), make_document()
    assert policy != other
    (nonce,) = set(re.findall(r"'nonce-([^']+)'", policy))
    assert first.decode().count(f'nonce="{nonce}"') == 4
    assert nonce not in second.decode()
    for one in (policy, STRICTEST_POLICY):
        assert "default-src 'none'" in one
        assert "frame-ancestors 'none'" in one
        assert not re.search(r"unsafe|strict-dynamic|\*|http", one)
    assert not re.search(r"<script[^>]*>[^<]|<style|\son\w+=|style=", TEXT)


def test_it_never_makes_markup_of_what_it_is_told():
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|setTimeout\(\""
    assert [name for name, text in OURS.items() if re.search(forbidden, text)] == []


def test_it_is_small():
    assert sum(map(len, OURS.values())) + len(TEXT) < 80_000


def test_the_chart_library_is_the_one_that_is_written_down():
    folder = files(document.__package__)
    told = (folder / "uPlot.txt").read_text()
    assert "MIT" in told
    for name in ("uPlot.iife.min.js", "uPlot.min.css"):
        assert f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}" in told
