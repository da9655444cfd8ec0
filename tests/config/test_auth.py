from __future__ import annotations

from typing import Any

import pytest

from mcpmux.config import Auth, Issuer, StaticToken
from tests.config.documents import problems_of, read

DIGEST = "ab" * 32
ISSUER = {"issuer": "https://login.example.com"}
RESOURCE = "https://mux.example.com/mcp"


def document(**auth: Any) -> dict[str, Any]:
    return {"upstreams": {"docs": {"command": "npx"}}, "auth": auth}


def test_everything_is_read():
    config = read(
        document(
            tokens={"ci": {"sha256": DIGEST, "scopes": ["a", "b:c/d"]}},
            issuers={"corp": {**ISSUER, "algorithms": ["ES256"], "leeway": "1m", "principal": "email"}},
            resource=RESOURCE,
            required_scopes=["a"],
            method_scopes={"tools/*": ["t"], "resources/read": ["r"]},
            certificates=True,
            allow_anyone=True,
        )
    )
    assert config.auth == Auth(
        tokens={"ci": StaticToken(sha256=DIGEST, scopes=("a", "b:c/d"))},
        issuers={
            "corp": Issuer(issuer=ISSUER["issuer"], algorithms=("ES256",), leeway=60.0, principal="email")
        },
        resource=RESOURCE,
        required_scopes=("a",),
        method_scopes={"tools/*": ("t",), "resources/read": ("r",)},
        certificates=True,
        allow_anyone=True,
    )


def test_nobody_is_asked_by_default():
    assert not read({"upstreams": {"docs": {"command": "npx"}}}).auth.asks_tokens


@pytest.mark.parametrize(
    ("auth", "problem"),
    [
        ({"tokens": {"ci": {"sha256": "secret"}}}, "auth.tokens.ci.sha256: expected 64 hexadecimal digits"),
        ({"tokens": {"a:b": {"sha256": DIGEST}}}, "expected a name of letters"),
        ({"tokens": {"ci": {"token": "x"}}}, "auth.tokens.ci"),
        ({"issuers": {"corp": ISSUER}}, "`issuers` need `resource`"),
        ({"issuers": {"cert": ISSUER}, "resource": RESOURCE}, 'cannot be called "cert"'),
        ({"issuers": {"c": {"issuer": "http://login.example.com"}}, "resource": RESOURCE}, "https://"),
        ({"issuers": {"c": {"issuer": "https://u:p@login.example.com"}}, "resource": RESOURCE}, "https://"),
        ({"issuers": {"c": {**ISSUER, "jwks_url": "file:///k"}}, "resource": RESOURCE}, "jwks_url"),
        ({"issuers": {"c": {**ISSUER, "algorithms": ["none"]}}, "resource": RESOURCE}, "algorithms[0]"),
        ({"issuers": {"c": {**ISSUER, "algorithms": ["HS256"]}}, "resource": RESOURCE}, "algorithms[0]"),
        ({"issuers": {"c": {**ISSUER, "algorithms": []}}, "resource": RESOURCE}, "`algorithms` is empty"),
        ({"issuers": {"c": {**ISSUER, "leeway": "1h"}}, "resource": RESOURCE}, "`leeway`"),
        (
            {"issuers": {"c": {**ISSUER, "jwks_file": "k", "jwks_url": "https://a/k"}}, "resource": RESOURCE},
            "remove one of them",
        ),
        (
            {"tokens": {"ann": {"sha256": DIGEST}, "ben": {"sha256": DIGEST}}},
            "`tokens` ann and ben have the same `sha256`",
        ),
        (
            {"issuers": {"a": ISSUER, "b": {**ISSUER, "principal": "email"}}, "resource": RESOURCE},
            "`issuers` a and b have the same `issuer`",
        ),
        ({"resource": "mux.example.com"}, "auth.resource"),
        ({"resource": "https://mux.example.com/mcp?x=1"}, "auth.resource"),
        ({"required_scopes": ["a b"]}, "auth.required_scopes[0]"),
        ({"required_scopes": ['a"b']}, "auth.required_scopes[0]"),
        ({"method_scopes": {"tools/*/x": ["a"]}}, "auth.method_scopes"),
    ],
)
def test_mistakes_are_named(auth: dict[str, Any], problem: str):
    assert any(problem in sentence for sentence in problems_of(document(**auth)))


def test_an_issuer_on_this_machine_may_speak_plain_http():
    for host in ("127.0.0.1:8080", "localhost:8080", "[::1]:8080"):
        assert read(document(issuers={"c": {"issuer": f"http://{host}"}}, resource=RESOURCE)).auth.issuers
