"""A server over stdio that tells secrets wherever it can. Standard library only.

`python secretive_server.py SECRETS`: a JSON object, place → secret.
"""

from __future__ import annotations

import json
import sys
from typing import Any

SECRETS = json.loads(sys.argv[1])


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def result_of(method: str) -> Any:
    if method == "initialize":
        server = {"name": "secretive", "version": "1"}
        capabilities = {"tools": {}, "resources": {}, "logging": {}}
        return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": server}
    if method == "tools/list":
        return {"tools": [{"name": "tell", "inputSchema": {"type": "object"}}]}
    if method == "resources/list":
        return {"resources": []}
    if method == "tools/call":
        text = f"GET / HTTP/1.1\nAuthorization: Bearer {SECRETS['result text']}"
        structured = {"accessToken": SECRETS["result member"]}
        meta = {"com.example/api_key": SECRETS["result meta"]}
        return {
            "content": [{"type": "text", "text": text}],
            "structuredContent": structured,
            "_meta": meta,
        }
    return {}


def elicit() -> None:
    schema = {"type": "object", "properties": {"password": {"type": "string"}}}
    send(id="q", method="elicitation/create", params={"message": "Who?", "requestedSchema": schema})


def main() -> None:
    print(f"password={SECRETS['server log']}", file=sys.stderr, flush=True)
    waiting = None
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("id") == "q":  # the answer to what it asked
            data = {"password": SECRETS["log message"]}
            send(method="notifications/message", params={"level": "error", "data": data})
            send(id=waiting, result=result_of("tools/call"))
        elif message.get("method") == "tools/call":
            waiting = message["id"]
            elicit()
        elif message.get("method") == "resources/read":
            error = {"code": -32002, "message": f"not found, token={SECRETS['error message']}"}
            send(id=message["id"], error=error)
        elif "id" in message:
            send(id=message["id"], result=result_of(message["method"]))


if __name__ == "__main__":
    main()
