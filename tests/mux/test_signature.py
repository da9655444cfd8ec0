from __future__ import annotations

import pytest

from mcpmux.mux.rewrite import SIGNED_BYTES, Signature
from mcpmux.protocol.call import META, SERVER_INFO
from mcpmux.protocol.envelope import decode_any, raw
from mcpmux.protocol.raw_json import Raw

OURS = {"name": "us"}


@pytest.mark.parametrize(
    ("meta", "signed"),
    [
        (None, {SERVER_INFO: OURS}),
        ({}, {SERVER_INFO: OURS}),
        ({"a": 1, SERVER_INFO: {"name": "them"}}, {"a": 1, SERVER_INFO: OURS}),
        ({"a": "x" * SIGNED_BYTES}, {"a": "x" * SIGNED_BYTES, SERVER_INFO: OURS}),
        ([1], {SERVER_INFO: OURS}),
        ("text", {SERVER_INFO: OURS}),
    ],
)
def test_meta_names_us_however_often_it_comes(meta, signed):
    signature = Signature(raw(OURS))
    for _ in range(2):
        result = {"b": raw(2)} | ({} if meta is None else {META: raw(meta)})
        assert decode_any(raw(signature.put_on(result))) == {"b": 2, META: signed}


def test_what_is_kept_is_told_apart():
    signature = Signature(raw(OURS))
    for number in (1, 2, 1):
        result = signature.put_on({META: Raw(b'{"a":%d}' % number)})
        assert decode_any(result[META])["a"] == number
