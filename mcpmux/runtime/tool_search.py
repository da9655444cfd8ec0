"""Serve views whose tools are searched: `find_tools` and `call_tool` replace the list of tools.

Promises: a search finds what a list of the view would show now, under the same names; a call goes the way of
a direct call, and so do its notifications and its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

import trio

from mcpmux.errors import RpcError
from mcpmux.lru import Lru
from mcpmux.mux.report import LEFT_OUT
from mcpmux.mux.search import (
    CALL_TOOL,
    FIND_TOOLS,
    SHOWN,
    SHOWN_WITH_TASKS,
    BadQuestion,
    Index,
    is_for_models,
    read_call,
    read_question,
)
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, Call, Exchange, Notify
from mcpmux.protocol.codes import INVALID_PARAMS
from mcpmux.protocol.envelope import EMPTY_OBJECT, decode_list, encode, members_of, raw, value_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.access_control import AccessControl
from mcpmux.runtime.merger import walk_pages
from mcpmux.transports.inline import in_task

INDEXES_KEPT: Final = 16  # of lists of tools, which differ between principals with other rights
INDEXES_BYTES: Final = 128 * 2**20  # of them
INDEX_SHARE: Final = 4  # memory of an indexed list, in multiples of its JSON, about
INDEXED_BYTES: Final = 64 * 1024  # of tools that are indexed at once, which takes some ten milliseconds
GIVEN: Final = ("name", "title", "description", "inputSchema", "outputSchema", "annotations", "execution")
"""The members of a tool in the result of a search."""

_ARGUMENTS: Final = "arguments"


class ToolSearch:
    """The two tools of views whose tools are searched."""

    def __init__(
        self,
        access: AccessControl,
        exchange: Exchange,
        list_tools: Exchange,
        sign: Callable[[Fields], Fields],
    ) -> None:
        """`exchange` answers calls of a view without search. `list_tools` returns a page of the list.

        `sign` marks results as those of mcpmux itself.
        """
        self._access = access
        self._exchange = exchange
        self._list_tools = list_tools
        self._sign = sign
        # By digests of the tools as they were listed.
        self._indexes: Lru[bytes, tuple[list[Any], Index]] = Lru(INDEXES_KEPT, INDEXES_BYTES)

    def is_about(self, call: Call) -> bool:
        """Return whether a call is for `exchange`: a list or call of tools in a view that is searched."""
        return call.method in (m.TOOLS_LIST, m.TOOLS_CALL) and self._access.of(call.principal).is_searched

    def meant(self, call: Call) -> Call:
        """Return the call of a tool that a `call_tool` contains; any other call unchanged."""
        if not self.is_about(call) or call.text("name") != CALL_TOOL:
            return call
        try:
            return self._unpacked(call)
        except BadQuestion:
            return call

    async def exchange(self, call: Call, notify: Notify) -> Fields:
        """Answer the list of a view that is searched, or a call in it. Raises RpcError."""
        if call.method == m.TOOLS_LIST:
            if bytes(call.params.get("cursor", b"null")) != b"null":
                raise RpcError(INVALID_PARAMS, "Invalid cursor: this list has one page")
            listed = {"tools": SHOWN_WITH_TASKS if call.legacy else SHOWN}
            hints = {
                "ttlMs": raw(0),
                "cacheScope": raw("private"),
            }  # another configuration may end the search
            return self._sign({"resultType": raw("complete"), **listed, **hints})
        name = call.text("name")
        try:
            if name == FIND_TOOLS:
                return self._sign(await self._find(call))
            call = self._unpacked(call) if name == CALL_TOOL else call
        except BadQuestion as mistake:
            return self._sign({**_told(str(mistake)), "isError": raw(True)})
        return await self._exchange(call, notify)

    def _unpacked(self, call: Call) -> Call:
        params = {key: value for key, value in call.params.items() if key != _ARGUMENTS}
        return call.with_params({**params, **read_call(call.params.get(_ARGUMENTS, EMPTY_OBJECT))})

    async def _find(self, call: Call) -> Fields:
        query, limit = read_question(call.params.get(_ARGUMENTS, EMPTY_OBJECT))
        pages, missing = [], {}

        def see(_call: Call, page: Fields) -> None:
            pages.append(bytes(page["tools"]))
            missing.update(members_of(members_of(page.get(META)).get(LEFT_OUT)))

        await walk_pages(call.on_behalf(m.TOOLS_LIST, {}), self._list_tools, see)
        tools, index = await self._index(pages)
        matches = [tools[place] for place in index.find(query, limit)]
        answer: dict[str, Any] = {"tools": matches}
        if not matches:
            answer["hint"] = (
                f"None of {len(tools)} tools has one of these words. Try others, in English if you can."
            )
        if missing:
            answer["notSearched"] = missing
        result = {**_told(encode(answer).decode()), "structuredContent": raw(answer)}
        return {**result, META: raw({LEFT_OUT: missing})} if missing else result

    async def _index(self, pages: list[bytes]) -> tuple[list[Any], Index]:
        """Return (all tools, their index), made anew when the list has changed."""
        # By the content: the list itself may be cached or not, and one principal's may be like another's.
        key = sha256(b"\n".join(pages)).digest()
        indexed = self._indexes.get(key)
        if indexed is None:
            indexed = tools, index = list[Any](), Index()
            await in_task()
            for page in pages:
                size = 0
                for tool in filter(is_for_models, decode_list(page)):
                    values: dict[str, Any] = {key: value_of(tool[key]) for key in GIVEN if key in tool}
                    # Without members that cannot be decoded, such as numbers that are too large.
                    tools.append({key: value for key, value in values.items() if value is not None})
                    size += sum(map(len, tool.values()))
                    if size > INDEXED_BYTES:
                        index.add(tools[len(index) :])
                        # Indexing a long list takes long enough for other tasks to notice.
                        await trio.lowlevel.checkpoint()
                        size = 0
                index.add(tools[len(index) :])
            self._indexes.keep(key, indexed, INDEX_SHARE * sum(map(len, pages)))
        return indexed


def _told(text: str) -> Fields:
    return {"resultType": raw("complete"), "content": raw([{"type": "text", "text": text}])}
