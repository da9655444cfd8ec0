"""The picture is one well-formed SVG that shows every mark, and can be read on light and dark pages."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks.picture import Mark, Panel, picture, ratio_marks
from benchmarks.report import MET, NOT_MET, Row, Spread

SVG = "{http://www.w3.org/2000/svg}"
MARKS = [
    Mark("read <1 KB> & more", Spread(0.4, 0.3, 0.5), 0.33, MET),
    Mark("call", Spread(0.2, 0.1, 0.3)),
    Mark("read 2 MB", Spread(0.5, 0.4, 0.7), 0.6, NOT_MET),
]


def drawn(*panels: Panel) -> ElementTree.Element:
    return ElementTree.fromstring(picture(panels))


def test_every_mark_has_a_dot_in_the_colour_of_its_judgement():
    dots = drawn(Panel("Shares", MARKS)).findall(f".//{SVG}circle")
    assert [dot.get("class") for dot in dots] == ["met", "free", "missed"]
    places = [float(dot.get("cx") or 0) for dot in dots]
    assert places[1] < places[0] < places[2]


def test_labels_are_escaped_and_the_values_are_in_the_hint():
    titles = [title.text for title in drawn(Panel("Shares", MARKS)).findall(f".//{SVG}title")]
    assert titles[0] == "read <1 KB> & more: 0.40 (0.30–0.50), met"


def test_goal_has_a_tick_only_where_there_is_one():
    goals = [path for path in drawn(Panel("Shares", MARKS)).iter(f"{SVG}path") if path.get("class") == "goal"]
    assert len(goals) == 2


def test_both_colour_schemes_are_styled():
    style = drawn(Panel("Shares", MARKS)).find(f"{SVG}style")
    assert style is not None
    assert style.text is not None
    assert "prefers-color-scheme:dark" in style.text
    assert style.text.count(".page{") == 2


def test_factors_lie_on_a_logarithmic_axis():
    marks = [Mark("a", Spread(10, 10, 10), 10, MET), Mark("b", Spread(100, 100, 100), 10, MET)]
    marks.append(Mark("c", Spread(1000, 900, 1000), 10, MET))
    places = [
        float(dot.get("cx") or 0) for dot in drawn(Panel("Times", marks, log=True)).iter(f"{SVG}circle")
    ]
    assert abs((places[1] - places[0]) - (places[2] - places[1])) < 0.2


def test_panels_lie_below_each_other_and_empty_ones_are_left_out():
    both = drawn(Panel("Shares", MARKS), Panel("None", []), Panel("Times", MARKS, log=True))
    titles = [text.text for text in both.iter(f"{SVG}text") if text.get("class") == "title"]
    assert titles == ["Shares", "Times"]
    heights = [float(dot.get("cy") or 0) for dot in both.iter(f"{SVG}circle")]
    assert heights == sorted(heights)
    assert heights[-1] < float((both.get("viewBox") or "").split()[3])


def test_picture_of_nothing_is_still_a_picture():
    assert drawn().tag == f"{SVG}svg"


def test_only_rows_with_a_ratio_are_shown():
    shown = Row("read", "", "", ratio=Spread(0.4, 0.3, 0.5), bound=0.33, met=MET)
    assert ratio_marks([shown, Row("start", "", "")]) == [Mark("read", Spread(0.4, 0.3, 0.5), 0.33, MET)]
