"""A client as one server sees it: each of the two is spoken to in its own words.

For what a server asks outside of any call; questions inside a call are rewritten with the call's result.
"""

from __future__ import annotations

from mcpmux.mux import rewrite
from mcpmux.mux.rewrite import Space
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.tasks import related_task
from mcpmux.runtime.calls import Client


class Addressee:
    """The client that is meant by what one server asks."""

    def __init__(self, client: Client, space: Space) -> None:
        self._client = client
        self._space = space
        self.capabilities, self.principal = client.capabilities, client.principal
        self.knows_tasks = client.knows_tasks

    async def ask(self, method: str, params: Fields) -> Fields:
        """The client's answer. Raises RpcError when it refuses or cannot be reached."""
        own = related_task(params)
        answer = await self._client.ask(method, rewrite.expose_question(method, params, self._space))
        return answer if own is None else rewrite.resolve_related(answer, lambda _exposed: own)
