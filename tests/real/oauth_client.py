"""The Python SDK 2.x as an OAuth client of mcpmux. Run by the SDK's Python: oauth_client.py URL MODE TOOL

It finds the authorization server by mcpmux's metadata, registers, gets a code and a token, and calls a tool;
the user's browser is a GET that follows no redirects. Prints one JSON document about it all.
"""

from __future__ import annotations

import json
import sys
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, TokenStorage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata
from pydantic import AnyUrl

SECONDS = 60
CALLBACK = "http://127.0.0.1:9/callback"


class Memory(TokenStorage):
    tokens = None
    info = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.info

    async def set_client_info(self, client_info):
        self.info = client_info


async def main(url, mode, tool):
    queries, answers = [], []

    async def browse(address):
        queries.append(parse_qs(urlsplit(address).query))
        async with httpx2.AsyncClient() as browser:
            answer = await browser.get(address, follow_redirects=False)
        answers.append(parse_qs(urlsplit(answer.headers["location"]).query))

    async def call_back():
        answer = answers[-1]
        return AuthorizationCodeResult(code=answer["code"][0], state=answer["state"][0], iss=answer["iss"][0])

    storage = Memory()
    wish = OAuthClientMetadata(
        client_name="test", redirect_uris=[AnyUrl(CALLBACK)], grant_types=["authorization_code"]
    )
    provider = OAuthClientProvider(url, wish, storage, browse, call_back)
    async with httpx2.AsyncClient(auth=provider, timeout=30) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=mode) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            result = await client.call_tool(tool, {})
    scopes = [sorted(query["scope"][0].split()) for query in queries if "scope" in query]
    seen = {
        "tools": tools,
        "failed": bool(result.is_error),
        "resources": sorted({query["resource"][0] for query in queries}),
        "scopes": scopes,
    }
    print(json.dumps(seen))


async def bounded(*arguments):
    with anyio.fail_after(SECONDS):
        await main(*arguments)


anyio.run(bounded, *sys.argv[1:])
