from __future__ import annotations

from typing import Any

import pytest

from mcpmux.errors import RpcError
from mcpmux.protocol.call import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    LOG_LEVELS,
    VERSION,
    Call,
    check_call,
    severity,
)
from mcpmux.protocol.codes import MalformedRequest, http_status, unsupported_version
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.revisions import LEGACY, SUPPORTED
from tests.peers.revision import MODERN

COMPLETE: dict[str, Any] = {VERSION: MODERN, CLIENT_CAPABILITIES: {}}


def call(meta: dict[str, Any]) -> Call:
    return Call("tools/list", {}, {key: raw(value) for key, value in meta.items()})


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {CLIENT_INFO: {"name": "c", "version": "1"}},
        {LOG_LEVEL: "debug"},
        {LOG_LEVEL: "emergency"},
        {"progressToken": 0, "example.com/mine": None},
    ],
)
def test_a_complete_call_is_taken(extra: dict[str, Any]):
    check_call(call(COMPLETE | extra))


@pytest.mark.parametrize(
    ("meta", "named"),
    [
        ({}, VERSION),
        ({CLIENT_CAPABILITIES: {}}, VERSION),
        (COMPLETE | {VERSION: 1}, VERSION),
        (COMPLETE | {VERSION: None}, VERSION),
        ({VERSION: MODERN}, CLIENT_CAPABILITIES),
        (COMPLETE | {CLIENT_CAPABILITIES: []}, CLIENT_CAPABILITIES),
        (COMPLETE | {CLIENT_CAPABILITIES: None}, CLIENT_CAPABILITIES),
        (COMPLETE | {CLIENT_INFO: "me"}, CLIENT_INFO),
        (COMPLETE | {CLIENT_INFO: None}, CLIENT_INFO),
        (COMPLETE | {LOG_LEVEL: "loud"}, LOG_LEVEL),
        (COMPLETE | {LOG_LEVEL: None}, LOG_LEVEL),
        (COMPLETE | {LOG_LEVEL: 3}, LOG_LEVEL),
    ],
)
def test_what_is_missing_or_wrong_in_meta_is_named(meta: dict[str, Any], named: str):
    with pytest.raises(MalformedRequest) as caught:
        check_call(call(meta))
    assert caught.value.code == -32602
    assert f'"{named}"' in caught.value.message
    assert http_status(caught.value) == 400


@pytest.mark.parametrize("version", [*LEGACY, "2099-01-01", ""])
def test_another_revision_is_refused_with_the_supported_ones(version: str):
    """ "the server MUST respond with an UnsupportedProtocolVersionError" (Versioning, 2026-07-28)."""
    with pytest.raises(RpcError) as caught:
        check_call(call(COMPLETE | {VERSION: version}))
    expected = unsupported_version(version)
    assert (caught.value.code, caught.value.data) == (-32022, expected.data)
    assert expected.data == {"supported": list(SUPPORTED), "requested": version}
    assert http_status(caught.value) == 400


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (-32700, 400),
        (-32600, 400),
        (-32601, 404),
        (-32020, 400),
        (-32021, 400),
        (-32022, 400),
        (-32602, 200),
        (-32603, 200),
        (-31001, 200),
        (7, 200),
    ],
)
def test_every_error_has_its_http_status(code: int, status: int):
    assert http_status(RpcError(code, "no")) == status


def test_levels_rank_by_severity_and_an_unknown_one_is_not_lost():
    ranks = [severity(level) for level in LOG_LEVELS]
    assert ranks == sorted(set(ranks))
    for unknown in ("loud", None, 3):
        assert severity(unknown) > severity("emergency")
