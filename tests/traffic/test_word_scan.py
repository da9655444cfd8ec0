"""One pass over a message says what looking for every word by itself would say."""

from hypothesis import example, given
from hypothesis import strategies as st

from mcpmux.config.traffic import Redaction
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.traffic.redaction.secret_patterns import scan_for

IGNORED = b"-_. \\"
LOWER = bytes(range(256)).lower()
NAMES = [b"auth", b"pwd", b'otp"', b"code=", b"@"]
WORDS = [b"sk-", b"gho_", b"AKIA", b"\\u", b"\x00", b"ya29."]
scan = scan_for(NAMES, WORDS, IGNORED)

piece = st.one_of(
    st.sampled_from([*NAMES, *WORDS]),
    st.sampled_from([*NAMES, *WORDS]).map(bytes.upper),
    st.binary(max_size=4),
    st.sampled_from([bytes([byte]) for byte in IGNORED + b"authpwdkAKI\xe4\xff\n[]^"]),
)


@given(st.lists(piece, max_size=12).map(b"".join))
@example(b"a-U_t.\\ H")
@example(b"SK-")
@example(b'o t\\p"')
@example(b"au\nth")
def test_a_word_is_found_exactly_when_it_is_there(data: bytes):
    folded = data.translate(LOWER, IGNORED)
    assert scan(data) is (any(name in folded for name in NAMES) or any(word in data for word in WORDS))


def test_without_words_nothing_is_found():
    assert not scan_for([b"a"], [], IGNORED)(b"b")
    assert scan_for([], [b"a"], IGNORED)(b"ba")


secret_like = st.one_of(
    st.sampled_from(
        [b'"password":"hunter22"', b"Bearer abcdefghijkl", b"sk-abcdefghijklmnopqrst", b"pin-1234"]
    ),
    st.sampled_from(
        [b"au-", b"th", b'":"', b"gho_", b"a" * 16, b"\\u0061", b"progressToken", b'"x"', b"https://"]
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
            Redaction(skip=("token", "url-userinfo")),
        ]
    ),
)
def test_what_is_not_looked_at_has_nothing_in_it(text: bytes, rules: Redaction):
    """The rules themselves are asked by switching the scan off."""
    message = b'{"params":{"x":1,"text":"' + text + b'"}}'
    thorough = Redactor(rules)
    thorough._is_scanned = False
    assert Redactor(rules).redact("m", message) == thorough.redact("m", message)
