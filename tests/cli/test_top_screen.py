"""The screen of `mcpmux top`, drawn without a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import urwid

from mcpmux.cli.top.command import measured
from mcpmux.cli.top.screen import TopScreen
from tests.cli.test_top_model import DOCS, FACTS, row

SIZES = [(60, 20), (80, 24), (200, 50)]
HOSTILE = "\x1b]0;x\x07\x9b2J\u202e漢字ｆ\r\n\t"


class Shown:
    """A screen of a size, and what it has asked for."""

    def __init__(self, size: tuple[int, int] = (80, 24), wanted: str = "") -> None:
        self.size = size
        self.asked: list[Any] = []
        closed, filtered = (lambda: self.asked.append("closed")), (lambda: self.asked.append("filter"))
        self.screen = TopScreen(
            "http://127.0.0.1:1",
            wanted,
            self.asked.append,
            closed,
            filtered,
            lambda key, verdict: self.asked.append((key, verdict)),
        )

    def press(self, *keys: str) -> None:
        for key in keys:
            self.screen.keypress(self.size, key)

    def lines(self) -> list[str]:
        return [line.decode() for line in self.screen.render(self.size, focus=True).text]

    def line(self, containing: str) -> str:
        """Return the only line with a text."""
        (line,) = [line for line in self.lines() if containing in line]
        return line

    def focused(self) -> str:
        """Return the text that is drawn with the focus."""
        canvas = self.screen.render(self.size, focus=True)
        parts = [text for line in canvas.content() for style, _, text in line if style == "focus"]
        return b" ".join(parts).decode()


def upstreams(*names: str, **members: Any) -> list[Any]:
    stats = {"upstreams": [{**FACTS, "upstream": names[0]}], "seconds": 60.0}
    return list(measured([{**DOCS, "name": name, **members} for name in names], stats))


@pytest.fixture
def shown() -> Iterator[Shown]:
    display = Shown()
    display.screen.show_upstreams(upstreams("docs", "search"))
    display.screen.show_exchanges([row(number, target=f"tool-{number}") for number in range(100, 0, -1)])
    yield display


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_it_fits_into_any_terminal_whatever_strangers_write(size: tuple[int, int]) -> None:
    shown = Shown(size, HOSTILE)
    shown.screen.show_upstreams(upstreams(*(f"{HOSTILE}{number}" for number in range(40)), target=HOSTILE))
    shown.screen.show_exchanges([row(1, target=HOSTILE, client=HOSTILE, upstreams=[HOSTILE])])
    shown.screen.tell("upstreams", f"no mcpmux answers: {HOSTILE}")
    for keys in ((), ("tab",), ("tab", "/"), ("esc", "enter"), ("esc",)):
        shown.press(*keys)
        lines = shown.lines()
        assert len(lines) == size[1]
        assert {urwid.calc_width(line, 0, len(line)) for line in lines} == {size[0]}
        assert all(line.isprintable() for line in lines), lines


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_what_matters_most_is_in_sight_on_any_terminal(size: tuple[int, int]) -> None:
    shown = Shown(size)
    shown.screen.show_upstreams(upstreams("docs"))
    shown.screen.show_exchanges([row(1, target="docs__find", ms=3.0, upstreams=["docs"], client="editor")])
    upstream = shown.line("ready")
    assert upstream.split()[:5] == ["docs", "ready", "0.500/s", "12.0", "ms"]
    assert "3 10.0%" in upstream
    assert "tools/call docs__" in shown.line("ok")
    assert shown.lines()[-1].startswith("Tab table")
    assert shown.lines()[-1].rstrip().endswith("q quit")
    assert ("editor" in shown.line("ok")) == (size[0] >= 80)
    assert "npx docs" in upstream
    assert ("IN FLIGHT" in shown.line("NAME")) == (size[0] >= 80)


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (60, ["tools/call docs__find-the-long…"]),
        (80, ["tools/call docs__find-the-longest-one", "docs"]),
        (90, ["tools/call docs__find-the-longest-one docs", "editor-of-a-p…"]),
        (100, ["tools/call docs__find-the-longest-one", "docs", "editor-of-a-person"]),
    ],
)
def test_other_texts_give_way_to_the_request(width: int, columns: list[str]) -> None:
    shown = Shown((width, 24))
    request = {"target": "docs__find-the-longest-one", "upstreams": ["docs"]}
    shown.screen.show_exchanges([row(1, **request, ms=3.0, client="editor-of-a-person")])
    assert re.split("  +", shown.line("ok").partition("3.00 ms ")[2].strip()) == columns


def test_many_upstreams_leave_room_for_exchanges() -> None:
    shown = Shown()
    shown.screen.show_upstreams(upstreams(*map(str, range(100))))
    assert [line[:9] for line in shown.lines()].index("Exchanges") == 1 + 23 // 3
    shown.screen.show_upstreams(upstreams("docs"))
    assert [line[:9] for line in shown.lines()].index("Exchanges") == 1 + 3


def test_the_newest_exchange_is_focused_until_another_one_is_chosen(shown: Shown) -> None:
    assert "tool-100" in shown.focused()
    rows = [row(number, target=f"tool-{number}") for number in range(105, 0, -1)]
    shown.screen.show_exchanges(rows[2:])
    assert "tool-103" in shown.focused()
    shown.press("down", "down")
    assert "tool-101" in shown.focused()
    shown.screen.show_exchanges(rows)
    assert "tool-101" in shown.focused()
    shown.screen.show_exchanges(rows[80:])  # it is gone: the next that there is
    assert "tool-" in shown.focused()
    shown.screen.show_exchanges([])
    assert shown.focused() == ""
    shown.press("enter", "down")
    assert shown.asked == []


def test_an_exchange_is_opened_scrolled_and_closed(shown: Shown) -> None:
    shown.press("down", "enter")
    assert shown.asked == [99]
    assert "tools/call tool-99" in shown.lines()[1]
    shown.screen.show_lines([(f"line {number}.", "") for number in range(100)])
    assert "line 0." in shown.lines()[1]
    shown.press("page down", "down")
    assert "line 0." not in "".join(shown.lines())
    shown.press("end")
    assert "line 99." in "".join(shown.lines())
    shown.press("s", "p", "/")
    shown.press("esc")
    assert shown.asked == [99, "closed"]
    assert "tool-99" in shown.focused()


def test_an_upstream_is_opened_with_its_subscriptions(shown: Shown) -> None:
    shown.press("tab", "down", "enter")
    assert '"name": "docs"' in "".join(shown.lines())
    shown.press("end")
    assert '"uri": "note:///a"' in "".join(shown.lines())
    shown.press("esc", "tab")
    assert "tool-100" in shown.focused()


def test_a_filter_is_edited_and_its_mistakes_are_told(shown: Shown) -> None:
    shown.press("/", *"status=q", "enter")
    assert shown.line("filter: status=q")
    assert shown.line("expected one of ok, error")
    assert shown.asked == []
    shown.press("backspace", *"ok view=x", "enter")
    assert (shown.screen.wanted, shown.asked) == ("status=ok view=x", ["filter"])
    assert "Exchanges  status=ok view=x" in shown.line("Exchanges")
    shown.press("/", "backspace", "esc")
    assert shown.screen.wanted == "status=ok view=x"
    assert shown.lines()[-1].startswith("Tab table")


def test_upstreams_are_sorted_by_one_heading_after_the_other(shown: Shown) -> None:
    shown.screen.show_upstreams(
        [{"name": "(clients)"}, {"name": "a", "rate": 1.0}, {"name": "b", "rate": 2.0, "p50": 1.0}]
    )
    orders = []
    for _ in range(7):
        names = "".join(line[0] for line in shown.lines()[3:5])
        orders.append((shown.focused().partition(" 16:")[0].strip(), names))
        shown.press("s")
    assert orders[1:3] == [("RATE", "ba"), ("P50", "ba")]
    assert orders[6] == orders[0]


def test_nothing_moves_while_it_is_paused(shown: Shown) -> None:
    lines = shown.lines()[1:]
    shown.press("p")
    assert "paused" in shown.lines()[0]
    shown.screen.show_exchanges([row(500)])
    shown.screen.show_upstreams(upstreams("other"))
    assert shown.lines()[1:] == lines
    shown.press("p")
    assert "paused" not in shown.lines()[0]
    assert shown.line("other  ")
    assert len([line for line in shown.lines() if "tools/call" in line]) == 1


def test_a_trouble_is_told_until_it_is_over(shown: Shown) -> None:
    shown.screen.tell("upstreams", "no mcpmux answers")
    shown.screen.tell("exchanges", "the stream has ended")
    assert shown.lines()[1].startswith("trying again: no mcpmux answers")
    shown.screen.tell("upstreams", None)
    assert shown.lines()[1].startswith("trying again: the stream has ended")
    shown.screen.tell("exchanges", None)
    assert "trying again" not in "".join(shown.lines())


def test_q_leaves_it_from_everywhere_but_the_filter(shown: Shown) -> None:
    shown.press("/", "q", "esc")
    with pytest.raises(urwid.ExitMainLoop):
        shown.press("q")
    shown.press("enter")
    with pytest.raises(urwid.ExitMainLoop):
        shown.press("q")


def held(key: str, at_timeout: str = "refuse") -> Any:
    message = {"method": "tools/call", "params": {"name": HOSTILE, "arguments": {"path": f"/{key}"}}}
    rest = {"row": None, "by": "desk", "reason": HOSTILE, "seconds": 41.6, "at_timeout": at_timeout}
    return {"key": key, "message": message, **rest}


def test_held_exchanges_are_let_go_or_refused_one_by_one(shown: Shown) -> None:
    shown.screen.show_held([held("1"), held("2", "pass")])
    assert "2 held, h shows them" in shown.lines()[0]
    shown.press("a", "r")
    assert shown.asked == []  # not before they are opened
    shown.press("h")
    assert "held by desk for 42 s more, then it is refused" in shown.lines()[1]
    assert all(line.isprintable() for line in shown.lines())
    shown.press("a")
    assert "held by desk for 42 s more, then it goes on" in shown.lines()[1]
    shown.press("r", "r")
    assert shown.asked == [("1", "pass"), ("2", "refuse")]
    assert "no exchange is held" in shown.lines()[1]
    shown.screen.show_held([held("3"), held("4")])
    shown.screen.show_held([held("4")])  # another person has decided
    shown.press("a")
    assert len(shown.asked) == 2
    shown.press("a")
    assert shown.asked[2:] == [("4", "pass")]
    shown.press("esc")
    assert "tool-100" in shown.focused() and "held" not in shown.lines()[0]
