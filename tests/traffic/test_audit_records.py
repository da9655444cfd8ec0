"""Records of exchanges: they follow the format and contain no secret, whether a caller is known or not."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from mcpmux.channels.tap import Leg
from mcpmux.config.traffic import Redaction
from mcpmux.protocol import method as m
from mcpmux.protocol.call import CLIENT_CAPABILITIES, CLIENT_INFO, VERSION, Call, Meta
from mcpmux.protocol.envelope import raw, value_of
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.traffic.audit.record_maker import (
    CALLERS_KEPT,
    NAME_LIMIT,
    TARGETS_LIMIT,
    TEXT_LIMIT,
    RecordMaker,
    _clean_names,
    trace_id,
)
from mcpmux.traffic.observer import Exchange
from mcpmux.traffic.redaction.redactor import Redactor
from tests.traffic.audit_world import fields

WALL = 1_800_000_000.000_25
NOW = "2027-01-15T08:00:00.000250Z"
SECRET = "ghp_" + "a1B2" * 9
MODERN = {VERSION: "2026-07-28", CLIENT_INFO: {"name": "desk"}, CLIENT_CAPABILITIES: {}}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"

REDACTOR = Redactor()


def exchange_of(
    method: str = "resources/read",
    params: dict[str, Any] | Fields | None = None,
    meta: dict[str, Any] | None = None,
    client: str | None = "desk",
    upstreams: tuple[str, ...] = ("docs",),
    **others: Any,
) -> Exchange:
    leg = Leg("client", others.get("peer", "c1"), "http")
    leg.introduce(others.get("revision", "2026-07-28"), client)
    members = fields(meta or {})
    call = Call(
        method,
        fields({"uri": "memo:1"} if params is None else params),
        Meta(members) if meta is not None and MODERN.keys() >= meta.keys() else members,
        principal=others.get("principal", ANYONE),
    )
    return Exchange(7, leg, call, 0.0, list(upstreams), others.get("headers", {}))


def said_by(maker: RecordMaker, exchange: Exchange, outcome: Any, seconds: float = 0.25) -> Any:
    (body,) = maker.encode([maker.end(exchange, outcome, seconds)])
    return json.loads(body)


def expected_of(exchange: Exchange, result: Any, seconds: float) -> dict[str, Any]:
    """Build the expected record: its members in their order, each as the format describes it."""
    leg, call = exchange.leg, exchange.call
    params = {name: value_of(value) for name, value in call.params.items()}
    named = params.get("ref")
    ref = named if isinstance(named, dict) else {}
    about = [params.get("uri"), params.get("name"), *(ref.get(name) for name in ("uri", "name"))]
    target = next((text for text in about if isinstance(text, str)), None)
    meta = {name: value_of(value) for name, value in call.meta.items()}
    client = leg.name or (meta.get(CLIENT_INFO) or {}).get("name")
    wished = (
        params.get("notifications", {}).get("resourceSubscriptions", []) if call.method == m.LISTEN else []
    )
    body = params | ({"_meta": meta} if meta or isinstance(call.meta, Meta) else {})

    def clean(text: str | None, limit: int) -> str | None:
        cleaned = text if text is None else REDACTOR.clean(text)
        return cleaned if cleaned is None or len(cleaned) <= limit else cleaned[: limit - 1] + "…"

    outcome = "input_required" if result.get("resultType") == "input_required" else "ok"
    if call.method == "tools/call" and result.get("isError") is True:
        outcome = "tool_error"
    members = {
        "time": NOW,
        "kind": "exchange",
        "run": "run",
        "exchange": exchange.number,
        "principal": call.principal.name or None,
        "view": clean(call.principal.view, NAME_LIMIT) or None,
        "peer": leg.peer,
        "client": clean(client, NAME_LIMIT),
        "transport": leg.transport,
        "revision": leg.revision,
        "method": clean(call.method, NAME_LIMIT),
        "target": clean(target, TEXT_LIMIT),
        "targets": [clean(uri, TEXT_LIMIT) for uri in wished[:TARGETS_LIMIT]] or None,
        "trace": trace_id(meta.get("traceparent")) or trace_id(exchange.headers.get("traceparent")),
        "decision": "allowed",
        "upstreams": exchange.upstreams or None,
        "outcome": outcome,
        "ms": round(seconds * 1e6) / 1000,
        "asked": len(raw(body)),
        "answered": len(raw(result)),
    }
    return {name: value for name, value in members.items() if value is not None}


texts = st.text(max_size=12) | st.sampled_from(
    ["memo:1", 'a"b\\c', "line\nbreak\x00", "ü€𝄞", "%s%d", SECRET, f"x://{SECRET}@y", "x" * (TEXT_LIMIT + 5)]
)
values = texts | st.none() | st.integers() | st.booleans()
exchanges = st.builds(
    exchange_of,
    method=st.sampled_from(["resources/read", "tools/call", "tools/list", m.LISTEN, f"x/{SECRET}", "%d"]),
    params=st.dictionaries(st.sampled_from(["uri", "name", "arguments", "ref", "ü"]), values, max_size=3),
    meta=st.sampled_from([{}, MODERN, {"traceparent": PARENT}, {"progressToken": 1}]),
    client=st.none() | texts,
    upstreams=st.lists(texts, max_size=2).map(tuple),
    peer=st.sampled_from(["c1", "2/c7", 'c"']),
    revision=st.sampled_from([None, "2025-06-18", "2026-07-28"]),
    principal=st.just(ANYONE)
    | st.builds(Principal, texts, st.just(frozenset()), st.sampled_from(["", "coding", f"x?tools={SECRET}"])),
    headers=st.sampled_from([{}, {"host": "x"}, {"traceparent": PARENT}]),
)
results = st.dictionaries(
    st.sampled_from(["contents", "isError", "resultType", "ü"]), values, max_size=4
) | st.just({"content": [], "isError": False, "resultType": "complete"})


@given(st.lists(st.tuples(exchanges, results), min_size=1, max_size=4), st.floats(0, 1e7))
@example([(exchange_of(meta={}), {})], 0.0)
@example([(exchange_of(m.LISTEN, {"notifications": {"resourceSubscriptions": ["y"]}}), {})], 0.0)
@example([(exchange_of("tools/call", {"name": "x"}), {"isError": True})], 0.0)
@example([(exchange_of(), {"resultType": "input_required"})], 0.0)
@example([(exchange_of(), {}), (exchange_of(params={"uri": SECRET}), {}), (exchange_of(params={}), {})], 0.0)
def test_a_record_says_what_its_exchange_says(ended, seconds):
    maker = RecordMaker("run", REDACTOR, lambda: WALL)
    twice = [*ended, *ended]  # the second time, their callers are known
    made = maker.encode([maker.end(exchange, fields(result), seconds) for exchange, result in twice])
    for (exchange, result), body in zip(twice, made, strict=True):
        assert list(json.loads(body).items()) == list(expected_of(exchange, result, seconds).items())
        assert b"\n" not in body


def test_other_rules_hold_from_the_next_record_on():
    redactor = Redactor()
    maker = RecordMaker("run", redactor, lambda: WALL)
    exchange = exchange_of("x/pear", {"uri": "memo:pear"}, client="pear")
    record = said_by(maker, exchange, {})
    assert [record[key] for key in ("client", "method", "target")] == ["pear", "x/pear", "memo:pear"]
    waiting = maker.end(exchange, {}, 0.1)
    redactor.adopt(Redaction(patterns={"fruit": "pear"}))
    after = said_by(maker, exchange, {})
    assert not any("pear" in after[key] for key in ("client", "method", "target"))
    (late,) = maker.encode([waiting])
    assert "pear" not in json.loads(late)["target"]


def test_nothing_of_strangers_is_kept_without_end():
    maker = RecordMaker("run", REDACTOR, lambda: WALL)
    for number in range(2 * CALLERS_KEPT + 1):
        name = f"n{number}"
        assert said_by(maker, exchange_of(client=name, upstreams=(name,)), {})["client"] == name
    assert 0 < _clean_names.cache_info().currsize <= CALLERS_KEPT


def test_bytes_that_are_no_text_are_no_target():
    exchange = exchange_of()
    exchange.call.params["uri"] = Raw(b'"\xff"')
    assert "target" not in said_by(RecordMaker("run", REDACTOR, lambda: WALL), exchange, {})
