from __future__ import annotations

import math

import pytest
from jsonschema import Draft202012Validator

from mcpmux.config.expansion import Secret
from mcpmux.config.report import InvalidValue
from mcpmux.config.scalars import (
    HTTP_URL,
    Anything,
    Choice,
    Duration,
    EnvironmentValue,
    Flag,
    Size,
    Text,
    Whole,
)

WORD = Text("a word", "[a-z]+")
SECRET = Text(make=Secret)
LEVEL = Choice(("low", "high"))

ACCEPTED = [
    (Flag(), True, True),
    (WORD, "abc", "abc"),
    (SECRET, "abc", Secret("abc")),
    (EnvironmentValue(), 8080, Secret("8080")),
    (EnvironmentValue(), "", Secret("")),
    (HTTP_URL, "http://localhost:8080/mcp?a=b", "http://localhost:8080/mcp?a=b"),
    (HTTP_URL, "https://user:pw@[::1]:1/", "https://user:pw@[::1]:1/"),
    (HTTP_URL, "https://example.com", "https://example.com"),
    (LEVEL, "low", "low"),
    (Whole(1, 10), 1, 1),
    (Whole(1, 10), 10, 10),
    (Whole(1, 10), 5.0, 5),
    (Whole(1, 10), "7", 7),
    (Duration(), 10, 10.0),
    (Duration(), 0.5, 0.5),
    (Duration(), "500ms", 0.5),
    (Duration(), "10s", 10.0),
    (Duration(), "1.5 m", 90.0),
    (Duration(), "1h", 3600.0),
    (Duration(), "30", 30.0),
    (Size(1), 4096, 4096),
    (Size(1), "64MiB", 64 * 2**20),
    (Size(1), "512 KiB", 2**19),
    (Size(1), "1GiB", 2**30),
    (Size(1), "100B", 100),
]
REJECTED = [
    (Flag(), 1),
    (Flag(), "true"),
    (WORD, "ABC"),
    (WORD, 5),
    (WORD, None),
    (Text(), "a\0b"),
    (Text("long", ".{3,}", Secret), "ab"),
    (EnvironmentValue(), True),
    (EnvironmentValue(), 1.5),
    (EnvironmentValue(), None),
    (HTTP_URL, "ftp://example.com"),
    (HTTP_URL, "example.com"),
    (HTTP_URL, "https://"),
    (HTTP_URL, "https:///path"),
    (HTTP_URL, "https://example.com/a b"),
    (HTTP_URL, "https://example.com/#part"),
    (LEVEL, "medium"),
    (LEVEL, ["low"]),
    (Whole(1, 10), 0),
    (Whole(1, 10), 11),
    (Whole(1, 10), 1.5),
    (Whole(1, 10), True),
    (Whole(1, 10), "x"),
    (Duration(), 0),
    (Duration(), -1),
    (Duration(), True),
    (Duration(), "10 days"),
    (Duration(), "-1s"),
    (Duration(), None),
    (Size(1), 0),
    (Size(1), 1.5),
    (Size(1), "64MB"),
    (Size(1024), 1023),
]
# A JSON Schema cannot tell these: ports and brackets in a URL, numbers written as text. (Its patterns can
# tell a last line break, but Python's `$`, with which it is tested here, cannot.)
REJECTED_BY_READING_ONLY = [
    (WORD, "abc\n"),
    (HTTP_URL, "https://example.com:99999/"),
    (HTTP_URL, "https://example.com:0/"),
    (HTTP_URL, "https://[::1/"),
    (HTTP_URL, "https://user@/"),
    (Whole(1, 10), "11"),
    (Duration(), "0s"),
    (Duration(), math.inf),
    (Duration(), math.nan),
    (Size(1024), "1B"),
    (Size(1), math.inf),
    (Anything(), math.nan),
    (Anything(), {"a": [1, -math.inf]}),
]


@pytest.mark.parametrize(("scalar", "value", "expected"), ACCEPTED)
def test_value_that_fits_is_read(scalar, value, expected):
    assert scalar.read(value) == expected
    assert Draft202012Validator(scalar.schema()).is_valid(value)


@pytest.mark.parametrize(("scalar", "value"), REJECTED)
def test_value_that_does_not_fit_is_rejected_by_schema_too(scalar, value):
    with pytest.raises(InvalidValue, match=r"^expected "):
        scalar.read(value)
    assert not Draft202012Validator(scalar.schema()).is_valid(value)


@pytest.mark.parametrize(("scalar", "value"), REJECTED_BY_READING_ONLY)
def test_value_that_only_reading_can_judge_is_rejected(scalar, value):
    with pytest.raises(InvalidValue, match=r"^expected "):
        scalar.read(value)


@pytest.mark.parametrize(
    "scalar", [WORD, SECRET, EnvironmentValue(), HTTP_URL, LEVEL, Whole(1, 10), Duration(), Size(1)]
)
def test_schema_passes_text_that_is_not_expanded_yet(scalar):
    assert Draft202012Validator(scalar.schema()).is_valid("${VALUE}")
