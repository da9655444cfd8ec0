"""One pass over a message finds the same words as one search for each word."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcpmux.config.traffic import Redaction
from mcpmux.traffic.redaction.redactor import Redactor, RuleSet
from mcpmux.traffic.redaction.secret_patterns import MASK, VENDOR_KEY, scan_for

IGNORED = b"-_. \\"
LOWER = bytes(range(256)).lower()
NAMES = ["auth", "pwd", 'otp"', "code=", "@"]
WORDS = [name.encode() for name in NAMES]
scan = scan_for([*NAMES, MASK])

piece = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(WORDS).map(bytes.upper),
    st.binary(max_size=4),
    st.sampled_from([bytes([byte]) for byte in IGNORED + b"authpwd\xe4\xff\n[]^"]),
)


@given(st.lists(piece, max_size=12).map(b"".join))
@example(b"a-U_t.\\ H")
@example(b"\\u")
@example(b"\0")
@example(b'o t\\p"')
@example(b"au\nth")
def test_a_word_is_found_exactly_when_it_is_there(data: bytes):
    folded = data.translate(LOWER, IGNORED)
    matches = [name.encode() in folded for name in NAMES]
    assert sorted(scan(data)) == [number for number, there in enumerate([*matches, is_masked(data)]) if there]


def is_masked(data: bytes) -> bool:
    return b"\\u" in data or b"\0" in data


def test_an_empty_word_is_in_everything():
    assert list(scan_for(["a", ""])(b"b")) == [1]
    assert list(scan_for(["a", ""])(b"")) == [1]


@pytest.mark.parametrize("before", [b"", b"x", b'{"a":"'])
def test_a_vendors_key_is_found_by_its_beginning_and_its_length(before: bytes):
    find = scan_for([VENDOR_KEY])
    assert find(before + b"sk-aB3_-=+/.x")
    assert find(before + b"whsec_ab\\/c\\/def")
    assert not find(before + b"task-list of all, and more of it")
    assert not find(before + b"SK-aB3_-=+/.x")


def test_the_token_of_progress_is_no_secret():
    find = scan_for(["token"])
    assert not find(b'{"progressToken":1}')
    assert find(b'{"progressToken":1,"token":2}')
    assert list(scan_for(["token", VENDOR_KEY])(b"sk-progressToken")) == [1]


secret_like = st.one_of(
    st.sampled_from(
        [b'"password":"hunter22"', b"Bearer abcdefghijkl", b"sk-abcdefghijklmnopqrst", b"pin-1234"]
    ),
    st.sampled_from(
        [
            b"au-",
            b"th",
            b'":"',
            b"gho_",
            b"a" * 16,
            b"a" * 22,
            b"\\u0061",
            b"progressToken",
            b'"x"',
            b"https://",
        ]
    ),
    st.binary(max_size=6),
)


@given(
    st.lists(secret_like, max_size=8).map(b"".join),
    st.sampled_from(
        [
            Redaction(),
            Redaction(keys=("favourite colour",)),
            Redaction(keys=("käse",)),
            Redaction(patterns={"pin": r"pin-\d+"}),
            Redaction(paths=("$.params.x",)),
            Redaction(paths=("params.progressToken", "..access_code", "params[*]")),
            Redaction(keys=("progressToken", "line\nbreak")),
            Redaction(skip=("token", "url-userinfo")),
        ]
    ),
)
def test_what_is_not_looked_at_has_nothing_in_it(text: bytes, rules: Redaction):
    """The rules themselves are asked by having the scan find everything."""
    message = b'{"params":{"x":1,"progressToken":2,"Access_Code":3,"text":"' + text + b'"}}'
    thorough = RuleSet(rules)
    everything = range(len(thorough._hints))
    thorough._scan = lambda _: everything
    assert Redactor(rules).redact("m", message) == thorough.redact("m", message)
