"""Show held exchanges, let them go, and hold those that a filter selects.

| path | answer |
| --- | --- |
| `/api/held` | `held`: a HeldState for each, the oldest first; `order`: the HoldOrder in force |
| `POST /api/held` | the same, after the HoldOrder in the body is in force; an empty `filter` holds none |
| `POST /api/held/{key}` | `{"held": key}`; 404 for one that has gone, 422 with `error` for a bad verdict |

The body of the last is a verdict as interceptors give it (see `interceptors/`): `pass`, `refuse` with a
`reason`, or `change` with `params`, or with a `result` in the place of the server. Messages are not redacted:
a person decides about them, and a change goes on as sent here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec

from mcpmux.traffic.admin.route import BadRequest, HttpExchange, Route
from mcpmux.traffic.admin.selection import read_filter
from mcpmux.traffic.reading.filters import NAMES

PATH: Final = "/api/held"


class HeldState(msgspec.Struct, frozen=True):
    """A held exchange. `seconds`: until it ends as `at_timeout` says ("refuse" or "pass").

    `row`: in the list of exchanges, if it is there. `by`, `reason`: the interceptor, and why it holds.
    `message`: as an interceptor sees it. `schema`: of the arguments, of a tool that is known. `replica`: that
    holds it, None for the one that was asked.
    """

    key: str
    row: int | None
    by: str
    reason: str
    message: dict[str, Any]
    seconds: float
    at_timeout: str
    schema: dict[str, Any] | None = None
    replica: str | None = None


class HoldOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages to hold, besides those that interceptors hold, and for how long."""

    filter: str = ""
    on: Sequence[Literal["request", "result"]] = ("request",)
    seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 300.0
    at_timeout: Literal["pass", "refuse"] = "pass"


class HoldDecision(msgspec.Struct, frozen=True):
    """Why a verdict was not carried out, "" if it was. `is_gone`: the exchange is not held any more."""

    problem: str = ""
    is_gone: bool = False


class Desk(Protocol):
    """Held exchanges of one process, or of several. A process that does not answer is left out."""

    @property
    def order(self) -> HoldOrder:
        """The order in force."""

    async def read(self) -> list[HeldState]:
        """Return what is held."""

    async def follow(self, order: HoldOrder) -> list[HeldState]:
        """Put an order into force, and return what is held. Raises FilterError."""

    async def decide(self, key: str, verdict: Any) -> HoldDecision:
        """Let an exchange go on by a verdict."""


def held_routes(desk: Desk) -> tuple[Route, ...]:
    """Return routes for `serve_admin`."""

    async def show(http: HttpExchange) -> None:
        await http.send({"held": await desk.read(), "order": desk.order})

    async def order(http: HttpExchange) -> None:
        order = http.body(HoldOrder)
        read_filter(order.filter, NAMES)
        await http.send({"held": await desk.follow(order), "order": order})

    async def decide(http: HttpExchange) -> None:
        decision = await desk.decide(http.path["key"], http.body(object))
        if decision.problem:
            raise BadRequest(decision.problem, 404 if decision.is_gone else 422)
        await http.send({"held": http.path["key"]})

    return (
        Route(PATH, show),
        Route(PATH, order, method="POST"),
        Route(f"{PATH}/{{key}}", decide, method="POST"),
    )
