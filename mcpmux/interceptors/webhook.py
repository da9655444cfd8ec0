"""Interceptors behind a URL: a POST of the message as JSON, answered with the verdict as JSON.

    Mcpmux-Signature: t=1790000000,v1=5257a869…

`v1` is HMAC-SHA256, with the configured secret, of the text of `t`, a dot, and the body; `t` is the time in
seconds since 1970, so that a receiver can refuse what is old. Status 204, or an empty body, lets the message
pass; each other status than 200 is a failure.

Promises: the answer is bounded, no redirect is followed, and no connection goes to the metadata service of a
cloud, or without TLS to an address outside of private networks.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Final

import trio

from mcpmux.auth.discovery import METADATA, PUBLIC, kind_of, resolve
from mcpmux.config import Secret
from mcpmux.errors import RemoteProtocolError
from mcpmux.mux.intercept import PASS, InterceptedMessage, Verdict, read_verdict
from mcpmux.protocol.envelope import decode_any, encode
from mcpmux.transports.http.message import HeaderFields
from mcpmux.transports.http.route import HttpOrigin, choose_proxy

ANSWER_BYTES: Final = 8 * 2**20
AT_ONCE_LIMIT: Final = 32  # requests to one webhook; each takes a connection
SIGNATURE: Final = "Mcpmux-Signature"
_FIELDS: Final[HeaderFields] = (("Content-Type", "application/json"), ("Accept", "application/json"))


class Webhook:
    """One webhook. `wall` returns seconds since 1970."""

    def __init__(self, url: str, secret: Secret | None, wall: Callable[[], float]) -> None:
        self._url, self._origin = url, HttpOrigin.from_url(url)
        self._secret, self._wall = secret, wall
        self._limiter = trio.CapacityLimiter(AT_ONCE_LIMIT)

    async def judge(self, message: InterceptedMessage) -> Verdict:
        """Return the webhook's verdict. Raises BadVerdict, RemoteProtocolError and TransportError."""
        body = encode(message.as_json())
        async with self._limiter:
            # Not at the top: httpx is large.
            from mcpmux.transports.web_client import WebClient

            proxy = choose_proxy(self._origin, None)
            client = WebClient(proxy=proxy, find=self._find, body_bytes=ANSWER_BYTES)
            fields = _FIELDS
            if self._secret is not None:
                # Signed after the wait for a connection: a receiver refuses what is old.
                now = str(int(self._wall()))
                tag = hmac.new(self._secret.reveal().encode(), f"{now}.".encode() + body, hashlib.sha256)
                fields = (*_FIELDS, (SIGNATURE, f"t={now},v1={tag.hexdigest()}"))
            answer = await client.ask("POST", self._url, fields, body)
        if answer.status == 204 or (answer.status == 200 and not answer.body):
            return PASS
        if answer.status != 200:
            raise RemoteProtocolError(f"{self._origin.authority} answered with status {answer.status}")
        return read_verdict(decode_any(answer.body))

    async def _find(self, host: str, port: int) -> list[str]:
        addresses = await resolve(host, port)
        kinds = set(map(kind_of, addresses))
        if METADATA in kinds or (PUBLIC in kinds and not self._origin.secure):
            raise RemoteProtocolError(f"{self._origin.authority} is at an address that is not for webhooks")
        return [str(address) for address in addresses]
