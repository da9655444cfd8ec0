"""Start and stop mock servers in the inspector, which answer from selected exchanges.

| path | answer |
| --- | --- |
| `/api/mocks` | `mocks`: a `State` for each running one |
| `POST /api/mocks` | the `State` of a new one; 409 without answers, 413 for too much, 429 for too many |
| `POST /api/mocks/{number}/stop` | `{"stopped": …}`; 404 |

The body of the first is `{"filter": …}`, as for `/api/capture`; that of the second is
`{}`. A mock is what `mcpmux traffic mock` makes of such a capture: no value that is redacted there is in its
answers. It listens for HTTP on this machine only, and ends when mcpmux does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import count
from typing import Final

import msgspec
import trio
from attrs import define, field

from mcpmux.format import counts_text
from mcpmux.traffic.admin.route import BadRequest, HttpExchange, Nothing, Route, whole_number
from mcpmux.traffic.admin.selection import chosen_records, read_filter
from mcpmux.traffic.admin.view import LiveView
from mcpmux.traffic.reading.dialogue import Reading
from mcpmux.traffic.reading.filters import Filter
from mcpmux.traffic.record import Record
from mcpmux.traffic.replay.mock import CapturedAnswers, open_mock

MOCKS: Final = 8  # at once
MOCK_BYTES: Final = 64 * 2**20  # of captured messages for one
DRAIN_SECONDS: Final = 2.0  # for its last answers

ServeMock = Callable[..., Awaitable[None]]
"""Serves a Mock until an event is set; passes its address to a function, and reports when it listens."""


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """The filter for exchanges, see `/api/capture`."""

    filter: str = ""


class State(msgspec.Struct, frozen=True):
    """A running mock. `requests`: number that it can answer; `not_served`: why not the others, in words."""

    number: int
    url: str
    filter: str
    requests: int
    not_served: str


@define(eq=False)
class _Running:
    """`state`: None until it listens."""

    filter: str
    state: State | None = None
    stopping: trio.Event = field(factory=trio.Event)


class Mocks:
    """All running mocks, as tasks of `nursery`. `serve`: serves one."""

    def __init__(self, view: LiveView, serve: ServeMock, nursery: trio.Nursery) -> None:
        self._view, self._serve, self._nursery = view, serve, nursery
        self._running: dict[int, _Running] = {}
        self._numbers = count(1)

    @property
    def routes(self) -> Sequence[Route]:
        return (
            Route("/api/mocks", self._tell),
            Route("/api/mocks", self._start, method="POST"),
            Route("/api/mocks/{number}/stop", self._stop, method="POST"),
        )

    async def _tell(self, http: HttpExchange) -> None:
        states = (mock.state for mock in self._running.values())
        await http.send({"mocks": [state for state in states if state is not None]})

    async def _start(self, http: HttpExchange) -> None:
        order = http.body(Wanted)
        chosen = read_filter(order.filter)
        if len(self._running) >= MOCKS:
            raise BadRequest(f"{MOCKS} mocks are running already; stop one of them", 429)
        number, mock = next(self._numbers), _Running(order.filter)
        self._running[number] = mock
        try:
            answers = await self._answers(chosen)
            await self._nursery.start(self._run, number, mock, answers)
        except BaseException:
            self._running.pop(number, None)
            raise
        await http.send(mock.state)

    async def _answers(self, chosen: Filter) -> CapturedAnswers:
        records: list[Record] = []
        size = 0
        async with aclosing(chosen_records(self._view, chosen)) as source:
            async for record in source:
                records.append(record)
                size += len(record.message or b"")
                if size > MOCK_BYTES:
                    most = MOCK_BYTES // 2**20
                    raise BadRequest(f"these are more than {most} MB of messages; narrow the filter", 413)
        answers = await trio.to_thread.run_sync(_answers_in, records)
        if not answers.requests:
            reasons = counts_text(answers.unusable.items()) or "no client has asked anything in it"
            raise BadRequest(f"nothing here can be answered from: {reasons}", 409)
        return answers

    async def _run(
        self,
        number: int,
        mock: _Running,
        answers: CapturedAnswers,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        urls: list[str] = []
        try:
            async with open_mock(answers) as server, trio.open_nursery() as serving:
                await serving.start(self._serve, server, mock.stopping, urls.append)
                requests = sum(map(len, answers.requests.values()))
                left_out = counts_text(answers.unusable.items())
                mock.state = State(number, urls[0], mock.filter, requests, left_out)
                task_status.started()
                await mock.stopping.wait()
                server.close()
                serving.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS
        finally:
            self._running.pop(number, None)

    async def _stop(self, http: HttpExchange) -> None:
        http.body(Nothing)
        number = whole_number(http.path, "number", 1, 2**53, 0)
        mock = self._running.get(number)
        if mock is None or mock.state is None:
            raise BadRequest("there is no such mock that runs", 404)
        del self._running[number]
        mock.stopping.set()
        await http.send({"stopped": number})


def _answers_in(records: Sequence[Record]) -> CapturedAnswers:
    reading = Reading("client")
    for record in records:
        reading.add(record)
    return CapturedAnswers(reading.dialogues())
