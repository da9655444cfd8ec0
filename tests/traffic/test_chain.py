"""The chain without files: after any change to a log, its first bad record is named."""

from __future__ import annotations

import hashlib
import hmac
import json

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mcpmux.errors import ConfigError
from mcpmux.traffic.audit.chain import START, Broken, KeyNeeded, Link, follow, is_torn, seal

KEY = b"a key of the tests"
KEYS = pytest.mark.parametrize("key", [None, KEY], ids=["no key", "key"])
keys = st.sampled_from([None, KEY])
members = st.dictionaries(st.sampled_from("abcd"), st.text(max_size=5) | st.integers(), min_size=1)


def write(bodies: list[dict[str, object]], key: bytes | None, after: Link = START) -> list[bytes]:
    """Return a log of these bodies, as lines with their newlines."""
    lines = []
    for body in bodies:
        text = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
        line, after = seal([text], after, key)
        lines.append(line)
    return lines


def first_bad(log: bytes, key: bytes | None) -> int | None:
    """Return the index of the first line that does not hold; None when all whole lines do."""
    after = START
    *lines, rest = log.split(b"\n")
    for index, line in enumerate(lines):
        try:
            after = follow(line, after, key)
        except (Broken, ConfigError):
            return index
    return None if is_torn(rest, after) else len(lines)


logs = st.lists(members, min_size=2, max_size=6)


@given(logs, keys)
def test_what_was_written_holds(bodies, key):
    lines = write(bodies, key)
    assert first_bad(b"".join(lines), key) is None
    assert [follow(line[:-1], None, key).seq for line in lines] == list(range(1, len(lines) + 1))
    assert [json.loads(line) | body for line, body in zip(lines, bodies, strict=True)] == [
        json.loads(line) for line in lines
    ]


@KEYS
def test_a_hash_can_be_computed_with_twenty_lines_of_anything(key):
    """The format as the documentation has it, computed without our code."""
    first, second = write([{"a": "ä"}, {"b": 1}], key)
    digests = []
    for line in (first, second):
        sealed, _, rest = line.rpartition(b',"hash":"')
        new = hmac.new(key, sealed, "sha256") if key else hashlib.sha256(sealed)
        assert rest == new.hexdigest().encode() + b'"}\n'
        digests.append(new.hexdigest())
    assert first.startswith(b'{"v":1,"seq":1,"prev":"' + b"0" * 64 + b'","a":')
    assert second.startswith(b'{"v":1,"seq":2,"prev":"' + digests[0].encode() + b'","b":')


@given(logs, keys, st.data())
def test_a_changed_byte_is_found_at_its_record(bodies, key, data):
    lines = write(bodies, key)
    log = b"".join(lines)
    place = data.draw(st.integers(0, len(log) - 2))  # the last newline: see the next test
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != log[place]))
    changed = log[:place] + bytes([byte]) + log[place + 1 :]
    assert first_bad(changed, key) == log[:place].count(b"\n")


@given(logs, keys, st.integers(0, 255))
def test_without_its_newline_the_last_record_is_unfinished(bodies, key, byte):
    """Take it for a record that was not written to its end, as both look the same."""
    assume(byte != 10)
    lines = write(bodies, key)
    assert first_bad(b"".join(lines)[:-1], key) is None


@given(logs, keys, st.data())
def test_a_removed_record_is_found_where_it_is_missing(bodies, key, data):
    lines = write(bodies, key)
    index = data.draw(st.integers(0, len(lines) - 2))
    count = data.draw(st.integers(1, len(lines) - 1 - index))
    del lines[index : index + count]
    assert first_bad(b"".join(lines), key) == index


@given(logs, keys, st.data())
def test_an_inserted_record_is_found(bodies, key, data):
    """One of the log's own, one of another log with the same key, or anything."""
    lines = write(bodies, key)
    index = data.draw(st.integers(0, len(lines)))
    other = write([{"other": 1}, *bodies], key)
    stranger = data.draw(st.sampled_from([*lines, *other, b"\n", b"{}\n", b"x\n", b"\0\n"]))
    lines.insert(index, stranger)
    # A copy of what stands there anyway is the right record, and so is another log's first one at the
    # beginning; the one behind it is then one too many.
    right = (*lines[index + 1 : index + 2], *other[: index == 0])
    bad = index + 1 if stranger in right else index
    assert first_bad(b"".join(lines), key) == bad


@given(logs, keys, st.data())
def test_swapped_records_are_found_at_the_first_of_them(bodies, key, data):
    lines = write(bodies, key)
    first = data.draw(st.integers(0, len(lines) - 2))
    second = data.draw(st.integers(first + 1, len(lines) - 1))
    lines[first], lines[second] = lines[second], lines[first]
    assert first_bad(b"".join(lines), key) == first


