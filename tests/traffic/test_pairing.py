from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.traffic.reading import summary as pairing
from mcpmux.traffic.reading.summary import Targets, pair_up
from mcpmux.traffic.record import Record
from tests.traffic.made import Play, record


def seqs(records: list[Record]) -> list[tuple[int, int | None]]:
    return [(first.seq, answer.seq if answer else None) for first, answer in pair_up(records)]


def test_answers_find_their_request_on_their_leg():
    play = Play()
    play.read()
    play.say()
    play.read(answered=False)
    assert seqs(play.records) == [(2, 3), (1, 4), (5, None), (6, None), (7, None)]


def test_an_id_that_is_used_again_gives_the_first_request_up():
    play = Play()
    play.put(id=1, method="ping")
    play.put(id=1, method="ping")
    play.put(id=1, kind="result", direction="out")
    play.put(id="1", kind="result", direction="out")
    assert seqs(play.records) == [(1, None), (2, 3), (4, None)]


MADE = st.builds(
    lambda kind, leg, direction, request_id, run: {
        "kind": kind,
        "leg": leg,
        "direction": direction,
        "id": request_id,
        "run": run,
    },
    st.sampled_from(["request", "result", "error", "notification", "invalid"]),
    st.sampled_from(["client", "upstream"]),
    st.sampled_from(["in", "out"]),
    st.sampled_from([1, 2, "1", None]),
    st.sampled_from(["a", "b"]),
)


@given(st.lists(MADE, max_size=30))
def test_every_message_comes_once(made: list[dict[str, object]]):
    records = [record(seq, **facts) for seq, facts in enumerate(made, 1)]  # type: ignore[arg-type]
    pairs = list(pair_up(records))
    told = [each.seq for first, answer in pairs for each in (first, answer) if each is not None]
    assert sorted(told) == [each.seq for each in records]
    for first, answer in pairs:
        if answer is not None:
            assert (first.run, first.leg, first.id) == (answer.run, answer.leg, answer.id)
            assert first.direction != answer.direction
            assert first.seq < answer.seq


def test_answers_get_the_target_of_their_request():
    play = Play()
    play.read("file:///a.md")
    targets = Targets()
    told = [targets.fill(each).target for each in play.records]
    assert told == ["docs+file:///a.md", "file:///a.md", "file:///a.md", "docs+file:///a.md"]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pairing, "OPEN_LIMIT", 2)
    records = [record(seq, id=seq, target="t") for seq in (1, 2, 3)]
    answer = record(4, id=1, kind="result", direction="out")
    assert seqs([*records, answer]) == [(1, None), (4, None), (2, None), (3, None)]
    targets = Targets()
    for each in records:
        targets.fill(each)
    assert targets.fill(answer).target is None
