from __future__ import annotations

import pytest

from mcpmux.config import Tracing
from mcpmux.errors import ConfigError
from tests.config.documents import read

SERVER = '[upstreams.docs]\ncommand = "npx"\n'


def tracing(text: str, **environ: str) -> Tracing:
    return read(f"{SERVER}[tracing]\n{text}", environ).tracing


def test_tracing_is_off_unless_it_is_switched_on():
    assert read(SERVER, {}).tracing == Tracing()
    assert Tracing().enabled is False


def test_settings_are_read_and_the_collectors_key_is_not_shown():
    settings = tracing(
        'enabled = true\nendpoint = "https://otel.example.com"\n'
        'headers = { Authorization = "Bearer ${KEY}" }\n'
        'sample = 0.25\ninterval = "5s"',
        KEY="PLANTED",
    )
    assert (settings.enabled, settings.endpoint, settings.sample, settings.interval) == (
        True,
        "https://otel.example.com",
        0.25,
        5.0,
    )
    assert settings.headers["Authorization"].reveal() == "Bearer PLANTED"
    assert "PLANTED" not in repr(settings)


@pytest.mark.parametrize(
    ("written", "share"), [("0", 0.0), ("1", 1.0), ("0.5", 0.5), ('"0.125"', 0.125), ('"${S}"', 0.75)]
)
def test_a_share_is_a_number_from_0_to_1(written: str, share: float):
    assert tracing(f"sample = {written}", S="0.75").sample == share


@pytest.mark.parametrize("written", ["-0.1", "1.5", "nan", "inf", "true", '"half"', '"2"', "[0.5]"])
def test_anything_else_is_no_share(written: str):
    with pytest.raises(ConfigError) as caught:
        tracing(f"sample = {written}")
    assert "tracing.sample: expected a number from 0 to 1" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('endpoint = "otel.example.com:4317"', "tracing.endpoint: expected a URL starting with http://"),
        ('headers = { "X Y" = "v" }', "expected the name of an HTTP header"),
        ("enabled = 1", "tracing.enabled: expected true or false"),
        ("enable = true", "did you mean `enabled`"),
    ],
)
def test_mistakes_are_told_with_their_place(text: str, problem: str):
    with pytest.raises(ConfigError) as caught:
        tracing(text)
    assert problem in str(caught.value), str(caught.value)
