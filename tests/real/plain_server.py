"""The lightest server there is: revision 2025-11-25 on standard input and output, with plain resources.

    plain_server.py PREFIX COUNT PAGE_SIZE

It lists `COUNT` resources `PREFIX:0`, `PREFIX:1` … in pages of `PAGE_SIZE`; the text of each is its URI.
"""

import json
import sys

prefix, count, page_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def initialize(_params):
    info = {"name": prefix, "version": "1"}
    return {"protocolVersion": "2025-11-25", "capabilities": {"resources": {}}, "serverInfo": info}


def list_resources(params):
    start = int(params.get("cursor", 0))
    end = min(start + page_size, count)
    page = [{"uri": f"{prefix}:{number}", "name": str(number)} for number in range(start, end)]
    return {"resources": page, **({"nextCursor": str(end)} if end < count else {})}


def read_resource(params):
    return {"contents": [{"uri": params["uri"], "text": params["uri"]}]}


METHODS = {"initialize": initialize, "resources/list": list_resources, "resources/read": read_resource}

for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        method = METHODS.get(request["method"])
        if method is None:
            answer = {"error": {"code": -32601, "message": "Method not found"}}
        else:
            answer = {"result": method(request.get("params", {}))}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
