"""The status of one upstream: its state, and the errors that explain it to people.

State

    connecting --connected--> ready --lost--> down (or crash-loop) --pause over--> connecting
    connecting --failed-----> down (or crash-loop)
    ready --ended with status 0, after an answer--> resting, shown as ready --needed--> connecting
    ready --breaker opens--> failing --breaker closes--> ready
    any --hold--> draining (no new exchange; those in flight go on), drained --release--> as before

Promises: every error names the upstream, its state, and when to try again. `supervision` and `health` change
the state; refuses to know how the upstream is connected and asked.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import trio

from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.errors import MORE, RpcError
from mcpmux.mux.breaker import Breaker, Comeback
from mcpmux.protocol import method as m
from mcpmux.protocol.codes import UPSTREAM_TIMEOUT, UPSTREAM_UNAVAILABLE
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.upstreams.connection import Connection


class UpstreamStatus:
    """The status of one upstream.

    `name`: the configured one. `connection`: set while it is ready or failing. `reason`: why it is not, in
    words; `quoted`: the server's words about that, for the operator. `last_error`: the last failure, with
    them. `held`: why it gets no exchange any more, None while it does. `in_flight`: exchanges without an
    answer so far. `retry_at`: trio's time of the next attempt to connect. `settled`: set unless calls are to
    wait for a connection. `needed`: exists while it rests; set, it starts it. `attempts` counts
    attempts to connect, `connects` those that succeeded. `output`: the last lines of its process, also after
    its end.
    """

    def __init__(self, config: UpstreamConfig) -> None:
        self.config = config
        self.name = config.name
        self.connection: Connection | None = None
        self.reason, self.quoted = "it is still starting", ""
        self.last_error: str | None = None
        self.since = trio.current_time()  # when the present `state` began
        self.held: str | None = None
        self.in_flight = 0
        self.breaker = Breaker()
        self.comeback = Comeback()
        self.retry_at: float | None = None
        self.settled = trio.Event()
        self.needed: trio.Event | None = None
        self.attempts = 0
        self.connects = 0
        self.connect_seconds: float | None = None
        self.output: Collection[str] = ()

    @property
    def state(self) -> str:
        """The state, see above; `draining` or `drained` while it gets no exchange."""
        if self.held is not None:
            return "draining" if self.in_flight else "drained"
        if self.connection is not None:
            return "failing" if self.breaker.blocks else "ready"
        if self.needed is not None:
            return "ready"
        if not self.settled.is_set():
            return "connecting"
        return "crash-loop" if self.comeback.looping else "down"

    @property
    def restarts(self) -> int:
        """The number of attempts to connect after the first one, also of those that failed."""
        return max(0, self.attempts - 1)

    @property
    def retry_seconds(self) -> float | None:
        """The seconds until the next attempt to connect, or the next probe; None when none is due."""
        at = self.breaker.retry_at if self.connection is not None else self.retry_at
        return max(0.0, at - trio.current_time()) if at is not None else None

    @property
    def facts(self) -> ServerFacts | None:
        """The server's facts while it is connected, else None."""
        return self.connection.facts if self.connection is not None else None

    @property
    def trouble(self) -> str:
        """The reason why it is not connected, for clients."""
        return f"{self.reason}{MORE}" if self.quoted else self.reason

    @property
    def trouble_in_full(self) -> str:
        """The reason why it is not connected, with the server's words, for the operator."""
        return f"{self.reason}{self.quoted}"

    def explain(self, reason: str, quoted: str = "") -> None:
        """Set the reason why it is not connected. `quoted`: see McpmuxError."""
        self.reason, self.quoted = reason, quoted

    def turn(self) -> None:
        """Note that the state has changed."""
        self.since = trio.current_time()

    def check_breaker(self) -> None:
        """Raise RpcError while the breaker blocks calls."""
        if self.connection is not None and self.breaker.blocks:
            raise self.absent("does not answer any more", when_again(self.retry_seconds))

    def late(
        self, method: str, seconds: float, *, exhausted: bool = False, unanswered: tuple[str, ...] = ()
    ) -> RpcError:
        """Return the error of a request that got no answer in time, with the setting that allows more time.

        `exhausted`: progress had renewed the deadline up to its maximum. `unanswered`: methods of questions
        to the client that were open then.
        """
        config, setting = self.config, "request_timeout"
        if method == m.TOOLS_CALL or method in config.timeouts:
            setting = f'timeouts."{method}"'
        if method in m.PAGED and seconds == config.list_timeout:
            setting = "list_timeout"
        what = f"did not answer {method} within {seconds:g} s"
        if unanswered:
            questions = ", ".join(unanswered)
            what = f"got no answer to {questions} from the client within the {seconds:g} s of {method}"
        if exhausted:
            seconds, setting = max(seconds, config.max_request_timeout), "max_request_timeout"
            what = f"did not finish {method} within {seconds:g} s, progress or not"
        return self.error(UPSTREAM_TIMEOUT, f"{what}; to allow more, raise `upstreams.{self.name}.{setting}`")

    def absent(self, what: str, again: str = "") -> RpcError:
        """Return the error of a request while it is not connected. `again`: see `when_again`."""
        return self.error(UPSTREAM_UNAVAILABLE, f"{what}: {self.trouble}{again}", None, self.quoted)

    def error(self, code: int, what: str, wish: float | None = None, quoted: str = "") -> RpcError:
        """Return an error that names this upstream.

        `what`: the rest of the sentence. `wish`: seconds after which the server asks to be tried again.
        `quoted`: see McpmuxError.
        """
        data: dict[str, object] = {"upstream": self.name, "state": self.state}
        seconds = wish if wish is not None else self.retry_seconds
        if seconds is not None:
            data["retryAfterSeconds"] = math.ceil(seconds)
        return RpcError(code, f"Upstream {self.name!r} {what}", data).quoting(quoted)


def when_again(seconds: float | None) -> str:
    """Return the end of a sentence with the time of the next attempt; "" if there is none."""
    return f"; next try in {seconds:.3g} s" if seconds else ""
