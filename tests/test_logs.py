"""Texts of strangers in log events neither steer a terminal, nor forge a line, nor show a secret."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from typing import IO, Any, cast

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcpmux.config import Redaction
from mcpmux.logs import configure_logs, redact_logs
from mcpmux.traffic.redaction.redactor import Redactor
from tests.examples import examples

SECRET = "zQ17x7hGk2Lp97hGk2Lp9"
FORGED = "\n2026-01-01T00:00:00Z [info     ] all is well\x1b[2J\u202e"

STYLES = ["console", "terminal", "json"]
SHAPES = {
    "text": lambda text: text,
    "list": lambda text: ["x", text],
    "deep": lambda text: [[[[[text]]]]],
    "mapping": lambda text: {"reason": [text]},
    "key": lambda text: {text: 1},
    "exception": lambda text: ValueError(text),
    "exceptions": lambda text: (OSError(text),),
}


@pytest.fixture(autouse=True)
def _logging_again() -> Iterator[None]:
    logging = structlog.get_config()
    yield
    structlog.configure(**logging)


def said(
    capsys: pytest.CaptureFixture[str], style: str, redactor: Redactor | None = None, **facts: Any
) -> str:
    """Return what one event writes. `style` may also be "terminal"."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.stderr, "isatty", lambda: style == "terminal")
        patch.setenv("NO_COLOR", "1")
        configure_logs("debug", style if style == "json" else "console", redactor)
    structlog.get_logger().warning("it happened", **facts)
    return capsys.readouterr().err


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("style", STYLES)
def test_a_secret_in_an_event_is_taken_out_whatever_holds_it(capsys, style, shape):
    text = said(capsys, style, told=shape(f"Authorization: Bearer {SECRET}"))
    assert SECRET not in text
    assert "[redacted: " in text


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("style", STYLES)
def test_an_event_is_one_line_without_anything_that_steers(capsys, style, shape):
    text = said(capsys, style, told=shape(FORGED))
    assert text.count("\n") == 1
    assert not {"\x1b", "\u202e"} & set(text)
    assert "all is well" in text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50))
@given(st.recursive(st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=5))
def test_any_value_is_shown_on_one_line(capsys, value):
    assert said(capsys, "console", told=value).count("\n") == 1


def test_a_terminal_shows_time_of_day_server_and_reason_first(capsys):
    text = said(capsys, "terminal", state="down", reason="it has gone", upstream="docs", port=None)
    time, rest = text[:8], text[8:]
    assert re.fullmatch(r"\d\d:\d\d:\d\d", time)
    assert rest == "  warning  docs: it happened: it has gone  state='down'\n"


def test_a_traceback_keeps_its_lines_and_only_these(capsys):
    configure_logs("debug", "console")
    try:
        raise ValueError(f"token={SECRET} {FORGED}")
    except ValueError:
        structlog.get_logger().exception("it failed")
    text = capsys.readouterr().err
    assert "Traceback" in text and "\x1b" not in text and SECRET not in text


def test_numbers_and_truths_stay_what_they_are(capsys):
    event = json.loads(said(capsys, "json", number=3, share=0.5, true=True, nothing=None))
    assert [event[key] for key in ("number", "share", "true", "nothing")] == [3, 0.5, True, None]


def test_the_users_own_rules_hold_once_they_are_known(capsys):
    configure_logs("debug", "json")
    redact_logs(Redactor(Redaction(patterns={"acme": "ACME-[0-9]+"})))
    structlog.get_logger().warning("it happened", told="of ACME-123")
    event = json.loads(capsys.readouterr().err)
    assert (event["told"], event["level"]) == ("of [redacted: acme]", "warning")


@pytest.mark.parametrize("style", ["console", "json"])
def test_a_line_is_written_in_one_piece(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Raw(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            written.append(bytes(data))
            return len(data)

    written: list[bytes] = []
    # As Python makes it for standard error.
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(cast(IO[bytes], Raw()), write_through=True))
    configure_logs("debug", style)
    structlog.get_logger().warning("it happened")
    assert [line[-1:] for line in written] == [b"\n"]
