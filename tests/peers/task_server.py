"""A scripted server that makes tasks, in the way of its era, and works on them on command."""

from __future__ import annotations

from typing import Any

import trio

from tests.peers.revision import LEGACY, Json
from tests.peers.server import RpcFailure, ScriptedServer

EXTENSION = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
WISH: Json = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "which?", "requestedSchema": {"type": "object", "properties": {}}},
}
RESULT: Json = {"content": [{"type": "resource_link", "name": "r", "uri": "file:///r"}], "isError": False}
CAPABILITIES: dict[str, Json] = {
    LEGACY: {"tools": {}, "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}},
    "2026-07-28": {"tools": {}, "extensions": {EXTENSION: {}}},
}


class TaskServer(ScriptedServer):
    """Tools: `must` (only as a task), `may`, `never`. Task ids are `t1`, `t2`, …

    `demands`: a modern server that serves `must` only to clients of the extension.
    """

    def __init__(self, revision: str = LEGACY) -> None:
        tools = [
            {"name": name, "inputSchema": {"type": "object"}}
            | ({"execution": {"taskSupport": support}} if revision == LEGACY else {})
            for name, support in (("must", "required"), ("may", "optional"), ("never", "forbidden"))
        ]
        super().__init__(revision, tools=tools, capabilities=CAPABILITIES[revision])
        self.tasks: dict[str, Json] = {}
        self.outcomes: dict[str, Any] = {}
        self.answers: list[Json] = []
        self.tokens: dict[str, Any] = {}
        self._changed = trio.Event()
        self._questions: dict[str, str] = {}

    # The script's side

    def set(self, task_id: str, status: str, outcome: Any = None) -> None:
        """Set the status of a task; `outcome`: its result, or an RpcFailure."""
        self.tasks[task_id]["status"] = status
        self.outcomes[task_id] = outcome
        self._changed.set()
        self._changed = trio.Event()

    async def tell(self, task_id: str) -> None:
        """Tell the status of a task."""
        await self.send({"method": "notifications/tasks/status", "params": self.tasks[task_id]})

    def calls_of(self, method: str) -> list[Json]:
        """Return the parameters of every request of that method that came."""
        return [message["params"] for message in self.seen if message.get("method") == method]

    # The wire's side

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method == "tools/call":
            return self._call(params, message)
        if method.startswith("tasks/"):
            self.oracle.check_from_client(message)
            if method == "tasks/list":
                return {"tasks": list(self.tasks.values())}
            if params["taskId"] not in self.tasks:
                raise RpcFailure(-32602, "Task not found")
            return await getattr(self, "_" + method.removeprefix("tasks/"))(params["taskId"], params)
        return await super().handle(method, params, message)

    def _call(self, params: Json, message: Json) -> Json:
        self.oracle.check_from_client(message)
        if self.modern:
            declared = params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
            as_task = EXTENSION in declared.get("extensions", {})
        else:
            as_task = "task" in params
        if params["name"] == "must" and not as_task:
            needed: Json = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
            raise (
                RpcFailure(-32021, "a task only", needed)
                if self.modern
                else RpcFailure(-32601, "a task only")
            )
        if not as_task or params["name"] == "never":
            return {**RESULT, **({"resultType": "complete"} if self.modern else {})}
        task_id = f"t{len(self.tasks) + 1}"
        life, pace = ("ttlMs", "pollIntervalMs") if self.modern else ("ttl", "pollInterval")
        now = "2026-01-01T00:00:00Z"
        task = {"taskId": task_id, "status": "working", "createdAt": now, "lastUpdatedAt": now}
        self.tasks[task_id] = {**task, life: 60000, pace: 500}
        self.tokens[task_id] = params.get("_meta", {}).get("progressToken")
        if self.modern:
            return {"resultType": "task", **self.tasks[task_id]}
        return {
            "task": self.tasks[task_id],
            "_meta": {"io.modelcontextprotocol/model-immediate-response": "ok"},
        }

    async def _get(self, task_id: str, _params: Json) -> Json:
        task = dict(self.tasks[task_id])
        if not self.modern:
            return task
        if task["status"] == "completed":
            task["result"] = self.outcomes[task_id]
        elif task["status"] == "failed":
            task["error"] = self.outcomes[task_id].error
        elif task["status"] == "input_required":
            task["inputRequests"] = {"q": WISH}
        return {"resultType": "complete", **task}

    async def _cancel(self, task_id: str, _params: Json) -> Json:
        self.set(task_id, "cancelled")
        return {"resultType": "complete"} if self.modern else self.tasks[task_id]

    async def _update(self, task_id: str, params: Json) -> Json:
        self.answers += params["inputResponses"].values()
        self.set(task_id, "completed", RESULT)
        return {"resultType": "complete"}

    async def _result(self, task_id: str, _params: Json) -> Json:
        while (status := self.tasks[task_id]["status"]) not in ("completed", "failed", "cancelled"):
            if status == "input_required" and task_id not in self._questions:
                self._questions[task_id] = f"ask-{task_id}"
                related = {"_meta": {RELATED: {"taskId": task_id}}}
                params = {**WISH["params"], **related}
                await self.send({"id": f"ask-{task_id}", "method": WISH["method"], "params": params})
            await self._changed.wait()
        outcome = self.outcomes[task_id]
        if isinstance(outcome, RpcFailure):
            raise outcome
        return {**(outcome or {"content": []}), "_meta": {RELATED: {"taskId": task_id}}}

    def take_answer(self, message: Json) -> None:
        self.answers.append(message["result"] if "result" in message else message["error"])
        if "result" in message:
            self.set(message["id"].removeprefix("ask-"), "completed", RESULT)
