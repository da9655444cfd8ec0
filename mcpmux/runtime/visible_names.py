"""Search the names that a client sees, for the nearest to a misspelt one or for those that a query selects.

Promises: no name is mentioned that the client's principal may not use, or that is not in its view; a hint
never delays an answer for longer than HINT_SECONDS, and a hint that fails is left out.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import compress
from typing import Final, TypeVar

import structlog
import trio

from mcpmux.channels.tap import EXCHANGE
from mcpmux.config.report import CANDIDATES_LIMIT
from mcpmux.config.views import KINDS, RESOURCES, TEMPLATES
from mcpmux.errors import Refused, RpcError
from mcpmux.mux.naming import Naming
from mcpmux.mux.override import Names
from mcpmux.mux.pattern import matches, parse_glob
from mcpmux.mux.view import KIND_OF_LIST, UPSTREAMS, BadNarrowing, globs_in
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import INVALID_PARAMS, METHOD_NOT_FOUND
from mcpmux.protocol.principal import NARROWED, Principal
from mcpmux.runtime.access_control import AccessControl
from mcpmux.transports.inline import in_task
from mcpmux.upstreams.lists import names_of
from mcpmux.upstreams.registry import UpstreamRegistry

log = structlog.get_logger()

HINT_SECONDS: Final = 2.0  # for all lists together; a refusal without a hint is better than a late one
JUDGE_SECONDS: Final = 2.0  # for all lists together; host apps wait some ten seconds for a first answer
UNKNOWN_SECONDS: Final = 60.0  # until a query is judged again after an upstream has not answered
JUDGED_LIMIT: Final = (
    256  # queries of principals that are remembered; a hostile client may send new ones all day
)

FEW_NAMES: Final = 100  # a search in more takes longer than starting a thread for it
SEARCHES_LIMIT: Final = 1  # threads: Python runs one at a time, and hints may be late

T = TypeVar("T")

_LIST_OF: Final = {KIND_OF_LIST[method]: method for method in m.LISTS}
_NOT_FOUND: Final = frozenset({INVALID_PARAMS, METHOD_NOT_FOUND, -32002})


async def search(find: Callable[[], T], names: Names, limiter: trio.CapacityLimiter | None = None) -> T:
    """Call `find`, which searches in `names`, and return its result; in a thread if there are many names.

    Cancelling this abandons the thread and its result, so `find` must not change anything.
    """
    if sum(len(texts) for listed in names.values() for texts in listed.values()) <= FEW_NAMES:
        return find()
    return await trio.to_thread.run_sync(find, abandon_on_cancel=True, limiter=limiter)


class VisibleNames:
    """Searches the upstreams' names as far as the principal of a call sees them."""

    def __init__(self, registry: UpstreamRegistry, access: AccessControl) -> None:
        self._registry, self._access = registry, access
        self._searches = trio.CapacityLimiter(SEARCHES_LIMIT)
        # Until when the verdict on a query holds: for ever once all upstreams have answered, so that a later
        # change of lists does not end a session.
        self._judged: dict[Principal, float] = {}

    @property
    def _naming(self) -> Naming:
        return self._access.naming

    # Hints

    async def with_hint(self, error: RpcError, text: str, call: Call, kinds: Collection[str]) -> RpcError:
        """Return the error; if it means that `text` does not exist, with the nearest visible name added."""
        if error.code not in _NOT_FOUND or text not in error.message or "did you mean" in error.message:
            return error
        if isinstance(error.data, dict) and "candidates" in error.data:  # it names what is meant already
            return error
        await in_task()
        near = None
        with trio.move_on_after(HINT_SECONDS):
            owner = next(filter(None, (self._naming.owner_of(text, kind) for kind in kinds)), None)
            upstreams = self._registry if owner is None else [owner]
            names, _ = await self._look(call, kinds, upstreams, connected=True)
            view = call.principal.view_name
            find = partial(self._naming.nearest, text, kinds, names, view, with_own=False)
            near = await search(find, names, self._searches)
        if near is None or near == text:
            return error
        message = f"{error.message}; did you mean `{near}`?"
        if isinstance(error, Refused):
            return Refused(error.code, message, error.rule, error.data)
        return RpcError(error.code, message, error.data)

    async def _look(
        self, call: Call, kinds: Collection[str], upstreams: Iterable[str], *, connected: bool
    ) -> tuple[Names, bool]:
        """Return (the names that upstreams list and the client of a call sees, whether all have answered).

        `connected`: for a hint: upstreams without a connection and names past CANDIDATES_LIMIT are left out.
        """
        by_name: dict[str, dict[str, Sequence[str]]] = {}
        is_whole = True

        async def look(name: str, kind: str) -> None:
            nonlocal is_whole
            EXCHANGE.set(0)  # these requests are mcpmux's own, not part of the refused exchange
            list_call = call.on_behalf(_LIST_OF[kind], {})
            try:
                upstream = self._registry.for_call(name, list_call)
                if connected and upstream.status.connection is None:
                    return
                names, _ = await names_of(upstream, list_call.method, list_call)
                texts = list(names)[: CANDIDATES_LIMIT if connected else None]
                if list_call.method == m.TOOLS_LIST:
                    await self._access.learn_tools(upstream, list_call)
                shown = await self._access.shown(list_call, name, upstream.key, texts)
                by_name.setdefault(name, {})[kind] = list(compress(texts, shown))
            except RpcError:
                is_whole = False

        async with trio.open_nursery() as nursery:
            for kind in kinds:
                for name in self._access.of(call.principal).visible(_LIST_OF[kind], upstreams):
                    nursery.start_soon(look, name, kind)
        return by_name, is_whole

    # Queries

    def judging(self, principal: Principal) -> Awaitable[list[str]] | None:
        """Return an awaitable that checks whether the query in a principal's view selects any item.

        None if that is known. Awaiting it returns a sentence for each part that selects no item, and raises
        BadNarrowing if no part selects any.
        """
        if NARROWED not in principal.view or self._judged.get(principal, 0.0) > trio.current_time():
            return None
        return self._judge(principal)

    async def _judge(self, principal: Principal) -> list[str]:
        await in_task()
        view, _, narrowing = principal.view.partition(NARROWED)
        globs = globs_in(narrowing)
        kinds = [kind for kind in KINDS if kind in globs]
        among = list(map(parse_glob, globs.get(UPSTREAMS, ())))
        call = Call(m.TOOLS_LIST, {}, {}, principal=principal.within(view))
        looked_at = [*kinds, TEMPLATES] if RESOURCES in kinds and TEMPLATES not in kinds else kinds
        parts = [(kind, glob) for kind in kinds for glob in globs[kind]]
        idle, sentences, is_whole = list[tuple[str, str]](), list[str](), False

        def find(names: Names) -> tuple[list[tuple[str, str]], list[str]]:
            idle = [part for part in parts if not self._selects(*part, names, view)]
            return idle, [self._about(*part, names, view) for part in idle]

        with trio.move_on_after(JUDGE_SECONDS):  # a server that is still starting may take longer
            names, have_all_answered = await self._look(call, looked_at, self._registry, connected=False)
            names = {
                name: listed
                for name, listed in names.items()
                if not among or any(matches(glob, name) for glob in among)
            }
            if have_all_answered:
                idle, sentences = await search(partial(find, names), names, self._searches)
                is_whole = True
        if idle and len(idle) == len(parts):
            raise BadNarrowing(f"the query selects nothing: {'; '.join(sentences)}")
        for sentence in sentences:
            log.warning("a part of a client's query selects nothing", problem=sentence, view=principal.view)
        if len(self._judged) >= JUDGED_LIMIT:
            self._judged.clear()
        self._judged[principal] = math.inf if is_whole else trio.current_time() + UNKNOWN_SECONDS
        return sentences

    def _selects(self, kind: str, glob: str, names: Names, view: str) -> bool:
        return glob == "*" or self._naming.is_listed(glob, [kind], (), names, self._naming.certain, view)

    def _about(self, kind: str, glob: str, names: Names, view: str) -> str:
        count = sum(len(listed.get(kind, ())) for listed in names.values())
        near = self._naming.nearest(glob, [kind], names, view)
        return f"none of {count} {kind} is `{glob}`" + (f"; did you mean `{near}`?" if near else "")
