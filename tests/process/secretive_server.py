"""A server over stdio that tells secrets wherever it can. Standard library only.

`python secretive_server.py FILE [WORD]`: FILE has a JSON object, place → secret. With WORD all texts differ.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SECRETS = json.loads(Path(sys.argv[1]).read_text())
WORD = " ".join(sys.argv[2:])


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def result_of(method: str) -> Any:
    if method == "initialize":
        server = {"name": "secretive", "version": "1"}
        capabilities: dict[str, Any] = {"tools": {}, "resources": {}, "logging": {}}
        return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": server}
    if method == "tools/list":
        return {"tools": [{"name": "tell", "inputSchema": {"type": "object"}}]}
    if method == "resources/list":
        return {"resources": []}
    if method == "tools/call":
        lines = (
            f"GET /{WORD} HTTP/1.1",
            f"Authorization: Bearer {SECRETS['result text']}",
            f"Set-Cookie: sid={SECRETS['result cookie']}; Path=/",
            f"badge {SECRETS['pattern in result']}",
        )
        structured = {"accessToken": WORD + SECRETS["result member"], "pin": WORD + SECRETS["path in result"]}
        meta = {"com.example/api_key": WORD + SECRETS["result meta"]}
        return {
            "content": [{"type": "text", "text": "\n".join(lines)}],
            "structuredContent": structured,
            "_meta": meta,
        }
    return {}


def elicit() -> None:
    schema = {"type": "object", "properties": {"password": {"type": "string"}}}
    send(id="q", method="elicitation/create", params={"message": "Who?", "requestedSchema": schema})


def main() -> None:
    print(f"password={SECRETS['server log']} {SECRETS['pattern in server log']}", file=sys.stderr, flush=True)
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
            reason = f"not found, token={SECRETS['error message']} for {SECRETS['pattern in error']}"
            send(id=message["id"], error={"code": -32002, "message": f"{WORD}{reason}"})
        elif "id" in message:
            send(id=message["id"], result=result_of(message["method"]))


if __name__ == "__main__":
    main()
