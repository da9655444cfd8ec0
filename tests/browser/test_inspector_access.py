"""Everybody can use the inspector: no page breaks a rule of axe, in any colours and at any width."""

from __future__ import annotations

import json

import pytest

from tests.browser.browser import Browser, Json
from tests.browser.inspector_tour import open_tour, visit
from tests.real.parts import npm_env

TELL = (
    "({violations}) => violations.map(({id, nodes}) => `${id}: ${nodes[0].html} ${nodes[0].failureSummary}`)"
)
ALL: Json = {}
COLOURS: Json = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
WIDE = "document.documentElement.scrollWidth > innerWidth || document.body.scrollWidth > innerWidth"
OPEN_PAGE = "document.querySelector('main > :not([hidden])')"


def check(rules: Json) -> str:
    """Return a script that finds what breaks these rules of axe in a page."""
    options = json.dumps({"resultTypes": ["violations"], "iframes": False, **rules})
    return f"axe.run(document, {options}).then({TELL})"


@pytest.mark.parametrize(
    ("scheme", "rules", "widths"),
    [("light", ALL, (360, 1280, 3840)), ("dark", COLOURS, (360, 1280))],  # a scheme changes only colours
    ids=["light", "dark"],
)
async def test_no_page_breaks_a_rule_of_accessibility(
    browser: Browser, scheme: str, rules: Json, widths: tuple[int, ...]
):
    axe = (npm_env("axe") / "axe-core" / "axe.min.js").read_text()
    broken = []
    async with open_tour(browser) as page:
        await page.prefer(scheme)
        await page.run(f"{axe}; 0")
        for width in widths:
            await page.resize(width, 900)
            seen = 0
            async for name in visit(page):
                broken += [f"{name} at {width}: {problem}" for problem in await page.run(check(rules))]
                if await page.run(f"{WIDE} || {OPEN_PAGE}.scrollWidth > {OPEN_PAGE}.clientWidth"):
                    broken.append(f"{name} at {width} is too wide")
                seen += 1
            assert seen >= 8
    assert broken == []
