"""A scripted server whose resources can be subscribed to, in both eras."""

from __future__ import annotations

from collections import Counter
from typing import Any

import trio

from tests.peers.revision import Json
from tests.peers.server import RpcFailure, ScriptedServer

SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
OFFERS = {
    "resources": {"subscribe": True, "listChanged": True},
    "tools": {"listChanged": True},
}


class Subscribable(ScriptedServer):
    """`subscribed` is what it has actually been asked for at the moment; `subscribes` counts the asking.

    `honours`: the URIs that a modern listen is granted, all when None.
    """

    def __init__(
        self,
        revision: str,
        *,
        uris: list[str] | None = None,
        honours: set[str] | None = None,
        capabilities: Json | None = None,
    ) -> None:
        uris = uris or ["memo:1", "memo:2", "memo:3", "file:///a"]
        super().__init__(
            revision,
            resources=[{"uri": uri, "name": uri} for uri in uris],
            tools=[],
            capabilities=capabilities or OFFERS,
        )
        self._uris = uris
        self.honours = honours
        self._legacy: set[str] = set()
        self._less = trio.Event()
        self._listens: dict[Any, Json] = {}
        self.subscribes: Counter[str] = Counter()

    async def is_free(self) -> None:
        """Wait until no URI is subscribed."""
        while self.subscribed:
            await self._less.wait()

    def _tell_less(self) -> None:
        less, self._less = self._less, trio.Event()
        less.set()

    @property
    def subscribed(self) -> set[str]:
        listened = {uri for wish in self._listens.values() for uri in wish.get("resourceSubscriptions", [])}
        return self._legacy | listened

    async def serve(self, pipe: Any) -> None:
        self._legacy.clear()
        self._listens.clear()
        await super().serve(pipe)

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method == "resources/subscribe" and not self.modern:
            uri = params["uri"]
            if uri not in self._uris:
                raise RpcFailure(-32002, "Resource not found", {"uri": uri})
            assert uri not in self._legacy, "subscribed twice"
            self._legacy.add(uri)
            self.subscribes[uri] += 1
            return {}
        if method == "resources/unsubscribe" and not self.modern:
            self._legacy.remove(params["uri"])
            self._tell_less()
            return {}
        if method == "subscriptions/listen" and self.modern:
            return await self._listen(params["notifications"], message["id"])
        return await super().handle(method, params, message)

    async def _listen(self, wish: Json, listen: Any) -> Json:
        uris = [
            uri
            for uri in wish.get("resourceSubscriptions", [])
            if uri in self._uris and (self.honours is None or uri in self.honours)
        ]
        honoured = {**wish, "resourceSubscriptions": uris}
        self.subscribes.update(set(uris) - self.subscribed)
        self._listens[listen] = honoured
        try:
            params = {"_meta": {SUBSCRIPTION_ID: listen}, "notifications": honoured}
            await self.send({"method": "notifications/subscriptions/acknowledged", "params": params})
            await trio.sleep_forever()
        finally:
            self._listens.pop(listen, None)
            self._tell_less()
        raise AssertionError

    async def update(self, uri: str, through: str | None = None) -> None:
        """Tell subscribers of `through` (or `uri`) that `uri` has changed, as a server of the era does."""
        through = through or uri
        if through in self._legacy:
            await self.send({"method": "notifications/resources/updated", "params": {"uri": uri}})
        for listen, wish in list(self._listens.items()):
            if through in wish.get("resourceSubscriptions", []):
                params = {"uri": uri, "_meta": {SUBSCRIPTION_ID: listen}}
                await self.send({"method": "notifications/resources/updated", "params": params})

    async def notify(self, method: str) -> None:
        """Send a list change to all clients that may get it."""
        wish_name = {"resources": "resourcesListChanged", "tools": "toolsListChanged"}[method.split("/")[1]]
        if not self.modern:
            await self.send({"method": method})
        for listen, wish in list(self._listens.items()):
            if wish.get(wish_name):
                await self.send({"method": method, "params": {"_meta": {SUBSCRIPTION_ID: listen}}})
