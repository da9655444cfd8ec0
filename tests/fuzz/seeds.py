"""Good inputs that coverage-guided fuzzing begins with; the first byte of a stream determines its pieces."""

from __future__ import annotations

SEEDS = {
    "http": [
        b"\x00POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
        b"\x03POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2;a\r\n{}\r\n0\r\nT: u\r\n\r\n",
        b"\x07GET http://x/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"\x01GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nPUT / HTTP/1.1\r\nHost: x\r\nExpect: 1\r\n\r\n",
    ],
    "envelope": [
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","_meta":{"progressToken":1}}}',
        b'{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":"m","data":[1e5,null,"\\u00e9"]}}',
        b'[{"jsonrpc":"2.0","method":"n"},{"jsonrpc":"2.0","id":1,"result":{}}]',
    ],
}
