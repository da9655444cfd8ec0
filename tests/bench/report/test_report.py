"""Results as a page and as CSV: they are complete, and strangers' texts do no harm."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import msgspec
import pytest

from mcpmux.bench.assertion import judge_all, parse_assertion
from mcpmux.bench.report.compare import compare_reports
from mcpmux.bench.report.html import html_of
from mcpmux.bench.report.tables import COLUMNS, csv_of, notes_on
from mcpmux.bench.results import Results
from tests.bench.made import made, pushes, report
from tests.bench.reported import EMPTY, STEPPED, WHOLE, broken, evil


class Page(HTMLParser):
    """A page as a browser reads it: its tags, attributes and texts."""

    VOID = frozenset({"meta"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(
    "results",
    [(WHOLE,), (WHOLE, broken(STEPPED), EMPTY), (EMPTY,), ()],
    ids=["one", "several", "nothing measured", "no target"],
)
def test_a_page_needs_nothing_from_outside(results: tuple[Results, ...]):
    page = Page(html_of(report(*results)))
    assert not {"script", "link", "img", "iframe", "object", "use", "image"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name in ("src", "href", "xlink:href", "style")]
    policy = [
        value for name, value in page.attributes if name == "content" and value and "default-src" in value
    ]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert "@import" not in page.text
    assert "url(" not in page.text
    assert "nan" not in page.text


def test_who_measured_nothing_is_told_what_to_do():
    assert notes_on((EMPTY,)) == ["empty: no request began in the 3.00 s measured: take longer (--duration)"]
    assert notes_on((msgspec.structs.replace(EMPTY, fan_out=pushes()),)) == []
    (note,) = notes_on((msgspec.structs.replace(EMPTY, stopped="the server ended"),))
    assert "the server ended" in note


def test_a_page_has_the_numbers_and_the_plots():
    page = html_of(report(WHOLE, broken(STEPPED)))
    text = Page(page).text
    plots = (
        "Latency by percentile",
        "Throughput over time",
        "Latency over time",
        "Throughput against latency",
    )
    for words in (*plots, "Delay of pushes by percentile", "rpc -32602", "p99 was 60 ms", "processors"):
        assert words in text, words


def test_a_page_begins_with_the_verdict_and_answers_a_search():
    conditions = judge_all([parse_assertion("p99<1s")], [WHOLE])
    text = Page(html_of(report(WHOLE), (), conditions, {"docs": "200/s held"})).text
    order = ("mcpmux bench", conditions[0].sentence, "Throughput", "Latency", "docs: 200/s held")
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_plots_are_well_formed_and_stay_inside():
    page = html_of(report(WHOLE, broken(STEPPED), made(lambda random, at: 0.01, seconds=3, name="steady")))
    plots = re.findall(r"<svg.*?</svg>", page)
    assert len(plots) == 1 + 4 + 4 + 3
    for plot in plots:
        root = ElementTree.fromstring(plot)
        *_, width, height = map(float, root.attrib["viewBox"].split())
        for dot in root.iter("circle"):
            assert 0 <= float(dot.attrib["cx"]) <= width
            assert 0 <= float(dot.attrib["cy"]) <= height
        for path in root.iter("path"):
            for axis, place in re.findall(r"([MLHV]|(?<=\d) )(-?[\d.]+)", path.attrib["d"]):
                assert 0 <= float(place) <= (width if axis in "MLH" and axis != " " else max(width, height))


def test_strangers_texts_are_no_part_of_the_page():
    conditions = judge_all([parse_assertion("p99<1s")], [evil()])
    page = Page(html_of(report(evil(), WHOLE), compare_reports(report(evil()), report(evil())), conditions))
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in page.text


def test_csv_has_a_row_for_each_measure():
    rows = list(csv.reader(io.StringIO(csv_of(report(WHOLE, broken(STEPPED), EMPTY)))))
    assert tuple(rows[0]) == COLUMNS
    assert {len(row) for row in rows} == {len(COLUMNS)}
    values = {(row[0], row[5], row[6]): row[7] for row in rows[1:]}
    assert len(values) == len(rows) - 1, "no row twice"
    assert float(values["docs", "", "requests"]) == 2000
    assert float(values["docs", "read", "latency p99.9"]) == WHOLE.operations["read"].latency.percentile(99.9)
    assert values["docs", "delivery", "losses"] == "3"
    assert float(values["stepped", "step 200/s", "offered"]) == 200
    assert values["empty", "", "latency p50"] == ""


def test_csv_has_no_formula_of_a_stranger():
    for row in csv.reader(io.StringIO(csv_of(report(evil())))):
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row)
