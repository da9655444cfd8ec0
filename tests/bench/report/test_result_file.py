"""The file of a benchmark, written and read; and every way in which it can be wrong."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpmux.bench.results import VERSION, BadResults, decode_report, encode_report, machine_facts
from tests.bench.made import made, pushes, report

REPORT = report(
    made(
        operations=("read", "list"), fan_out=pushes(), outcome=lambda random: random.choice(["ok", "timeout"])
    ),
    made(steps=(20, 50), name="other", seconds=4),
    made(rate=0.01, seconds=2, name="nothing"),
)
DATA = encode_report(REPORT)


def test_a_report_comes_back_as_it_was():
    assert decode_report(DATA, "old.json") == REPORT
    assert DATA.endswith(b"\n")


def test_fields_of_later_minor_changes_are_ignored():
    data = msgspec.json.decode(DATA)
    data["colour"] = "blue"
    data["results"][0]["mood"] = {"good": True}
    assert decode_report(msgspec.json.encode(data), "old.json") == REPORT


def changed(**fields: object) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(DATA), **fields})


def with_broken_histogram() -> bytes:
    data = msgspec.json.decode(DATA)
    data["results"][0]["operations"]["read"]["latency"]["count"] += 1
    return msgspec.json.encode(data)


def with_short_column() -> bytes:
    data = msgspec.json.decode(DATA)
    data["results"][1]["series"]["p99"].pop()
    return msgspec.json.encode(data)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (DATA[: len(DATA) // 2], "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not JSON of a benchmark"),
        (b"{}", "but not of a benchmark"),
        (changed(format="k6"), "but not of a benchmark"),
        (changed(version=VERSION + 1), "written by a newer mcpmux"),
        (changed(version=0), "never was one"),
        (changed(version="1"), "never was one"),
        (changed(version=True), "never was one"),
        (changed(version=None), "never was one"),
        (changed(results=[{}]), "damaged or was changed"),
        (changed(results=None), "damaged or was changed"),
        (with_broken_histogram(), r"do not add up to its count.*\$\.results\[0\]"),
        (with_short_column(), r"not of one length.*\$\.results\[1\]"),
    ],
)
def test_a_file_that_is_none_is_refused_in_clear_words(data: bytes, problem: str):
    with pytest.raises(BadResults, match=problem) as caught:
        decode_report(data, "old.json")
    assert str(caught.value).startswith("old.json ")


@settings(deadline=None)
@given(st.integers(0, len(DATA) - 2), st.binary(min_size=1, max_size=3))
def test_damage_anywhere_is_refused_or_harmless(place: int, noise: bytes):
    try:
        decode_report(DATA[:place] + noise + DATA[place + len(noise) :], "old.json")
    except BadResults as error:
        assert "old.json" in str(error)


def test_facts_about_the_machine_have_no_names_of_it():
    facts = machine_facts()
    assert isinstance(facts["processors"], int)
    assert facts["processors"] >= 1
    assert set(facts) == {"system", "processor", "processors", "python"}
