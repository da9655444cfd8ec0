"""A gate whose configuration changes while clients are in: what is taken back counts no more, at once."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from mcpmux.auth.bearer import hash_token
from mcpmux.auth.gate import CACHE_SECONDS, Gate
from mcpmux.config import Auth, Issuer, StaticToken
from mcpmux.protocol.principal import Admission, Principal, Turned
from tests.auth.made import ISSUER, KEYS_URL, RESOURCE, RSA, Clock, Issuing, bearer, claims, make_gate, sign

OLD, NEW = (f"mcpmux_{name}_0123456789abcdefghijklmnopqrst" for name in ("old", "new"))
BEN = f"mcpmux_ben_{'0' * 32}"


def token(text: str, *scopes: str) -> StaticToken:
    return StaticToken(sha256=hash_token(text), scopes=scopes)


TWO = Auth(tokens={"ann": token(OLD), "ben": token(BEN)})


def corp(**changes: Any) -> Auth:
    issuer = Issuer(**({"issuer": ISSUER, "jwks_url": KEYS_URL} | changes))
    return Auth(issuers={"corp": issuer}, resource=RESOURCE)


def gate_of(config: Auth, issuing: Issuing | None = None) -> Gate:
    return Gate(config, "mux", (issuing or Issuing()).fetch, Clock())


async def status_of(gate: Gate, shown: str) -> int:
    try:
        await gate.admit(bearer(shown), "")
    except Turned as turned:
        return turned.status
    return 200


async def test_a_revoked_token_is_refused_though_its_judgement_was_kept():
    gate = gate_of(TWO)
    assert [await status_of(gate, token) for token in (OLD, BEN)] == [200, 200]
    gate.adopt(Auth(tokens={"ben": TWO.tokens["ben"]}), "mux")
    assert [await status_of(gate, token) for token in (OLD, BEN)] == [401, 200]


async def test_a_token_is_replaced_by_another_one_of_the_same_name():
    gate = gate_of(TWO)
    gate.adopt(Auth(tokens={"ann": token(NEW, "more")}), "mux")
    assert await status_of(gate, OLD) == 401
    assert (await gate.admit(bearer(NEW), "")).principal == Principal("ann", frozenset({"more"}))


async def test_with_the_last_token_taken_back_nobody_comes_in():
    gate = gate_of(TWO)
    gate.adopt(Auth(), "mux")
    assert gate.asks_tokens
    assert await status_of(gate, OLD) == 401
    with pytest.raises(Turned) as turned:
        await gate.admit({}, "dns:host")
    assert turned.value.status == 401


async def test_who_was_asked_for_certificates_alone_is_not_asked_for_tokens_meanwhile():
    gate = gate_of(Auth())
    admission = await gate.admit({}, "dns:host")
    gate.adopt(TWO, "mux")
    assert gate.holds(admission)
    assert (await gate.admit({}, "dns:host")).principal.name == "cert:dns:host"


@pytest.mark.parametrize(
    "changed",
    [
        Auth(tokens=TWO.tokens),
        corp(audience=("https://other.example.com",)),
        corp(algorithms=("ES256",)),
        corp(issuer="https://elsewhere.example.com"),
        attrs.evolve(corp(), resource="https://other.example.com/mcp"),
        attrs.evolve(corp(), required_scopes=("admin",)),
    ],
)
async def test_a_token_of_an_issuer_is_judged_by_what_holds_now(changed: Auth):
    gate, shown = gate_of(corp()), sign(claims())
    admission = await gate.admit(bearer(shown), "")
    gate.adopt(changed, "mux")
    assert await status_of(gate, shown) in (401, 403)
    assert not gate.holds(admission)
    assert gate.seconds_left(admission) == 0


async def test_the_keys_of_an_issuer_that_stays_are_not_fetched_again():
    issuing = Issuing()
    gate = gate_of(corp(), issuing)
    assert await status_of(gate, sign(claims())) == 200
    gate.adopt(attrs.evolve(corp(), method_scopes={"tools/*": ("call",)}), "mux")
    assert await status_of(gate, sign(claims())) == 200
    assert issuing.asked == [KEYS_URL]


async def test_an_issuer_removed_while_its_keys_are_fetched_admits_no_token(autojump_clock):
    gate = gate_of(corp(), Issuing(seconds=5))
    async with trio.open_nursery() as nursery:
        statuses: list[int] = []

        async def come() -> None:
            statuses.append(await status_of(gate, sign(claims())))

        nursery.start_soon(come)
        await trio.testing.wait_all_tasks_blocked()
        gate.adopt(Auth(tokens=TWO.tokens), "mux")
    assert statuses == [401]
    gate.adopt(corp(), "mux")
    assert await status_of(gate, sign(claims(), RSA)) == 200


async def test_what_stays_open_ends_when_its_token_is_taken_back(autojump_clock):
    gate = gate_of(TWO)
    ended: list[str] = []

    async def stay(name: str, shown: str) -> None:
        with gate.stay(await gate.admit(bearer(shown), "")):
            await trio.sleep_forever()
        ended.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stay, "ann", OLD)
        nursery.start_soon(stay, "ben", BEN)
        await trio.testing.wait_all_tasks_blocked()
        gate.adopt(attrs.evolve(TWO, method_scopes={"*": ("x",)}), "mux")
        await trio.testing.wait_all_tasks_blocked()
        assert ended == []
        gate.adopt(Auth(tokens={"ben": TWO.tokens["ben"]}), "mux")
        await trio.testing.wait_all_tasks_blocked()
        assert ended == ["ann"]
        gate.adopt(Auth(tokens={"ben": token(BEN, "other")}), "mux")
    assert ended == ["ann", "ben"]
    assert not gate._stays


async def test_a_stream_opened_after_its_token_was_revoked_ends_at_once(autojump_clock):
    gate = gate_of(TWO)
    admission = await gate.admit(bearer(OLD), "")
    gate.adopt(Auth(), "mux")
    with gate.stay(admission) as scope:
        await trio.sleep(CACHE_SECONDS)
    assert scope.cancelled_caught


def test_a_principal_is_known_while_any_entry_admits_its_name():
    gate = make_gate(Issuing(), tokens={"ann": token(OLD)}, certificates=True)
    for name in ("ann", "corp:alice", "corp:ann", "cert:dns:host"):
        assert gate.knows(Principal(name))
    for name in ("ben", "other:alice", "corp", "tokens.ann"):
        assert not gate.knows(Principal(name))
    gate.adopt(Auth(tokens={"corp": token(OLD)}), "mux")
    for name in ("ann", "corp:alice", "cert:dns:host"):
        assert not gate.knows(Principal(name))
    assert gate.knows(Principal("corp"))


async def test_the_same_configuration_again_changes_nothing():
    gate = gate_of(TWO)
    await gate.admit(bearer(OLD), "")
    gate.adopt(attrs.evolve(TWO), "mux")
    assert len(gate._judged) == 1
    assert gate.holds(Admission(Principal("ann"), ground=("tokens.ann", TWO.tokens["ann"])))