@given(logs, keys, st.data())
def test_a_log_cut_anywhere_holds_up_to_the_cut(bodies, key, data):
    log = b"".join(write(bodies, key))
    cut = log[: data.draw(st.integers(0, len(log)))]
    assert first_bad(cut, key) is None
    assert first_bad(cut + b"\0" * 7, key) is None  # where a power cut has left zeros


@given(logs, st.data())
def test_a_record_with_a_new_hash_is_found_behind_it(bodies, data):
    """Without the key a forger can make one record's hash anew, and then has to make all behind it anew."""
    lines = write(bodies, None)
    index = data.draw(st.integers(0, len(lines) - 2))
    after = follow(lines[index - 1][:-1], None, None) if index else START
    (lines[index],) = write([{"forged": 1}], None, after)
    assert first_bad(b"".join(lines), None) == index + 1


@given(logs, st.data())
def test_a_forger_without_the_key_is_found(bodies, data):
    lines = write(bodies, KEY)
    index = data.draw(st.integers(0, len(lines) - 1))
    after = follow(lines[index - 1][:-1], None, KEY) if index else START
    lines[index:] = write(bodies[index:], data.draw(st.sampled_from([None, b"another key"])), after)
    assert first_bad(b"".join(lines), KEY) == index


@given(logs, keys, st.binary(min_size=1, max_size=40).filter(lambda rest: b"\n" not in rest))
@example([{"a": 1}, {"a": 1}], None, b'{"v":1,"seq":4,')
@example([{"a": 1}, {"a": 1}], None, b"x")
def test_what_no_record_begins_with_is_not_taken_for_an_unfinished_one(bodies, key, rest):
    lines = write(bodies, key)
    (next_line,) = write([{"a": 1}], key, follow(lines[-1][:-1], None, key))
    begins = next_line.startswith(rest.rstrip(b"\0"))
    assert first_bad(b"".join(lines) + rest, key) == (None if begins else len(lines))


def line_of(text: str, key: bytes | None = None) -> bytes:
    """Return a line of this text with its right hash."""
    sealed = text.encode()
    new = hmac.new(key, sealed, "sha256") if key else hashlib.sha256(sealed)
    return sealed + b',"hash":"' + new.hexdigest().encode() + b'"}'


ZEROS = "0" * 64
WRONG = {
    "nothing": (b"", "does not end with a hash"),
    "no hash": (b'{"v":1,"seq":1}', "does not end with a hash"),
    "no number": (line_of('{"v":1,"prev":"x"'), "no JSON object with `v`, `seq` and `prev`"),
    "no UTF-8": (line_of("") + b"", "no JSON object"),
    "deep": (line_of('{"v":1,"seq":1,"prev":"0","a":' + "[" * 100_000), "no JSON object"),
    "changed": (
        line_of(f'{{"v":1,"seq":1,"prev":"{ZEROS}","a":1').replace(b'"a":1', b'"a":2'),
        "was changed after it was written: its hash",
    ),
    "too far": (line_of('{"v":1,"seq":3,"prev":"x"'), "number 3, and 1 has to be here: records were removed"),
    "too early": (line_of('{"v":1,"seq":0,"prev":"x"'), "number 0, and 1 has to be here: it was inserted"),
    "of another log": (line_of('{"v":1,"seq":1,"prev":"x"'), "behind the beginning of the log"),
}


@pytest.mark.parametrize(("line", "words"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_line_is_said(line, words):
    with pytest.raises(Broken, match=words):
        follow(line, START, None)


def test_a_replaced_record_is_said_to_be_one_of_two():
    with pytest.raises(Broken, match="not written behind record 4 as it is now: one of the two was replaced"):
        follow(line_of('{"v":1,"seq":5,"prev":"x"'), Link(4, ZEROS), None)


def test_a_chain_with_a_key_needs_it():
    line = line_of(f'{{"v":1,"seq":1,"prev":"{ZEROS}","keyed":true', KEY)
    assert follow(line, START, KEY).seq == 1
    with pytest.raises(KeyNeeded, match="with that key only"):
        follow(line, START, None)
    with pytest.raises(Broken, match="or written with another key"):
        follow(line, START, b"another key")


def test_a_chain_without_a_key_is_none_to_who_has_one():
    with pytest.raises(Broken, match="written without a key, or by somebody who does not have it"):
        follow(line_of(f'{{"v":1,"seq":1,"prev":"{ZEROS}"'), START, KEY)


def test_a_later_version_is_told_from_a_changed_record():
    with pytest.raises(ConfigError, match="version 2; this mcpmux reads version 1"):
        follow(line_of(f'{{"v":2,"seq":1,"prev":"{ZEROS}"'), START, None)


def test_any_record_can_be_the_first_if_none_before_is_known():
    assert follow(line_of('{"v":1,"seq":9,"prev":"x"'), None, None).seq == 9
