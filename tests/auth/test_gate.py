"""The gate: every kind of good token is admitted, and every kind of bad one."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
from contextlib import suppress
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcpmux.auth.bearer import hash_token
from mcpmux.auth.discovery import OwnMetadata
from mcpmux.auth.gate import CACHE_SECONDS, Gate
from mcpmux.auth.jwt import FRESH_SECONDS, RETRY_SECONDS, STALE_SECONDS, fits, read_key_set
from mcpmux.config import Auth, Issuer, StaticToken
from mcpmux.errors import RemoteProtocolError
from mcpmux.protocol.principal import Principal, Turned
from tests.auth.made import (
    EC,
    ED,
    ISSUER,
    KEYS_URL,
    NOW,
    RESOURCE,
    RSA,
    RSA_NEW,
    STRANGE,
    Clock,
    Issuing,
    bearer,
    claims,
    make_gate,
    public,
    secret_key,
    sign,
)
from tests.examples import examples

METADATA = "https://mux.example.com/.well-known/oauth-protected-resource/mcp"
ALICE = "mcpmux_0123456789abcdefghijklmnopqrstuvwxyz"


async def turned(gate: Gate, token: str | None, holder: str = "") -> Turned:
    with pytest.raises(Turned) as raised:
        await gate.admit(bearer(token) if token is not None else {}, holder)
    return raised.value


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(RSA, "RS256"), (RSA, "RS512"), (RSA, "PS384"), (EC, "ES256"), (ED, "EdDSA"), (ED, "Ed25519")],
)
async def test_a_good_token_names_its_principal(key: Any, algorithm: str):
    admission = await make_gate(Issuing()).admit(bearer(sign(claims(), key, algorithm)), "")
    assert admission.principal == Principal("corp:alice", frozenset({"read", "call"}))
    assert admission.expires == NOW + 600 + 30


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": [RESOURCE, "https://other.example.com"]},
        {"aud": RESOURCE + "/"},
        {"exp": int(NOW) - 29},
        {"nbf": int(NOW) + 29},
        {"scope": None, "scp": ["read", "call"]},
        {"scope": None, "scp": "read call"},
        {"unknown": {"deep": [1, None]}},
    ],
)
async def test_tokens_may_differ_in_these(changes: dict[str, Any]):
    admission = await make_gate(Issuing()).admit(bearer(sign(claims(**changes))), "")
    assert admission.principal == Principal("corp:alice", frozenset({"read", "call"}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": int(NOW) - 31}, "expired"),
        ({"exp": None}, "'exp'"),
        ({"exp": "never"}, "'exp'"),
        ({"exp": True}, "'exp'"),
        ({"exp": math.inf}, "says nothing"),
        ({"exp": math.nan}, "says nothing"),
        ({"nbf": int(NOW) + 31}, "'nbf'"),
        ({"iat": int(NOW) + 31}, "'iat'"),
        ({"aud": "https://other.example.com/mcp"}, "'aud'"),
        ({"aud": "https://mux.example.com"}, "'aud'"),
        ({"aud": []}, "'aud'"),
        ({"aud": None}, "'aud'"),
        ({"aud": {"x": RESOURCE}}, "'aud'"),
        ({"aud": [RESOURCE, 1]}, "'aud'"),
        ({"iss": "https://evil.example.com"}, "issuer"),
        ({"iss": ISSUER + "/"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"iss": [ISSUER]}, "issuer"),
        ({"sub": None}, "names nobody"),
        ({"sub": ""}, "names nobody"),
        ({"sub": 7}, "'sub'"),
        ({"sub": "a\x00b"}, "names nobody"),
        ({"sub": "x" * 300}, "names nobody"),
        ({"scope": {"read": True}}, "scopes"),
        ({"scope": None, "scp": [1]}, "scopes"),
    ],
)
async def test_a_token_that_says_something_wrong_is_refused(changes: dict[str, Any], reason: str):
    refusal = await turned(make_gate(Issuing()), sign(claims(**changes)))
    assert refusal.status == 401
    assert reason in str(refusal)
    assert dict(refusal.fields)["WWW-Authenticate"].startswith('Bearer error="invalid_token", ')


@pytest.mark.parametrize("kind", ["logout+jwt", "dpop+jwt", "application/logout+jwt"])
async def test_a_token_of_another_type_is_no_access_token(kind: object):
    assert "type" in str(await turned(make_gate(Issuing()), sign(claims(), typ=kind)))


def unsigned(header: Any, said: Any, signature: str = "") -> str:
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, said)
    ]
    return ".".join([*parts, signature])


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", None, 0, ["RS256"], "HS256", "dir", "RS1"])
async def test_nothing_but_public_signatures_is_accepted(algorithm: object):
    """RFC 8725, sections 2.1 and 3.1."""
    for signature in ("", "AAAA"):
        refusal = await turned(
            make_gate(Issuing()), unsigned({"alg": algorithm, "kid": "rsa-1"}, claims(), signature)
        )
        assert refusal.status == 401
        assert "algorithm" in str(refusal)


@pytest.mark.parametrize("material", ["pem", "der", "jwks", "modulus"])
async def test_a_public_key_is_no_shared_secret(material: str):
    """The confusion of RFC 8725, section 2.1: HS256 with the text of the RSA key as the secret."""
    data = {
        "pem": RSA.as_pem(private=False),
        "der": RSA.as_der(private=False),
        "jwks": public(RSA),
        "modulus": str(RSA.as_dict(private=False)["n"]).encode(),
    }[material]
    head = unsigned({"alg": "HS256", "kid": "rsa-1", "typ": "JWT"}, claims()).removesuffix(".")
    tag = hmac.new(data, head.encode(), hashlib.sha256).digest()
    token = f"{head}.{base64.urlsafe_b64encode(tag).rstrip(b'=').decode()}"
    assert "algorithm" in str(await turned(make_gate(Issuing()), token))


async def test_a_symmetric_key_in_a_key_set_verifies_no_token():
    issuing = Issuing()
    secret = secret_key(b"0123456789abcdef0123456789abcdef", "oct-1")
    issuing.documents[KEYS_URL] = json.dumps(
        {"keys": [secret.as_dict(), RSA.as_dict(private=False)]}
    ).encode()
    gate = make_gate(issuing)
    assert (await turned(gate, sign(claims(), secret, "HS256"))).status == 401
    assert (await gate.admit(bearer(sign(claims())), "")).principal.name == "corp:alice"


async def test_algorithms_can_be_narrowed_and_a_key_goes_with_one_kind():
    gate = make_gate(Issuing(), issuer={"algorithms": ("ES256",)})
    assert "algorithm" in str(await turned(gate, sign(claims())))
    assert (await gate.admit(bearer(sign(claims(), EC, "ES256")), "")).principal
    token = sign(claims(), EC, "ES256", kid="rsa-1")
    assert "does not have" in str(await turned(make_gate(Issuing()), token))


@pytest.mark.parametrize(
    "token",
    [
        sign(claims(), STRANGE),
        sign(claims())[:-4] + "AAAA",
        sign(claims(sub="mallory")).rpartition(".")[0] + "." + sign(claims()).rpartition(".")[2],
        sign(claims(), STRANGE, jwk=STRANGE.as_dict(private=False)),
        sign(claims(), STRANGE, jku="https://evil.example.com/keys"),
        sign(["no", "object"]),
    ],
)
async def test_a_forged_token_is_refused(token: str):
    assert (await turned(make_gate(Issuing()), token)).status == 401


async def is_let_in(token: str) -> bool:
    try:
        await make_gate(Issuing()).admit(bearer(token), "")
    except Turned:
        return False
    return True


async def test_critical_headers_that_nobody_knows_are_refused():
    """RFC 7515, section 4.1.11."""
    for more, accepted in (
        ({}, True),
        ({"crit": ["exp"], "exp": 1}, False),
        ({"crit": ["b64"], "b64": False}, False),
    ):
        signed = unsigned({"alg": "RS256", "kid": "rsa-1"} | more, claims()).removesuffix(".")
        assert RSA.private_key is not None
        signature = RSA.private_key.sign(signed.encode(), PKCS1v15(), SHA256())
        token = f"{signed}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"
        assert await is_let_in(token) is accepted


async def test_weak_keys_are_not_used():
    numbers = generate_private_key(65537, 1024).public_key().public_numbers()
    entry = {"kty": "RSA", "kid": "weak", "n": _number(numbers.n), "e": _number(numbers.e)}
    issuing = Issuing()
    issuing.documents[KEYS_URL] = json.dumps({"keys": [entry]}).encode()
    assert (await turned(make_gate(issuing), sign(claims(), kid="weak"))).status == 503


def _number(value: int) -> str:
    return (
        base64.urlsafe_b64encode(value.to_bytes((value.bit_length() + 7) // 8, "big")).rstrip(b"=").decode()
    )


@pytest.mark.parametrize("token", [None, "", "x", "a.b.c", "a.b", "a.b.c.d", "..", "x" * 40_000])
async def test_nothing_and_garbage_hear_where_to_get_a_token(token: str | None):
    gate = make_gate(Issuing(), required_scopes=("read",))
    refusal = await turned(gate, token)
    assert refusal.status == 401
    value = dict(refusal.fields)["WWW-Authenticate"]
    assert value.endswith(f'scope="read", resource_metadata="{METADATA}"')
    assert ("invalid_token" in value) is (token is not None)


async def test_a_token_without_the_required_scopes_hears_of_all_of_them():
    """ "Servers SHOULD include all scopes required for the current operation in a single challenge"."""
    gate = make_gate(Issuing(), required_scopes=("read", "write"))
    refusal = await turned(gate, sign(claims(scope="read")))
    assert refusal.status == 403
    value = dict(refusal.fields)["WWW-Authenticate"]
    assert 'error="insufficient_scope"' in value
    assert 'scope="read write"' in value
    assert f'resource_metadata="{METADATA}"' in value


def test_a_method_may_need_more_scopes():
    gate = make_gate(
        Issuing(), required_scopes=("base",), method_scopes={"tools/*": ("t",), "tools/call": ("c",)}
    )
    some = Principal("p", frozenset({"base", "t"}))
    assert gate.scopes_missing("resources/read", some) is None
    assert gate.scopes_missing("tools/list", some) is None
    refusal = gate.scopes_missing("tools/call", some)
    assert refusal is not None
    assert refusal.status == 403
    assert 'scope="base c t"' in dict(refusal.fields)["WWW-Authenticate"]


@pytest.mark.parametrize("own", ["/mcp", "/mcp/", "/", "/a/mcp"])
@pytest.mark.parametrize("public", ["", "/", "/mcp", "/mcp/", "/api/mcp", "/tools", "/a/mcp"])
def test_each_document_is_where_its_url_says(public: str, own: str):
    """RFC 9728, section 3.1: the suffix stands between the host and the path; 3.3: `resource` is the URL."""
    resource = f"https://mux.example.com{public}"
    metadata = OwnMetadata(Auth(issuers={"corp": Issuer(issuer=ISSUER)}, resource=resource), "mux")
    bases = {"/sse": "/sse", own.rstrip("/"): own}
    places = {f"{base}/some": (path, "some") for base, path in bases.items()}
    places |= {path: (path, "") for path in bases.values()}
    assert metadata.url_of(own, own, "") == resource
    assert metadata.url_of(own, own, "some") == f"{resource.rstrip('/')}/some"
    for place in places.values():
        url = metadata.url_of(own, *place)
        there = metadata.metadata_url(url).removeprefix("https://mux.example.com")
        documents = [places[path] for path in metadata.paths_asked(there, own) if path in places]
        assert metadata.url_of(own, *documents[0]) == url
        assert json.loads(metadata.document_of(url))["resource"] == url


def test_a_path_that_a_proxy_adds_stands_before_the_other_endpoint_too():
    for path, sse in (("/mcp", "/sse"), ("/api/mcp", "/api/sse"), ("/tools", "/tools")):
        resource = f"https://mux.example.com{path}"
        metadata = OwnMetadata(Auth(issuers={"corp": Issuer(issuer=ISSUER)}, resource=resource), "mux")
        assert metadata.url_of("/mcp", "/sse", "") == f"https://mux.example.com{sse}"


async def test_a_static_token_is_known_by_its_hash():
    tokens = {"alice": StaticToken(sha256=hash_token(ALICE), scopes=("read",))}
    gate = make_gate(tokens=tokens)
    assert (await gate.admit(bearer(ALICE), "")).principal == Principal("alice", frozenset({"read"}))
    refusal = await turned(gate, ALICE + "x")
    assert refusal.status == 401
    assert "resource_metadata" not in dict(refusal.fields)["WWW-Authenticate"]
    assert ALICE not in repr(gate) + str(refusal) + repr(tokens)


async def test_static_tokens_and_issuers_stand_side_by_side():
    gate = make_gate(Issuing(), tokens={"alice": StaticToken(sha256=hash_token(ALICE))})
    assert (await gate.admit(bearer(ALICE), "")).principal.name == "alice"
    assert (await gate.admit(bearer(sign(claims())), "")).principal.name == "corp:alice"


async def test_a_certificate_is_no_token_unless_it_is_said():
    assert (await turned(make_gate(Issuing()), None, "dns:host")).status == 401
    gate = make_gate(Issuing(), certificates=True)
    assert (await gate.admit({}, "dns:host")).principal.name == "cert:dns:host"
    assert (await gate.admit(bearer(sign(claims())), "dns:host")).principal.name == "corp:alice"
    assert (await turned(gate, "bad", "dns:host")).status == 401
    assert (await turned(gate, None, "")).status == 401


async def test_a_judged_token_costs_no_second_judgement_until_it_expires(autojump_clock):
    issuing, clock = Issuing(), Clock()
    gate = make_gate(issuing, clock)
    token = sign(claims(exp=int(NOW) + 100))
    first = await gate.admit(bearer(token), "")
    issuing.documents.clear()
    await trio.sleep(STALE_SECONDS + 1)  # of the keys: a request for one would get none now
    assert await gate.admit(bearer(token), "") is first
    clock.now += 129
    assert await gate.admit(bearer(token), "") is first
    assert gate.seconds_left(first) == 1
    clock.now += 1
    assert (await turned(gate, token)).status in (401, 503)
    assert gate.seconds_left(first) == 0


async def test_a_token_is_known_from_its_judgement_until_it_expires():
    clock = Clock()
    gate = make_gate(Issuing(), clock)
    token = sign(claims(exp=int(NOW) + 100))
    assert gate.known(bearer(token)) is None
    admission = await gate.admit(bearer(token), "")
    assert gate.known(bearer(token)) is admission
    for other in ({}, {"authorization": token}, {"authorization": f"Basic {token}"}, bearer(token + "x")):
        assert gate.known(other) is None
    clock.now = admission.expires
    assert gate.known(bearer(token)) is None


async def test_a_long_lived_token_is_judged_again_now_and_then(autojump_clock):
    issuing, clock = Issuing(), Clock()
    gate = make_gate(issuing, clock)
    token = sign(claims(exp=int(NOW) + 10**6))
    await gate.admit(bearer(token), "")
    issuing.publish(RSA_NEW)  # the key was taken back
    await trio.sleep(FRESH_SECONDS + 1)
    clock.now += CACHE_SECONDS
    assert (await turned(gate, token)).status == 401


@pytest.mark.interpreted
async def test_the_memory_for_judged_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mcpmux.auth.gate.CACHE_LIMIT", 2)
    tokens = [f"{number}" * 40 for number in range(5)]
    gate = make_gate(
        tokens={f"n{number}": StaticToken(sha256=hash_token(token)) for number, token in enumerate(tokens)}
    )
    for token in tokens * 2:
        await gate.admit(bearer(token), "")
    assert len(gate._judged) == 2


# Keys


async def test_a_new_key_is_fetched_when_it_is_met(autojump_clock):
    issuing = Issuing(RSA)
    gate = make_gate(issuing)
    assert (await gate.admit(bearer(sign(claims())), "")).principal
    issuing.publish(RSA_NEW)
    await trio.sleep(RETRY_SECONDS)
    assert (await gate.admit(bearer(sign(claims(), RSA_NEW)), "")).principal
    assert len(issuing.asked) == 2
    old = sign(claims(sub="other"), RSA)
    assert "does not have" in str(await turned(gate, old))


async def test_invented_key_names_make_no_traffic(autojump_clock):
    issuing = Issuing()
    gate = make_gate(issuing)
    for number in range(50):
        assert (await turned(gate, sign(claims(), STRANGE, kid=f"invented-{number}"))).status == 401
        await trio.sleep(1)
    assert len(issuing.asked) == 2  # at first, and once more after RETRY_SECONDS


async def test_many_clients_at_once_fetch_keys_once(autojump_clock):
    issuing = Issuing(seconds=5)
    gate = make_gate(issuing)
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(gate.admit, bearer(sign(claims(sub=f"s{number}"))), "")
    assert len(issuing.asked) == 1


async def test_a_client_that_leaves_does_not_stop_the_fetch_of_keys(autojump_clock):
    gate = make_gate(Issuing(seconds=5))
    with trio.move_on_after(1):
        await gate.admit(bearer(sign(claims())), "")
    assert (await gate.admit(bearer(sign(claims())), "")).principal


async def test_keys_outlive_their_issuer_for_a_day(autojump_clock):
    issuing, clock = Issuing(), Clock()
    gate = make_gate(issuing, clock)
    assert (await gate.admit(bearer(sign(claims())), "")).principal
    issuing.documents.clear()
    await trio.sleep(STALE_SECONDS - 10)
    assert (await gate.admit(bearer(sign(claims(sub="later"))), "")).principal
    await trio.sleep(20)
    refusal = await turned(gate, sign(claims(sub="too late")))
    assert refusal.status == 503
    assert dict(refusal.fields) == {"Retry-After": "30"}


async def test_an_issuer_that_hangs_is_not_waited_for_forever(autojump_clock):
    gate = make_gate(Issuing(seconds=math.inf))
    with trio.fail_after(60):
        assert (await turned(gate, sign(claims()))).status == 503
        began = trio.current_time()
        assert (await turned(gate, sign(claims()))).status == 503
        assert trio.current_time() - began < 1


OAUTH = "https://login.example.com/.well-known/oauth-authorization-server"
OPENID = "https://login.example.com/.well-known/openid-configuration"


@pytest.mark.parametrize("place", [OAUTH, OPENID])
async def test_the_keys_are_where_the_metadata_says(place: str):
    issuing = Issuing()
    issuing.documents[place] = json.dumps({"issuer": ISSUER, "jwks_uri": KEYS_URL}).encode()
    gate = make_gate(issuing, issuer={"jwks_url": None})
    assert (await gate.admit(bearer(sign(claims())), "")).principal
    assert issuing.asked[-1] == KEYS_URL


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://honest.example.com", "jwks_uri": KEYS_URL},
        {"issuer": ISSUER, "jwks_uri": "http://login.example.com/keys"},
        {"issuer": ISSUER, "jwks_uri": "file:///etc/passwd"},
        {"issuer": ISSUER, "jwks_uri": "http://169.254.169.254/latest"},
        {"issuer": ISSUER, "jwks_uri": 7},
        {"issuer": ISSUER},
        [],
    ],
)
async def test_metadata_of_somebody_else_or_a_bad_key_url_is_not_believed(document: Any):
    """RFC 8414 section 3.3: the issuer in the document must be the one that was asked."""
    issuing = Issuing()
    issuing.documents[OAUTH] = json.dumps(document).encode()
    gate = make_gate(issuing, issuer={"jwks_url": None})
    assert (await turned(gate, sign(claims()))).status == 503
    assert issuing.asked == [OAUTH, OPENID]


# Bytes

GATE_TOKEN = sign(claims())


@settings(deadline=None, max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(st.one_of(st.text(max_size=300), st.text("AaZz09-_.=e", max_size=200)))
def test_any_text_is_let_in_or_turned_away(text: str):
    _never_breaks(text)


@settings(deadline=None, max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_damage_to_a_token_turns_it_away(data: Any):
    place = data.draw(st.integers(0, len(GATE_TOKEN) - 1))
    piece = data.draw(st.text("AaZz09-_.", max_size=3))
    cut = data.draw(st.integers(0, 3))
    _never_breaks(GATE_TOKEN[:place] + piece + GATE_TOKEN[place + cut :])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
HEADERS = st.dictionaries(
    st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk", "x5c", "zip", "cty"]), JSON
)
CLAIMS = st.dictionaries(
    st.sampled_from(["iss", "aud", "exp", "nbf", "iat", "sub", "scope", "scp", "jti"]), JSON
)


@settings(deadline=None, max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(CLAIMS)
def test_whatever_a_trusted_issuer_signs_breaks_nothing(changes: dict[str, Any]):
    changes = {key: value for key, value in changes.items() if key != "iss"}
    _never_breaks(sign(claims() | changes))


@settings(deadline=None, max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(HEADERS, JSON)
def test_whatever_a_stranger_writes_breaks_nothing(header: dict[str, Any], said: Any):
    header = {"alg": "RS256"} | header
    assert not _never_breaks(unsigned(header, said, "AAAA"))
    assert not _never_breaks(unsigned(header, claims(), "AAAA"))


def _never_breaks(token: str) -> bool:
    """Return whether a token was accepted, which only signed ones may be."""

    async def main() -> bool:
        try:
            admission = await make_gate(Issuing()).admit(bearer(token), "")
        except Turned as refusal:
            assert refusal.status in (401, 403, 503)
            return False
        assert admission.principal.name.startswith("corp:")
        return True

    return trio.run(main)


@given(st.one_of(st.binary(max_size=200), JSON.map(lambda value: json.dumps({"keys": value}).encode())))
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_any_key_set_is_read_or_refused(data: bytes):
    with suppress(RemoteProtocolError):
        read_key_set(data)


@given(
    st.dictionaries(
        st.sampled_from(["kty", "n", "e", "crv", "x", "y", "kid", "alg", "use", "key_ops", "d"]), JSON
    )
)
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_damaged_keys_beside_a_good_one_do_no_harm(damage: dict[str, Any]):
    good = RSA.as_dict(private=False)
    keys = read_key_set(
        json.dumps({"keys": [good | damage, good, EC.as_dict(private=False) | damage]}).encode()
    )
    assert "rsa-1" in [key.kid for key in keys if fits(key, "RS256")]
