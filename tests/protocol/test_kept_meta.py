"""The facts that a client sends about itself with every request are decoded once."""

from __future__ import annotations

from typing import Any

import pytest

from mcpmux.errors import RpcError
from mcpmux.protocol.call import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    KEPT,
    KEPT_BYTES,
    LOG_LEVEL,
    VERSION,
    Call,
    Meta,
    check_call,
    modern_meta,
    stated_version,
    with_meta,
)
from mcpmux.protocol.envelope import decode_any, raw
from mcpmux.protocol.era import downgrade_meta, upgrade_call
from mcpmux.protocol.handshake import ClientFacts
from mcpmux.protocol.raw_json import Raw

INFO = {"name": "c", "version": "1"}
SOUND: dict[str, Any] = {VERSION: "2026-07-28", CLIENT_CAPABILITIES: {}}
COMPLETE = {**SOUND, CLIENT_INFO: INFO}
OURS = raw({"name": "us"})
CLIENT = ClientFacts(raw(INFO), raw({}))


def read(meta: dict[str, Any]) -> Call:
    return Call.of("tools/list", raw({"cursor": "x", "_meta": meta}))


def test_calls_that_say_the_same_share_it():
    first, second = read(COMPLETE), read(COMPLETE)
    assert isinstance(first.meta, Meta)
    assert first.meta is second.meta
    assert read(SOUND).meta is not first.meta


@pytest.mark.parametrize(
    "more", [{"progressToken": 1}, {"traceparent": "00-1"}, {CLIENT_INFO: {"name": "c" * KEPT_BYTES}}]
)
def test_what_is_for_one_call_or_too_long_is_not_kept(more: dict[str, Any]):
    assert not isinstance(read(COMPLETE | more).meta, Meta)


@pytest.mark.parametrize("meta", [COMPLETE, SOUND, {**COMPLETE, LOG_LEVEL: "info"}])
def test_it_means_the_same_as_what_is_not_kept(meta: dict[str, Any]):
    call = read(meta)
    plain = Call(call.method, call.params, dict(call.meta))
    for _ in range(2):  # the second time it is known to be good
        check_call(call)
    assert stated_version(call) == stated_version(plain) == "2026-07-28"
    assert modern_meta(call, OURS) == modern_meta(plain, OURS)
    assert downgrade_meta(call) == downgrade_meta(plain) == {}
    kept, plainly = with_meta(call.params, call.meta), with_meta(plain.params, plain.meta)
    assert decode_any(raw(kept)) == decode_any(raw(plainly))


@pytest.mark.parametrize("wrong", [{VERSION: "2025-11-25"}, {CLIENT_CAPABILITIES: []}, {LOG_LEVEL: "loud"}])
def test_what_is_wrong_is_wrong_each_time(wrong: dict[str, Any]):
    for _ in range(3):
        with pytest.raises(RpcError):
            check_call(read(COMPLETE | wrong))


def test_a_name_said_twice_goes_on_once_as_it_was_judged():
    twice = f'"{VERSION}":"x","{VERSION}":"2026-07-28"'
    call = Call.of("tools/list", Raw(f'{{"_meta":{{{twice},"{CLIENT_CAPABILITIES}":{{}}}}}}'.encode()))
    check_call(call)
    assert bytes(raw(with_meta({}, call.meta))).count(VERSION.encode()) == 1


def test_a_legacy_clients_call_does_not_change_what_others_share():
    shared = read(SOUND)
    meta = dict(shared.meta)
    params = raw({"cursor": "x", "_meta": SOUND})
    legacy = upgrade_call(Call.of("tools/list", params), ClientFacts(raw(INFO), raw({"roots": {}}), "debug"))
    assert legacy.meta[CLIENT_CAPABILITIES] == raw({"roots": {}})
    assert dict(shared.meta) == meta
    assert upgrade_call(Call.of("tools/list", None), CLIENT).meta is CLIENT.meta


def test_only_so_many_are_kept():
    first = read(COMPLETE).meta
    for number in range(KEPT):
        read({**SOUND, CLIENT_INFO: {"name": str(number)}})
    assert read(COMPLETE).meta is not first
