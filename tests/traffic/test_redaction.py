"""Which values are secrets and which are not, and the law: a planted secret is nowhere in the output."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpmux.config import Redaction
from mcpmux.traffic.redaction.redactor import TOKEN_LIMIT, TOO_LONG, Redactor
from mcpmux.traffic.redaction.secret_patterns import MARKER
from tests.examples import examples

REDACTOR = Redactor()
OWN = Redactor(
    Redaction(
        keys=("ssn", "Kundennummer", "größe"),
        paths=("params.arguments.pin", "result.content[*].text", "..deep", "result.rows[1]"),
        patterns={"acme key": r"ACME-[0-9]{3}"},
    )
)


def redact(message: Any, method: str | None = None, redactor: Redactor = REDACTOR) -> Any:
    data, _ = redactor.redact(method, json.dumps(message).encode())
    return json.loads(data)


# ── Names ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Authorization", "authorization"),
        ("proxy-authorization", "authorization"),
        ("auth", "authorization"),
        ("Cookie", "cookie"),
        ("Set-Cookie", "cookie"),
        ("password", "password"),
        ("dbPassword", "password"),
        ("pass_word", "password"),
        ("PASSWORD_CONFIRM", "password"),
        ("client_secret", "secret"),
        ("AWS_SECRET_ACCESS_KEY", "api-key"),
        ("token", "token"),
        ("accessToken", "token"),
        ("GITHUB_TOKEN", "token"),
        ("com.example/refresh-token", "token"),
        ("X-Api-Key", "api-key"),
        ("apikey", "api-key"),
        ("privateKey", "private-key"),
        ("Mcp-Session-Id", "token"),
        ("credentials", "secret"),
    ],
)
def test_the_value_beside_a_telling_name_is_replaced_by_what_it_was(name: str, label: str):
    for value in ("hunter2", 123456, ["hunter2"], {"is": "hunter2"}):
        assert redact({"params": {"arguments": {name: value}, "a": 1}}) == {
            "params": {"arguments": {name: f"[redacted: {label}]"}, "a": 1}
        }


@pytest.mark.parametrize(
    "name",
    [
        "progressToken",
        "nextPageToken",
        "maxTokens",
        "tokenizer",
        "author",
        "keyword",
        "passage",
        "PWDX",
        "cursor",
    ],
)
def test_names_that_only_look_like_it_keep_their_values(name: str):
    message = {"params": {"_meta": {name: "abc"}, "x": "a.b"}}
    assert redact(message) == message


def test_nothing_is_replaced_where_nothing_is():
    message = {"params": {"password": None, "token": "", "secret": True}}
    assert redact(message) == message


@pytest.mark.parametrize(
    "params",
    [
        {"headers": [{"name": "Authorization", "value": "Zed hunter2"}]},
        {"headers": [{"value": "hunter2", "key": "X-API-Key"}]},
        {"headers": [["Cookie", "hunter2"]]},
        {"args": ["--token", "hunter2", "--verbose"]},
        {"args": ["--header", "Authorization: Basic hunter2"]},
        {"env": ["DB_PASSWORD=hunter2"]},
        {"_meta": {"com.example/api-key": "hunter2"}},
        {"text": json.dumps({"a": [{"password": "hunter2"}]})},
        {"text": json.dumps({"inner": json.dumps({"token": "hunter2"})})},
        {"text": 'He said {"password": "hunter2", "x": 1} and left'},
        {"text": "curl -u x https://me:hunter2@example.com/"},
    ],
)
def test_secrets_are_found_in_lists_headers_and_text(params: Any):
    cleaned = redact({"jsonrpc": "2.0", "method": "m", "params": params})
    assert "hunter2" not in json.dumps(cleaned)
    assert "[redacted: " in json.dumps(cleaned)


def test_the_schema_of_a_secret_is_kept_and_its_default_is_not():
    schema = {
        "type": "object",
        "properties": {"password": {"type": ["string", "null"], "description": "D", "default": "hunter2"}},
        "required": ["password", "name"],
    }
    cleaned = redact({"result": {"tools": [{"name": "login", "inputSchema": schema}]}}, "tools/list")
    kept = cleaned["result"]["tools"][0]["inputSchema"]
    assert kept["properties"]["password"] == {
        "type": ["string", "null"],
        "description": "D",
        "default": "[redacted: password]",
    }
    assert kept["required"] == ["password", "name"]
    request = {"params": {"message": "m", "requestedSchema": schema}}
    assert redact(request, "elicitation/create")["params"]["requestedSchema"] == kept


def test_what_only_pretends_to_be_a_schema_is_no_place_to_hide():
    arguments = {"inputSchema": {"properties": {"password": {"title": "hunter2"}}}}
    for message in ({"params": {"arguments": arguments}}, {"result": {"tools": [arguments]}}):
        assert "hunter2" not in json.dumps(redact(message, "tools/call"))


def test_answers_to_a_question_are_redacted():
    answer = {"result": {"action": "accept", "content": {"password": "hunter2", "city": "Bonn"}}}
    assert redact(answer, "elicitation/create")["result"]["content"] == {
        "password": "[redacted: password]",
        "city": "Bonn",
    }


def test_the_envelope_keeps_its_members():
    message = {"jsonrpc": "2.0", "id": 7, "method": "x/token", "params": {"a": 1}}
    assert redact(message, redactor=Redactor(Redaction(keys=("id", "params")))) == message


# ── Looks ────────────────────────────────────────────────────────────────────────────────────────

LOOKS = {
    "authorization": ["Authorization: Digest a b c", "use Bearer abc.def-123 here", "basic dXNlcjpwYXNz"],
    "cookie": ["Set-Cookie: sid=abc; Path=/", "cookie: a=b"],
    "password": [
        "password=hunter2",
        "PASSWORD='two words'",
        "dbpasswd: hunter2",
        "Server=db Uid=sa Pwd=hunter2",
        "mysql --password hunter2 -h db",
        "curl -s -u me:hunter2 https://h/",
        "<db:Password a='b'>two words</db:Password>",
    ],
    "secret": [
        "run --client-secret abcdef",
        "client_secret=abcdef",
        "the secret => abcdef",
        "<clientSecret>abc</clientSecret>",
    ],
    "token": ["serve --token abcdef", "access_token: abcdef", "GITHUB_TOKEN=abcdef", "<token>abc<\\/token>"],
    "api-key": ["x --api-key 'abcdef'", "api key: abcdef", "x-api-key=abcdef", "<x-api-key>abc</x-api-key>"],
    "url-userinfo": [
        "see postgres://me:hunter2@db/x",
        "https:\\/\\/hunter2@host/",
        "amqp://me:hun#ter/2?@mq:5672/",
    ],
    "url-token": [
        "https://hooks.slack.com/services/T0/B0/hunter2",
        "https://discord.com/api/webhooks/12/hunter2_x",
        "https://a.webhook.office.com/webhookb2/11@22/x/33",
        "https://h/?sig=abc&x=1",
        "https://h/#code=abc",
        "/cb?X-Amz-Signature=abc",
    ],
    "jwt": ["eyJhbGciOi.eyJzdWIiOi.c2lnbmF0"],
    "private-key": [
        "-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: AES-128\n\nabc\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nabc",
    ],
    "vendor-key": [
        "sk-proj-abcdefghijklmnop",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "AKIAIOSFODNN7EXAMPLE",
        "whsec_=Sn3Q==Ek+476V0ue/tRAZ",
        "xoxb-123456789012-abc",
        "glpat-abcdefghijklmnopqrst",
    ],
}
HARMLESS = [
    "token: string, password: str",
    "bearer authentication is required",
    "risk-assessment-document-of-today",
    "progressToken: 123456",
    "mailto:me@example.com and https://example.com/@scope/pkg",
    "eyJwYWdlIjoyLCJzaXplIjoxMH0",
    "Cookies are small files",
    "call it with <token> and <api-key> in place",
    "login <password> to sign in",
    "<password></password> is empty, <secretary>Ann</secretary> is a person",
    "see https://example.com/?page=2&size=10",
    "from http://127.0.0.1:4873/@scope/pkg",
    "PWD=/home/me OLDPWD=~ pwd",
    "set it by --token or --password, see --token-file",
    "--password string  of the user",
    "curl -u me https://h:80/x",
]


@pytest.mark.parametrize(("label", "text"), [(label, text) for label, all_ in LOOKS.items() for text in all_])
def test_secrets_are_known_by_their_looks(label: str, text: str):
    cleaned, count = REDACTOR.redact_text(text)
    assert count == 1
    assert f"[redacted: {label}]" in cleaned
    assert redact({"error": {"message": text}}) == {"error": {"message": cleaned}}
    assert Redactor(Redaction(skip=(label,))).redact_text(text)[0] == text


@pytest.mark.parametrize("text", HARMLESS)
def test_text_without_secrets_stays_the_same_object(text: str):
    assert REDACTOR.redact_text(text) == (text, 0)
    data = json.dumps({"params": {"text": text}}).encode()
    assert REDACTOR.redact(None, data)[0] is data


# ── The user's rules ─────────────────────────────────────────────────────────────────────────────


def test_a_name_of_the_protocol_is_secret_if_the_user_says_so():
    own = Redactor(Redaction(keys=("progressToken",)))
    assert own.redact(None, b'{"params":{"_meta":{"progressToken":"abc"}}}')[1] == 1
    assert REDACTOR.redact(None, b'{"params":{"_meta":{"progressToken":"abc"}}}')[1] == 0


def test_keys_paths_and_patterns_of_the_user_are_used():
    message = {
        "params": {"arguments": {"pin": 1234, "SSN": "a", "s-s_n": "b", "other": 1, "GRÖSSE": "x"}},
        "result": {"content": [{"text": "a"}, {"text": {"b": 1}}], "rows": [[1], [2], [3]]},
        "x": [{"deep": True, "t": "is ACME-123 it"}],
        "ACME-999": 1,
    }
    assert redact(message, redactor=OWN) == {
        "params": {
            "arguments": {
                "pin": "[redacted: params.arguments.pin]",
                "SSN": "[redacted: ssn]",
                "s-s_n": "[redacted: ssn]",
                "other": 1,
                "GRÖSSE": "x",
            }
        },
        "result": {
            "content": [{"text": "[redacted: result.content(*).text]"}] * 2,
            "rows": [[1], "[redacted: result.rows(1)]", [3]],
        },
        "x": [{"deep": "[redacted: ..deep]", "t": "is [redacted: acme key] it"}],
        "[redacted: acme key]": 1,
    }
    assert OWN.redact_text("kunden-nummer: 4711-0815")[0] == "kunden-nummer: [redacted: Kundennummer]"
    assert redact({"params": {"größe": "x"}}, redactor=OWN) == {"params": {"größe": "[redacted: größe]"}}


def test_paths_are_followed_into_broken_messages():
    for tail in (b"", b"}", b"}}}}", b'}} "'):
        data, count = OWN.redact(None, b'{"params": {"arguments": {"pin": "hunter2"' + tail)
        assert (b"hunter2" in data, count) == (False, 1)


def test_a_pattern_takes_no_time_that_doubles_with_the_text():
    slow = Redactor(Redaction(patterns={"slow": r"(?:a|aa|b)+c"}))
    assert slow.redact_text("ab" * 30_000) == ("ab" * 30_000, 0)


def test_a_pattern_leaves_what_is_no_unicode_beside_its_matches():
    assert OWN.redact_text("\ud800 ACME-123 é") == ("\ud800 [redacted: acme key] é", 1)


def test_new_rules_hold_from_the_next_message_on():
    message = b'{"params":{"ssn":"123"}}'
    redactor = Redactor(Redaction())
    assert redactor.redact(None, message)[1] == 0
    redactor.adopt(Redaction(keys=("ssn",), patterns={"number": "E-[0-9]+"}))
    assert redactor.redact(None, message)[1] == 1
    assert redactor.redact_text("E-17") == ("[redacted: number]", 1)
    assert redactor.clean("E-17") == "[redacted: number]"
    redactor.adopt(Redaction())
    assert redactor.clean("E-17") == "E-17"


# ── Bytes ────────────────────────────────────────────────────────────────────────────────────────


def test_every_other_byte_stays_as_it_was():
    data = b'{ "b":1.50,\t"password" : "x" , "a":[1E2, "\\u00e9\\/"],"a":-0 }'
    assert REDACTOR.redact(None, data) == (data.replace(b'"x"', b'"[redacted: password]"'), 1)


@pytest.mark.parametrize(
    "data",
    [
        b'{"password":"hunter2","password":"ok"}',
        b'{"pass\\u0077ord":"hunter2"}',
        b'{"\\u0074oke\\u006e":"hunter2"}',
        b'{"password":"hunter2',
        b'{"password":["hunter2", {"a": "hunter2',
        b'{"headers":[{"value":"hunter2","name":"cookie"',
        b'{"password":"hunter2"}}}',
        b'{"a":1]{"b":{"password":{"c":"hunter2"}}',
        b"{password: {x: hunter2}}",
        b'{"a":"\\x","token":"\\x hunter2 \\',
        b'{"a": NaN, "password": "hunter2"}',
        b'{"a": "\\ud800", "token": "hunter2"}',
        b'{"a": "\xff", "token": "hunter2"}',
        b'\xef\xbb\xbf{"token": "hunter2"}',
        '{"password":"hunter2"}'.encode("utf-16"),
        b"[" * 5000 + b'{"password": "hunter2"}' + b"]" * 5000,
        b"token = hunter2",
        b'{"text": "{\\"pass\\\\u0077ord\\": \\"hunter2\\"}"}',
    ],
)
def test_odd_and_broken_messages_are_redacted_too(data: bytes):
    cleaned, count = REDACTOR.redact(None, data)
    assert count
    assert b"hunter2" not in cleaned.replace(b"\x00", b"")


def test_work_on_a_hostile_message_is_bounded():
    long = b'{"token":1,"a":[' + b"1," * TOKEN_LIMIT + b"1]}"
    assert REDACTOR.redact(None, long) == (json.dumps(TOO_LONG).encode(), 1)


@pytest.mark.parametrize(
    "piece",
    [
        *("a", "eyJ", "eyJ.", "://a@", "?a", "&code", "password=", "token:\\", "-----BEGIN PRIVATE KEY-----"),
        *(
            "sk-",
            "bearer ",
            "authorization:",
            '"',
            "\\",
            "SG.aaaaaaaaaaaaaaaa",
            "password: '",
            "token ",
            "a-",
            "<password>",
            "<token ",
            "curl ",
            "curl -u a:",
            "://a:b",
            "--token",
            "pwd=",
            "hooks.slack.com/a/",
        ),
    ],
)
def test_no_built_in_pattern_is_slow_on_text_made_for_it(piece: str):
    """A pattern that takes quadratic time would need minutes for this."""
    began = time.perf_counter()
    for shape in REDACTOR.current._shapes:
        shape.replace_in((piece * 400_000)[:400_000])
    assert time.perf_counter() - began < 20


# ── Laws ─────────────────────────────────────────────────────────────────────────────────────────

SECRETS = st.one_of(
    st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOP0123456789", min_size=8, max_size=30).map(
        "zq{}9".format
    )
)
NAMES = st.sampled_from(
    ["password", "X-Api-Key", "access_token", "authorization", "Set-Cookie", "clientSecret"]
)
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
WRAPPINGS = [
    lambda name, secret: {name: secret},
    lambda name, secret: {name: [1, {"x": secret}]},
    lambda name, secret: {name.upper(): {"value": secret}},
    lambda name, secret: {"text": json.dumps({name: secret})},
    lambda name, secret: {"text": json.dumps({"t": json.dumps([{name: secret}])})},
    lambda name, secret: {"message": f"failed: {name}: {secret}"},
    lambda name, secret: {"message": f'got {{"{name}": "{secret}"}}'},
    lambda name, secret: {"xml": f"<a><password>{secret}</password></a>"},
    lambda name, secret: {"headers": [{"name": name, "value": secret}]},
    lambda name, secret: {"url": f"https://u:{secret}@host/"},
    lambda name, secret: {"uri": f"https://host/?a=1&access_token={secret}"},
    lambda name, secret: {"h": f"Authorization: Basic {secret}"},
    lambda name, secret: {f"Bearer {secret}": 1},
    lambda name, secret: {"k": f"-----BEGIN PRIVATE KEY-----\n{secret}"},
    lambda name, secret: {"k": f"sk-abcdefghijklmnop{secret}"},
    lambda name, secret: {"k": f"eyJhbGciOi.eyJ{secret}.{secret}"},
]


@st.composite
def planted(draw: st.DrawFn) -> tuple[str, Any]:
    """Return a secret, and a value with it somewhere in it."""
    secret = draw(SECRETS)
    value: Any = draw(st.sampled_from(WRAPPINGS))(draw(NAMES), secret)
    for _ in range(draw(st.integers(0, 4))):
        others = draw(st.dictionaries(st.text(max_size=8), PLAIN, max_size=2))
        value = draw(st.sampled_from([[value, 1], {**others, "inner": value, "z": 1}]))
    return secret, value


@settings(max_examples=examples(300), deadline=None)
@given(planted(), st.sampled_from([None, "tools/call", "tools/list", "elicitation/create"]), st.booleans())
def test_a_planted_secret_is_nowhere_left(plant: tuple[str, Any], method: str | None, escaped: bool):
    secret, value = plant
    message = {"jsonrpc": "2.0", "id": 1, "result": value}
    data = json.dumps(message, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    cleaned, count = REDACTOR.redact(method, data)
    assert secret.encode() not in cleaned
    assert count
    json.loads(cleaned)
    assert REDACTOR.redact(method, cleaned) == (cleaned, 0)


@pytest.mark.parametrize("end", ["", "}", "\xff", "<", "</", "</pass", "<}"])
def test_an_element_that_is_cut_behind_its_value_loses_it(end: str):
    assert "zq1234" not in REDACTOR.redact_text(f"<a><password>zq1234{end}")[0]


@settings(max_examples=examples(200), deadline=None)
@given(planted(), st.floats(0, 1), st.sampled_from([b"", b"}", b"]", b'"', b"\xff"]))
def test_a_planted_secret_is_not_in_a_cut_message(plant: tuple[str, Any], part: float, end: bytes):
    secret, value = plant
    data = json.dumps({"jsonrpc": "2.0", "id": 1, "result": value}).encode()
    data = data[: int(len(data) * part)] + end
    assert secret.encode() not in REDACTOR.redact("tools/call", data)[0]


@settings(max_examples=examples(200), deadline=None)
@given(planted(), st.lists(PLAIN, max_size=3), st.integers(0, 3), st.sampled_from([b"\t", b"", b"-"]))
def test_one_look_at_many_messages_overlooks_no_planted_secret(
    plant: tuple[str, Any], others: list[Any], place: int, between: bytes
):
    values = [*others[:place], plant[1], *others[place:]]
    messages = [json.dumps({"jsonrpc": "2.0", "id": 1, "result": value}).encode() for value in values]
    assert not REDACTOR.current.leaves_unchanged(messages, between.join(messages))
    assert not OWN.current.leaves_unchanged(messages, between.join(messages))


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.one_of(st.binary(max_size=30), st.sampled_from([b'{"a":{}}', b'{"u":"a://me:pass'])), max_size=4
    )
)
def test_what_one_look_at_many_messages_spares_stays_as_it_is(messages: list[bytes]):
    if REDACTOR.current.leaves_unchanged(messages, b"\t".join(messages)):
        assert [REDACTOR.redact(None, message) for message in messages] == [
            (message, 0) for message in messages
        ]


def test_one_search_of_many_messages_is_enough_without_secrets():
    messages = [b'{"result":{"text":"All work and no play"}}'] * 3
    assert REDACTOR.current.leaves_unchanged(messages, b"\t".join(messages))
    assert not OWN.current.leaves_unchanged(messages, b"\t".join(messages))  # a pattern may be anything


@pytest.mark.parametrize("end", [b"", b"}", b'"', b"\xff"])
@pytest.mark.parametrize("joint", [b"://", rb":\/\/"])
def test_a_url_that_is_cut_in_its_password_loses_it(joint: bytes, end: bytes):
    data = b'{"result": {"url": "https' + joint
    assert REDACTOR.redact(None, data + b"me:hunter2" + end) == (data + b"[redacted: url-userinfo]", 1)
    assert Redactor(Redaction(skip=("url-userinfo",))).redact(None, data + b"me:hunter2" + end)[1] == 0
    path = data + b"host/me:hunter2" + end
    assert REDACTOR.redact(None, path) == (path, 0)


@settings(max_examples=examples(300), deadline=None)
@given(PLAIN)
def test_what_was_not_replaced_is_what_it_was(value: Any):
    data = json.dumps({"a": value}, allow_nan=True).encode()
    cleaned, count = OWN.redact(None, data)
    if count == 0:
        assert cleaned is data
    assert json.dumps(json.loads(cleaned)).count("[redacted: ") >= count


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200), st.text(max_size=200))
def test_nothing_makes_it_fail(data: bytes, text: str):
    for redactor in (REDACTOR, OWN):
        for piece in (
            data,
            b'{"password": ' + data,
            b'["token","' + data + b'"]',
            text.encode("utf-8", "surrogatepass"),
        ):
            redactor.redact(None, piece)
        redactor.redact_text(text)


def test_base64_is_not_looked_into():
    """The limit that the module names; `Basic` credentials and JWTs are the exceptions."""
    blob = base64.b64encode(b"password=hunter2 " * 200).decode()
    message = {"result": {"contents": [{"uri": "x", "blob": blob}]}}
    assert redact(message) == message


def test_a_marker_is_not_replaced_again():
    assert MARKER.fullmatch("[redacted: password]")
    assert redact({"password": "[redacted: token]"}) == {"password": "[redacted: token]"}
