"""What can be done to mcpmux over the admin listener.

| request | answer |
| --- | --- |
| `GET /api/control` | `key` for `X-Mcpmux-Key`, `actions`, `pending`: settings that wait for the next start |
| `POST /api/upstreams/{name}/{action}` | `{"upstream": …, "action": …}`; 404, 409 with `error` |
| `POST /api/reload` | `{"changed": {…}, "pending": […]}`; 422 with `problems` when the file is broken |

A POST carries a JSON object without members as `application/json`, which no form of a foreign page can send,
and the token or the key in a header (see `door`).
"""

from __future__ import annotations

from typing import Any

from mcpmux.errors import ConfigError
from mcpmux.protocol.envelope import decode_fields
from mcpmux.traffic.admin.control import ACTIONS, Control, NoSuchUpstream, NotPossible
from mcpmux.traffic.admin.route import BadQuestion, Route, Visit
from mcpmux.traffic.live.view import encode
from mcpmux.transports.http.message import Fields


class Actions:
    """Answers with `fields`. `key`: see `Door.key`."""

    def __init__(self, control: Control, key: str, fields: Fields) -> None:
        self._control = control
        self._key = key
        self._fields = fields
        self.routes: tuple[Route, ...] = (
            Route("/api/control", self._show),
            Route("/api/reload", self._reload, method="POST"),
            Route("/api/upstreams/{name}/{action}", self._act, method="POST"),
        )

    def __repr__(self) -> str:
        return f"<Actions {self._control!r}>"

    async def _send(self, visit: Visit, value: dict[str, Any], status: int = 200) -> None:
        await visit.reply.send(status, self._fields, encode(value))

    async def _show(self, visit: Visit) -> None:
        shown = {"key": self._key, "actions": list(ACTIONS), "pending": list(self._control.pending)}
        await self._send(visit, shown)

    async def _reload(self, visit: Visit) -> None:
        _check_body(visit)
        try:
            changed = await self._control.reload()
        except ConfigError as error:
            said = {"error": "the configuration is as it was", "problems": error.problems}
            await self._send(visit, said, 422)
            return
        await self._send(visit, {"changed": dict(changed), "pending": list(self._control.pending)})

    async def _act(self, visit: Visit) -> None:
        _check_body(visit)
        name, action = visit.path["name"], visit.path["action"]
        if action not in ACTIONS:
            await self._send(visit, {"error": f"{action} is none of {', '.join(ACTIONS)}"}, 404)
            return
        try:
            await self._control.act(action, name)
        except NoSuchUpstream as error:
            await self._send(visit, {"error": str(error)}, 404)
        except NotPossible as error:
            await self._send(visit, {"error": str(error)}, 409)
        else:
            await self._send(visit, {"upstream": name, "action": action})


def _check_body(visit: Visit) -> None:
    """Raises BadQuestion for what a form could send, and for members that nobody would look at."""
    content_type = visit.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise BadQuestion("send `Content-Type: application/json`")
    try:
        plain = not decode_fields(visit.request.body)
    except ValueError:
        plain = False
    if not plain:
        raise BadQuestion("send {} as the body, there is nothing more to say")
