"""A client as one server sees it: each of the two is spoken to in its own words.

For what a server asks outside of any call; questions inside a call are rewritten with the call's result.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcpmux.mux import rewrite
from mcpmux.mux.namespace import Space
from mcpmux.protocol.principal import Principal
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.tasks import related_task
from mcpmux.runtime.calls import Client


@dataclass(eq=False)
class Addressee:
    """The client that is meant by what one server asks."""

    _client: Client
    _space: Space

    @property
    def capabilities(self) -> Raw:
        """What it said that it offers."""
        return self._client.capabilities

    @property
    def principal(self) -> Principal:
        """Who it has been shown to be."""
        return self._client.principal

    @property
    def knows_tasks(self) -> bool:
        """Whether its revision has tasks."""
        return self._client.knows_tasks

    async def ask(self, method: str, params: Fields) -> Fields:
        """The client's answer. Raises RpcError when it refuses or cannot be reached."""
        own = related_task(params)
        answer = await self._client.ask(method, rewrite.expose_question(method, params, self._space))
        return answer if own is None else rewrite.resolve_related(answer, lambda _exposed: own)
