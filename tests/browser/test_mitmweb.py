"""What a person sees and does in mitmweb."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]


def test_it_comes_up_with_the_addon(web, page):
    page.goto(web.url)
    page.get_by_role("link", name="Options").first.wait_for()
