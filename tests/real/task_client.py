"""A task as the Python SDK 1.x makes, polls and fetches it. Run by the SDK's Python.

    task_client.py http://127.0.0.1:8000/mcp TOOL URL_TOOL

Prints one JSON document: `capabilities` (of tasks), `made`, `listed` (task ids), `statuses` (as polled),
`told` (statuses that were notified), `questions` (parameters of the server's requests), `content` of the
result, `demand` (the error of URL_TOOL, called so that it wants a URL visited first), `other` (the answers to
a second session about the task).
"""

from __future__ import annotations

import json
import sys

import anyio
from mcp import ClientSession, McpError, types
from mcp.client.streamable_http import streamable_http_client

SECONDS = 120


def raw(model):
    return model.model_dump(by_alias=True, exclude_none=True, mode="json")


class Client:
    def __init__(self):
        self.questions = []
        self.told = []

    async def elicit(self, _context, params):
        self.questions.append(raw(params))
        return types.ElicitResult(action="accept", content={"interpretation": "snake"})

    async def hear(self, message):
        if isinstance(getattr(message, "root", None), types.TaskStatusNotification):
            self.told.append((message.root.params.taskId, message.root.params.status))


async def see(url, tool, url_tool):
    client = Client()
    async with (
        streamable_http_client(url) as (receiving, sending, _),
        ClientSession(
            receiving, sending, elicitation_callback=client.elicit, message_handler=client.hear
        ) as session,
    ):
        seen = {"capabilities": raw((await session.initialize()).capabilities).get("tasks")}
        tasks = session.experimental
        made = await tasks.call_tool_as_task(tool, {"topic": "python", "ambiguous": True}, ttl=60000)
        task_id = made.task.taskId
        seen["made"] = task_id
        seen["listed"] = [task.taskId for task in (await tasks.list_tasks()).tasks]
        seen["other"] = await see_as_other(url, task_id)
        seen["statuses"] = statuses = []
        async for status in tasks.poll_task(task_id):
            if status.status not in statuses:
                statuses.append(status.status)
            if status.status == "input_required":
                break
        seen["content"] = raw(await tasks.get_task_result(task_id, types.CallToolResult))["content"]
        statuses.append((await tasks.get_task(task_id)).status)
        try:
            arguments = {"url": "https://example.com/a", "errorPath": True}
            await session.call_tool(url_tool, arguments)
        except McpError as error:
            seen["demand"] = raw(error.error)
        return {**seen, "questions": client.questions, "told": client.told}


async def see_as_other(url, task_id):
    async with (
        streamable_http_client(url) as (receiving, sending, _),
        ClientSession(receiving, sending) as session,
    ):
        await session.initialize()
        listed = (await session.experimental.list_tasks()).tasks
        try:
            await session.experimental.get_task(task_id)
        except McpError as error:
            return {"listed": len(listed), **raw(error.error)}
        return {}


async def main():
    with anyio.fail_after(SECONDS):
        print(json.dumps(await see(*sys.argv[1:])))


anyio.run(main)
