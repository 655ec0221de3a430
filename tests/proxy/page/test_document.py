import base64
import hashlib
import re

from hivemind_addon.proxy.page.document import CONTENT_SECURITY_POLICY, DOCUMENT

TEXT = DOCUMENT.decode()


def test_it_needs_nothing_from_elsewhere():
    loads = re.findall(r"(?:src|href|action)\s*=\s*[\"']?([^\"'\s>]+)", TEXT)
    assert {one.partition(":")[0] for one in loads} <= {"/report.json", "/metrics", "/health", "data"}
    assert not re.search(r"@import|url\(", TEXT)


def test_the_policy_names_exactly_its_own_script_and_style():
    for tag in ("script", "style"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", TEXT, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY


def test_it_never_makes_markup_of_what_it_is_told():
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", TEXT)


def test_it_is_small():
    assert len(DOCUMENT) < 40_000
