"""The outcome of a request, whether a read brought what it always did, and what is asked next."""

from __future__ import annotations

from typing import Any

import pytest

from mcpmux.bench import answer
from mcpmux.bench.answer import WRONG, Chain, Checker, describe, size_of
from mcpmux.bench.operation import Ask
from mcpmux.channels.http_peer import HttpStatusError, SessionExpired
from mcpmux.errors import ConnectFailed, McpmuxError, RemoteProtocolError, RpcError, TransportClosed
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import decode_any, decode_fields, raw
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.outcome import OK, TOOL_ERROR


def fields(**members: Any) -> Fields:
    return {name: raw(value) for name, value in members.items()}


def ask(uri: str | None = "a:1") -> Ask:
    return Ask("read", Call("resources/read", {}, {}), uri)


def text(words: str) -> Fields:
    return fields(contents=[{"uri": "a:1", "text": words}])


@pytest.mark.parametrize("mode", ["hash", "length"])
def test_later_answers_have_to_equal_the_first_one(mode: str) -> None:
    checker = Checker(mode)
    answers = [(words, checker.judge(ask(), text(words))) for words in ("abc", "abc", "abd", "ab", "abc")]
    same_length = OK if mode == "length" else WRONG
    assert answers == [("abc", OK), ("abc", OK), ("abd", same_length), ("ab", WRONG), ("abc", OK)]


def test_each_subject_has_its_own_answer() -> None:
    checker = Checker("hash")
    assert checker.judge(ask("a:1"), text("one")) == OK
    assert checker.judge(ask("a:2"), text("two")) == OK
    assert checker.judge(ask("a:1"), text("two")) == WRONG


def test_a_read_without_contents_is_wrong_and_anything_else_is_not_compared() -> None:
    checker = Checker("hash")
    assert checker.judge(ask(), fields()) == WRONG
    assert checker.judge(ask(None), fields(content=[])) == OK
    assert checker.judge(ask_for("t"), fields(isError=True)) == TOOL_ERROR


def test_what_is_remembered_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "MOST_KNOWN", 2)
    checker = Checker("hash")
    for uri in ("a:1", "a:2", "a:3"):
        assert checker.judge(ask(uri), text("one")) == OK
    assert checker.judge(ask("a:3"), text("two")) == OK
    assert checker.judge(ask("a:2"), text("two")) == WRONG


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RpcError(-32602, "no"), "rpc -32602"),
        (HttpStatusError(503, b""), "http 503"),
        (SessionExpired("gone"), "session expired"),
        (RemoteProtocolError("what"), "makes no sense"),
        (ConnectFailed("nobody"), "not reachable"),
        (TransportClosed("over"), "connection lost"),
    ],
)
def test_errors_are_counted_under_short_names(error: McpmuxError, kind: str) -> None:
    assert describe(error) == kind


@pytest.mark.parametrize("text", [b"{}", b'{"a":1}', b'{"a":1,"bc":[1,2]}'])
def test_sizes_are_those_of_the_json(text: bytes) -> None:
    assert abs(size_of(decode_fields(raw_of(text))) - len(text)) <= 1


def raw_of(data: bytes) -> Any:
    return raw(decode_any(data))


GOOD = {"contents": raw([])}
FAILED = {"isError": raw(True)}


def ask_for(name: str, method: str = "tools/call") -> Ask:
    return Ask(name, Call(method, {"name": raw(name)}, {}))


def chain(*following: Ask) -> tuple[Chain, list[tuple[int, int]]]:
    """Return a chain of `first` and the asks after it, and the counts of its answers."""
    counted: list[tuple[int, int]] = []
    rest = iter(following)

    def follow(sent: int, received: int) -> Ask | None:
        next_ask = next(rest, None)
        if next_ask is not None:
            counted.append((sent, received))
        return next_ask

    return Chain(ask_for("first"), Checker(None).judge, follow), counted


def test_a_good_answer_is_counted_and_the_next_ask_sent() -> None:
    asks, counted = chain(ask_for("second"), ask_for("third"))
    for name in ("second", "third"):
        following: Any = asks.advance(GOOD, 7)
        assert (following.operation, asks.ask, asks.pending) == (name, following, False)
    assert [sent for sent, _ in counted] == [7, 7]
    assert asks.advance(GOOD, 7) is None
    assert (asks.ask.operation, asks.pending, len(counted)) == ("third", False, 2)


def test_a_bad_answer_is_left_to_who_waits() -> None:
    asks, counted = chain(ask_for("second"))
    assert asks.advance(FAILED, 7) is None
    assert (asks.ask.operation, asks.pending, counted) == ("first", False, [])


def test_what_is_no_single_request_is_pending() -> None:
    asks, counted = chain(ask_for("list", "tools/list"))
    assert asks.advance(GOOD, 7) is None
    assert (asks.ask.operation, asks.pending, len(counted)) == ("list", True, 1)


def test_nothing_follows_a_single_ask() -> None:
    asks = Chain(ask_for("first"), Checker(None).judge)
    assert asks.advance(GOOD, 7) is None
    assert not asks.pending
