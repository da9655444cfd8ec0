"""A batch over Streamable HTTP: its members side by side, one answer for all of them.

Promises: what is said before the answer (progress, questions) makes it an event stream, with the array of
answers as its last event; otherwise it is a JSON body. Members end with their connection: unlike a single
tool call a batch cannot be resumed. Source: "Sending Messages to the Server" in "Transports", 2025-03-26.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from mcpmux.errors import RpcError
from mcpmux.protocol.envelope import BadMessage, Message, Notification, Request, encode_error
from mcpmux.protocol.framing import BatchAnswer
from mcpmux.runtime.downstreams.http_answer import JSON, streaming
from mcpmux.runtime.downstreams.http_session import HttpSession
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.inline import in_task
from mcpmux.transports.sse import encode_event


async def answer_batch(
    session: HttpSession, members: Sequence[Message | BadMessage], reply: HttpReply, *, streams: bool
) -> None:
    """Take every member; answer with status 202 when none of them wants an answer."""
    await in_task()
    batch = BatchAnswer()
    turn = trio.Lock()
    say_now = streaming(reply, streams=streams)

    async def say(message: bytes) -> None:
        async with turn:  # the members share one stream
            await say_now(message)

    async def work(request: Request, scope: trio.CancelScope) -> None:
        batch.settle(await session.work(request, scope, say))

    async with trio.open_nursery() as nursery:
        for member in members:
            if isinstance(member, Request):
                batch.expect()
                try:
                    scope = session.admit(member)
                except RpcError as refusal:
                    batch.settle(encode_error(member.id, refusal))
                else:
                    nursery.start_soon(work, member, scope, name=f"exchange {member.method}")
            elif isinstance(member, BadMessage):
                batch.expect()
                batch.settle(encode_error(member.id, member))
            elif isinstance(member, Notification):
                session.take_notification(member)
            else:
                session.take_answer(member)
    answers = batch.settle()
    if reply.started:
        await reply.finish(encode_event(answers) if answers is not None else b"")
    elif answers is not None:
        await reply.send(200, JSON, answers)
    else:
        await reply.send(202, ())
