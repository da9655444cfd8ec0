"""A client's call that is sent on where it is read and answered where its answer is read, without a task.

    call --`post`--> errand, posted --result--> answered                 (`take`)
                     errand, posted --anything else--> somebody waits    (`carry_on`: the ordinary way)
                     errand that would have to wait --> somebody asks    (`carry_on`: the ordinary way)
    call that is not plain --> the ordinary way

Plain is a read, a prompt or a tool call that goes on with no other; whose owner can be told by its text, is
ready, and is to be asked itself.

A configuration that changes while an errand is on its way needs no look here. Access rules judge what is
asked, and nothing is asked here while there are any: what was asked before them is answered like what was
answered just before them. The upstream has the prefix of now, and the one it had last when it was removed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mcpmux.errors import RpcError
from mcpmux.mux import rewrite
from mcpmux.mux.namespace import Namespace
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Notify
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.input_requests import RESPONSES, STATE
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.tasks import TASK, offers_tasks
from mcpmux.runtime.asker import Asker
from mcpmux.runtime.signature import Signature
from mcpmux.runtime.upstreams.fleet import Fleet
from mcpmux.runtime.upstreams.posted import Posted
from mcpmux.runtime.upstreams.upstream import Upstream

PLAIN: Final = frozenset({m.RESOURCES_READ, m.PROMPTS_GET, m.TOOLS_CALL})
"""Methods of calls that may be plain."""

_GOES_ON: Final = frozenset({STATE, RESPONSES, TASK})

Narrow = Callable[[Call, Notify], Notify]
"""What a call hears of all that its server says on the way."""

Seal = Callable[[Fields], Fields]
"""Makes a result good for one client alone."""


class Errand:
    """One call on its way, in its upstream's words. Either `take` or `carry_on` must follow.

    `posted`: it was sent. One that could not be sent at once is for `carry_on` alone. `bare`: nothing is
    rewritten for the upstream, the only one.
    """

    __slots__ = ("_asker", "_narrow", "_posted", "_seal", "_signature", "_upstream", "bare", "call", "posted")

    def __init__(
        self,
        call: Call,
        upstream: Upstream,
        posted: Posted | None,
        narrow: Narrow,
        asker: Asker,
        signature: Signature,
        seal: Seal | None,
        *,
        bare: bool,
    ) -> None:
        self.call = call
        self.posted = posted is not None
        self.bare = bare
        self._upstream = upstream
        self._posted = posted
        self._narrow = narrow
        self._asker = asker
        self._signature = signature
        self._seal = seal

    def __repr__(self) -> str:
        return f"<Errand to {self._upstream.key}: {self._posted!r}>"

    def tell(self, hear: Callable[[], None] | None) -> None:
        """From now on `hear` is called whenever there may be something to take, or to carry on with."""
        if self._posted is not None:
            self._posted.ticket.wake = hear

    def take(self) -> Fields | None:
        """The result as clients know it, the call being over; None when there is more to it."""
        result = self._upstream.take(self._posted) if self._posted is not None else None
        if result is None:
            return None
        if not self.bare:
            space = self._upstream.space
            result = self._signature.put_on(rewrite.expose_result(self.call.method, result, space))
        return result if self._seal is None else self._seal(result)

    async def carry_on(self, notify: Notify) -> Fields:
        """Wait for whatever comes of it. Raises RpcError."""
        result = await self._carry_on(notify)
        return result if self._seal is None else self._seal(result)

    async def _carry_on(self, notify: Notify) -> Fields:
        upstream, call, notify = self._upstream, self.call, self._narrow(self.call, notify)
        if not self.bare:
            return self._signature.put_on(await self._asker.ask(upstream, call, notify, self._posted))
        try:
            result = await upstream.exchange(call, notify, posted=self._posted)
        except RpcError as error:
            return await self._asker.after_error(upstream, call, notify, error)
        return self._asker.noted(upstream, call, result)


class Errands:
    """Sends calls on to the upstreams of `fleet`."""

    def __init__(self, fleet: Fleet, asker: Asker, signature: Signature) -> None:
        self._fleet = fleet
        self._asker = asker
        self._signature = signature

    def __repr__(self) -> str:
        return f"<Errands to {self._fleet!r}>"

    def post(
        self, call: Call, namespace: Namespace, narrow: Narrow, seal: Seal | None = None
    ) -> Errand | None:
        """Send a plain call on, or say to whom it has to be sent; None for a call that is not plain.

        Raises RpcError when its owner was removed.
        """
        if call.method not in PLAIN or not _GOES_ON.isdisjoint(call.params):
            return None
        only = namespace.transparent
        found = _in_own_words(call, namespace) if only is None else (only, call)
        if found is None:
            return None
        owner, own = found
        upstream = self._fleet.for_call(owner, own)
        if not _is_asked_itself(upstream, own):
            return None
        bare = only is not None
        posted = upstream.post(own)
        return Errand(own, upstream, posted, narrow, self._asker, self._signature, seal, bare=bare)


def _in_own_words(call: Call, namespace: Namespace) -> tuple[str, Call] | None:
    """The owner of what a call is about, and the call in its words; None when it has to be looked for."""
    key = "uri" if call.method == m.RESOURCES_READ else "name"
    text = call.text(key)
    if text is None or (key == "name" and namespace.is_shortened(text)):
        return None
    found = namespace.resolve_uri(text) if key == "uri" else namespace.resolve_name(text)
    if found is None:
        return None
    owner, own = found
    params = {**call.params, key: raw(own)}
    if call.method == m.TOOLS_CALL and "arguments" in params:
        params["arguments"] = rewrite.resolve_arguments(params["arguments"], owner, namespace)
    return owner, call.with_params(params)


def _is_asked_itself(upstream: Upstream, call: Call) -> bool:
    """Whether an answer cannot come from a memory, nor be a task."""
    if call.method == m.RESOURCES_READ:
        return upstream.memory is None or upstream.memory.passes_at_once()
    return call.method != m.TOOLS_CALL or (upstream.facts is not None and not offers_tasks(upstream.facts))
