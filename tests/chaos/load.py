"""The clients' requests during faults of servers, and the verdict on every exchange."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import trio

from tests.chaos.clients import LoadClient
from tests.peers.revision import Json

LEFT_OUT = "dev.mcpmux/upstreams"
SHARED = "note:shared"  # what everybody subscribes to
NOTES = 5  # in the list of each server
TICK_SECONDS = 0.05


@dataclass
class Verdicts:
    """The outcomes of all exchanges. `wrong` has to stay empty."""

    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{count} × {error}" for error, count in self.errors.most_common()]
        return "\n".join([str(dict(self.outcomes)), *lines])


class Clock:
    """Measures the delay of this event loop, by which deadlines are extended. `run` has to run."""

    def __init__(self) -> None:
        self.late = 0.0  # the worst so far

    async def run(self) -> None:
        while True:
            due = trio.current_time() + TICK_SECONDS
            await trio.sleep_until(due)
            self.late = max(self.late, trio.current_time() - due)


class Load:
    """Clients that make random requests. `calm`: servers without faults, of which no error is forgiven.

    `seconds`: until every exchange has to have its answer.
    """

    def __init__(self, names: list[str], calm: set[str], seconds: float, seed: str) -> None:
        self._names, self._calm, self._seconds = names, calm, seconds
        self._seed = seed
        self.verdicts = Verdicts()
        self.clock = Clock()
        self._next = 0

    async def run_for(self, clients: list[LoadClient], seconds: float, lanes: int) -> None:
        """Load for some seconds, `lanes` exchanges of each client at a time; every one is waited for."""
        end = trio.current_time() + seconds
        async with trio.open_nursery() as clock:
            clock.start_soon(self.clock.run)
            async with trio.open_nursery() as nursery:
                for number, client in enumerate(clients):
                    for lane in range(lanes):
                        chance = random.Random(f"{self._seed} {number} {lane}")
                        nursery.start_soon(self._ask_until, end, client, chance)
            clock.cancel_scope.cancel()

    async def _ask_until(self, end: float, client: LoadClient, chance: random.Random) -> None:
        while trio.current_time() < end:
            await trio.sleep(chance.uniform(0, 0.03))
            await self.ask_once(client, chance, chance.choice(self._names))

    async def ask_once(self, client: LoadClient, chance: random.Random, name: str) -> None:
        """Make one exchange, and judge it."""
        kind = chance.choices(("read", "echo", "list", "give up"), (8, 6, 2, 2))[0]
        self._next += 1
        text = f"{number_of(client)}-{self._next}"
        if kind == "list":
            await self._judge(kind, client, "resources/list", {}, name, "")
        elif kind == "echo":
            arguments = {"text": text, "ms": chance.choice((0, 0, 5, 50))}
            params = {"name": f"{name}__echo", "arguments": arguments}
            await self._judge(kind, client, "tools/call", params, name, f"{name} echoes {text}")
        elif kind == "read":
            params = {"uri": f"{name}+note:{text}"}
            await self._judge(kind, client, "resources/read", params, name, f"{name} reads note:{text}")
        else:
            arguments = {"text": text, "ms": 200}
            with trio.move_on_after(chance.uniform(0, 0.1)):
                await client.ask("tools/call", {"name": f"{name}__echo", "arguments": arguments})
            self.verdicts.outcomes["given up"] += 1

    async def _judge(
        self, kind: str, client: LoadClient, method: str, params: Json, name: str, text: str
    ) -> None:
        began = trio.current_time()
        what = f"{client!r} {method} {params}"
        answer = None
        try:
            with trio.move_on_after(self._seconds + 30):
                answer = await client.ask(method, params)
        except Exception as error:
            self._note_wrong(f"{what}: no answer: {error!r}")
            return
        took = trio.current_time() - began
        if took > self._seconds + 2 * self.clock.late:
            self._note_wrong(f"{what}: {took:.2f} s until {answer}")
        if answer is None:
            self._note_wrong(f"{what}: no answer at all")
        elif "error" in answer:
            self._judge_error(what, answer["error"], name)
        elif kind == "list":
            self._judge_list(what, answer["result"])
        else:
            contents = answer["result"].get("contents") or answer["result"]["content"]
            self._note("answered", contents[0]["text"] == text, f"{what}: {answer}")

    def _judge_error(self, what: str, error: Json, name: str) -> None:
        clear = name in error["message"] and error.get("data", {}).get("upstream") == name
        self.verdicts.errors[f"{error['code']} {error['message'].partition('; tried again')[0]}"] += 1
        self._note("error", clear and name not in self._calm, f"{what}: {error}")

    def _judge_list(self, what: str, result: Json) -> None:
        reasons = result.get("_meta", {}).get(LEFT_OUT, {})
        left_out = reasons.keys()
        listed = Counter(item["uri"].partition("+")[0] for item in result["resources"])
        fits = all(listed[name] == (0 if name in left_out else NOTES) for name in self._names)
        fits = fits and not left_out & self._calm
        otherwise = f"{what}: {listed} without {reasons}; at most {self.clock.late:.2f} s late so far"
        self._note("list, some left out" if left_out else "list", fits, otherwise)

    def _note(self, outcome: str, fits: bool, otherwise: str) -> None:
        if fits:
            self.verdicts.outcomes[outcome] += 1
        else:
            self._note_wrong(otherwise)

    def _note_wrong(self, what: str) -> None:
        self.verdicts.wrong.append(what)


def number_of(client: LoadClient) -> str:
    """Return a number that tells clients apart."""
    return f"{id(client):x}"
