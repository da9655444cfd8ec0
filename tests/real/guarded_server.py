"""A server on the Python SDK 2.x that asks for tokens. Run by its Python: guarded_server.py ISSUER SCOPE …

Says its URL on standard output as soon as it can be connected to. Everything needs all of the scopes.
"""

from __future__ import annotations

import socket
import sys

import jwt
import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer

issuer = sys.argv[1]
listening = socket.create_server(("127.0.0.1", 0))
url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
keys = jwt.PyJWKClient(f"{issuer}/keys")


class Verifier:
    async def verify_token(self, token):
        try:
            (key,) = keys.get_signing_keys()  # tokens do not say which
            claims = jwt.decode(token, key, algorithms=["RS256"], audience=url, issuer=issuer)
        except jwt.PyJWTError as error:
            print(f"refused: {error}", file=sys.stderr, flush=True)
            return None
        return AccessToken(
            token=token, client_id=claims["client_id"], scopes=claims["scope"].split(), subject=claims["sub"]
        )


settings = AuthSettings.model_validate(
    {"issuer_url": issuer, "resource_server_url": url, "required_scopes": sys.argv[2:]}
)
server = MCPServer("guarded", token_verifier=Verifier(), auth=settings)


@server.tool()
def whoami() -> str:
    """Return the subject and the scopes of the token."""
    token = get_access_token()
    assert token is not None
    return f"{token.subject}: {' '.join(sorted(token.scopes))}"


print(url, flush=True)
uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="warning")).run(sockets=[listening])
