"""What a client hears when there is too much to do: nothing was done, and the same may be asked again.

`error.data` is `{"retryAfterSeconds": …, "limit": …}`, the limit being the setting that was reached. Over
HTTP a modern client has the same as status 429 (too much of its own) or 503, with Retry-After in seconds.

Source: RFC 9110 sections 10.2.3 and 15.6.4, RFC 6585 section 4.
"""

from __future__ import annotations

from typing import Final

from mcpmux.errors import RpcError
from mcpmux.protocol.codes import BUSY

RETRY_SECONDS = 1  # what is in the way is an exchange that runs, and few run longer
TOO_MANY_REQUESTS: Final = 429
UNAVAILABLE: Final = 503
IN_FLIGHT: Final = "limits.max_in_flight"  # the setting


class Busy(RpcError):
    """-31003. `status` is what HTTP says it with."""

    def __init__(self, sentence: str, limit: str, *, own: bool = False, upstream: str | None = None) -> None:
        """`limit`: the setting that was reached; `own`: it is one on what a single client asks."""
        data: dict[str, object] = {"retryAfterSeconds": RETRY_SECONDS, "limit": limit}
        if upstream is not None:
            data["upstream"] = upstream
        super().__init__(BUSY, f"Busy: {sentence}; try again later", data)
        self.status = TOO_MANY_REQUESTS if own else UNAVAILABLE
