"""What follows a good answer is sent at once; everything else goes back to who waits."""

from __future__ import annotations

from typing import Any

from mcpmux.bench.answer import Chain, judge
from mcpmux.bench.operation import Ask
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import raw

GOOD = {"contents": raw([])}
FAILED = {"isError": raw(True)}


def ask(name: str, method: str = "tools/call") -> Ask:
    return Ask(name, Call(method, {"name": raw(name)}, {}))


def chain(*following: Ask) -> tuple[Chain, list[tuple[int, int]]]:
    """A chain of `first` and what follows, and what was counted."""
    counted: list[tuple[int, int]] = []
    rest = iter(following)

    def follow(sent: int, received: int) -> Ask | None:
        found = next(rest, None)
        if found is not None:
            counted.append((sent, received))
        return found

    return Chain(ask("first"), lambda _ask, result: judge(result), follow), counted


def test_a_good_answer_is_counted_and_the_next_ask_sent() -> None:
    one, counted = chain(ask("second"), ask("third"))
    for name in ("second", "third"):
        found: Any = one.advance(GOOD, 7)
        assert (found.operation, one.ask, one.pending) == (name, found, False)
    assert [sent for sent, _ in counted] == [7, 7]
    assert one.advance(GOOD, 7) is None
    assert (one.ask.operation, one.pending, len(counted)) == ("third", False, 2)


def test_a_bad_answer_is_left_to_who_waits() -> None:
    one, counted = chain(ask("second"))
    assert one.advance(FAILED, 7) is None
    assert (one.ask.operation, one.pending, counted) == ("first", False, [])


def test_what_is_no_single_request_is_pending() -> None:
    one, counted = chain(ask("list", "tools/list"))
    assert one.advance(GOOD, 7) is None
    assert (one.ask.operation, one.pending, len(counted)) == ("list", True, 1)


def test_nothing_follows_a_single_ask() -> None:
    one = Chain(ask("first"), lambda _ask, result: judge(result))
    assert one.advance(GOOD, 7) is None
    assert not one.pending
