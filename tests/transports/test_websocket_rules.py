"""Forbidden frames of RFC 6455, and any others: each ends with one goodbye of the right code.

A model of a few lines predicts the reaction to those frames.
"""

from __future__ import annotations

import base64
import codecs
import hashlib
import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import memory_stream_pair

from mcpmux.errors import TransportClosed
from mcpmux.transports.stream import PatientStream
from mcpmux.transports.websocket import WebSocketStream, shake_hands
from tests.examples import examples
from tests.peers.raw_websocket import BINARY, CLOSE, MASK, PING, PONG, TEXT, RawClient
from tests.transports.test_frame_writer import frames_in
from tests.transports.test_websocket_server import LIMIT, Echo, connect, open_client

CONTINUATION = 0
NORMAL, NO_TEXT, TOO_BIG = 1000, 1003, 1009
NO_CODE = 0  # a close frame without one
NO_GOODBYE = -1  # a peer that breaks the rules is just disconnected


class Frame(NamedTuple):
    """One frame, right or wrong. `size` is what its head says instead of the truth: (form, number)."""

    opcode: int
    payload: bytes = b""
    fin: bool = True
    reserved: int = 0
    masked: bool = True
    size: tuple[str, int] | None = None

    def encode(self) -> bytes:
        first = self.opcode | self.reserved << 4 | (0x80 if self.fin else 0)
        form, number = self.size or self._honest()
        mask_bit = 0x80 if self.masked else 0
        marker = {"B": number, "H": 126, "Q": 127}[form]
        head = struct.pack("!BB", first, mask_bit | marker)
        if form != "B":
            head += struct.pack("!" + form, number)
        if not self.masked:
            return head + self.payload
        return head + MASK + bytes(byte ^ MASK[place % 4] for place, byte in enumerate(self.payload))

    def _honest(self) -> tuple[str, int]:
        count = len(self.payload)
        return ("B" if count < 126 else "H" if count < 2**16 else "Q", count)


def close(code: int, reason: bytes = b"") -> Frame:
    return Frame(CLOSE, struct.pack("!H", code) + reason)


class Heard(NamedTuple):
    """The messages that are taken, and with which codes it then ends, one of them; none: it goes on."""

    messages: list[bytes]
    codes: set[int]


def model(frames: Sequence[Frame]) -> Heard:
    """Return the expected reaction of a server to them."""
    messages: list[bytes] = []
    decoder = None
    message = b""
    for frame in frames:
        wrong = {NO_GOODBYE} if breaks_a_rule(frame, decoder is not None) else set()
        if frame.opcode == BINARY:
            wrong.add(NO_TEXT)
        if frame.opcode < CLOSE and len(message) + len(frame.payload) > LIMIT:
            wrong.add(TOO_BIG)
        if frame.opcode in (TEXT, CONTINUATION) and not wrong & {NO_GOODBYE}:
            decoder = decoder or codecs.getincrementaldecoder("utf-8")()
            message += frame.payload
            try:
                decoder.decode(frame.payload, frame.fin)
            except UnicodeDecodeError:
                wrong.add(NO_GOODBYE)
        if wrong:
            return Heard(messages, wrong)
        if frame.opcode == CLOSE:
            return Heard(messages, {answer_to(frame.payload)})
        if frame.opcode in (TEXT, CONTINUATION) and frame.fin:
            messages.append(message)
            decoder, message = None, b""
    return Heard(messages, set())


def breaks_a_rule(frame: Frame, inside: bool) -> bool:
    control = frame.opcode >= 8
    return bool(
        frame.reserved
        or not frame.masked
        or frame.opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG)
        or (control and (not frame.fin or len(frame.payload) > 125))
        or (not control and inside != (frame.opcode == CONTINUATION))
    )


def answer_to(payload: bytes) -> int:
    if not payload:
        return NO_CODE
    if len(payload) == 1:
        return NO_GOODBYE
    (code,) = struct.unpack("!H", payload[:2])
    if not (code in {1000, 1001, 1002, 1003, *range(1007, 1014)} or 3000 <= code <= 4999):
        return NO_GOODBYE
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        return NO_GOODBYE
    return code


async def send(stream: trio.abc.SendStream, data: bytes, cuts: Sequence[int]) -> None:
    """Send in pieces; the peer may close before the end."""
    with suppress(trio.BrokenResourceError):
        places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
        for start, end in pairwise(places):
            await stream.send_all(data[start:end])
            await trio.testing.wait_all_tasks_blocked()


async def converse(data: bytes, cuts: Sequence[int] = ()) -> tuple[list[bytes], list[int]]:
    """Return the messages of the server, and the codes of its close frames."""
    echo = Echo()
    async with connect(echo) as client:
        await open_client(client)
        await send(client.stream, data, cuts)
        answer = b""
        with trio.move_on_after(60), suppress(trio.BrokenResourceError):
            while chunk := await client.stream.receive_some():
                answer += chunk
        if echo.ends:
            await echo.done.wait()
    texts, closes = read_answer(answer)
    assert texts == echo.received[: len(texts)]
    return echo.received, closes


def read_answer(answer: bytes) -> tuple[list[bytes], list[int]]:
    """Return the texts and close codes in our data, which follow the rules themselves."""
    frames, rest = frames_in(answer)
    assert rest == b""
    closes = [payload for first, payload in frames if first == 0x80 | CLOSE]
    assert len(closes) <= 1
    assert not closes or frames[-1][1] is closes[0]
    assert {first & 0x0F for first, _ in frames} <= {TEXT, PONG, CLOSE}
    texts = [payload for first, payload in frames if first == 0x80 | TEXT]
    return texts, [struct.unpack("!H", close[:2])[0] if close else NO_CODE for close in closes]


FORBIDDEN = {
    "not masked": [Frame(TEXT, b"x", masked=False)],
    "reserved bits": [Frame(TEXT, b"x", reserved=4)],
    "a reserved bit of a ping": [Frame(PING, reserved=1)],
    "an unknown opcode": [Frame(3)],
    "an unknown control opcode": [Frame(11)],
    "a ping that is too long": [Frame(PING, b"x" * 126)],
    "a goodbye that is too long": [Frame(CLOSE, b"\x03\xe8" + b"x" * 124)],
    "a ping in fragments": [Frame(PING, fin=False)],
    "the middle of nothing": [Frame(CONTINUATION, b"x")],
    "a message within another": [Frame(TEXT, b"x", fin=False), Frame(TEXT, b"y")],
    "bytes that are no UTF-8": [Frame(TEXT, b"\xff")],
    "a lone surrogate": [Frame(TEXT, b"\xed\xa0\x80")],
    "half a character at the end": [Frame(TEXT, "ü".encode()[:1], fin=False), Frame(CONTINUATION)],
    "a message over the limit": [Frame(TEXT, b"x" * (LIMIT + 1))],
    "fragments over the limit": [Frame(TEXT, b"x" * LIMIT, fin=False), Frame(CONTINUATION, b"x", fin=False)],
    "a binary message": [Frame(BINARY, b"{}")],
    "an empty binary message": [Frame(BINARY)],
    "half a code": [Frame(CLOSE, b"\x03")],
    "a goodbye that is no UTF-8": [close(1000, b"\xff")],
    **{f"code {code}": [close(code)] for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535)},
}


@pytest.mark.parametrize("name", FORBIDDEN)
async def test_what_is_forbidden_ends_with_its_code_behind_what_was_right(name: str, autojump_clock):
    frames = [Frame(TEXT, b"first"), *FORBIDDEN[name], Frame(TEXT, b"never")]
    expected = model(frames)
    (code,) = expected.codes
    assert code in (NO_GOODBYE, NO_TEXT, TOO_BIG)
    conversation = await converse(b"".join(frame.encode() for frame in frames))
    assert conversation == ([b"first"], [] if code == NO_GOODBYE else [code])


LYING = {
    "two bytes for a length of one": ("H", 125),
    "eight bytes for a length of two": ("Q", 65_535),
    "a negative length": ("Q", 2**63),
}


@pytest.mark.parametrize("name", LYING)
async def test_a_length_in_the_wrong_form_ends_the_connection(name: str, autojump_clock):
    frame = Frame(TEXT, b"x", size=LYING[name])
    assert await converse(frame.encode()) in (([], []), ([], [TOO_BIG]))


async def test_a_frame_over_the_limit_is_refused_before_its_end(autojump_clock):
    frame = Frame(TEXT, b"x" * (LIMIT + 1), size=("Q", 2**62))
    assert await converse(frame.encode()) == ([], [TOO_BIG])


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1007, 1011, 1013, 3000, 4999])
async def test_a_goodbye_is_answered_with_its_code(code: int, autojump_clock):
    assert await converse(close(code, b"why").encode()) == ([], [code])


async def test_a_goodbye_without_a_code_is_answered_without_one(autojump_clock):
    assert await converse(Frame(CLOSE).encode()) == ([], [NO_CODE])


def rarely(usual: object, *unusual: object) -> st.SearchStrategy:
    return st.sampled_from([usual] * 30 + list(unusual))


payloads = st.one_of(
    st.text(max_size=20).map(str.encode),
    st.binary(max_size=8),
    st.sampled_from([b"", b"\xc3", b"\xbc", b"x" * 125, b"x" * 126, b"x" * (LIMIT // 2), b"x" * (LIMIT + 1)]),
)
data_frames = st.builds(
    Frame,
    st.sampled_from([TEXT, TEXT, TEXT, CONTINUATION, CONTINUATION, BINARY]),
    payloads,
    st.booleans(),
    rarely(0, 1, 2, 4, 7),
    rarely(True, False),
    st.none(),
)
control_frames = st.builds(
    Frame,
    st.sampled_from([PING, PING, PONG, CLOSE, 3, 7, 11, 15]),
    st.one_of(st.binary(max_size=4), st.binary(max_size=130)),
    rarely(True, False),
    rarely(0, 1),
    rarely(True, False),
    st.none(),
)
goodbyes = st.builds(close, st.integers(0, 65_535) | st.integers(990, 1020), st.binary(max_size=3))
messages = st.builds(lambda text: Frame(TEXT, text.encode()), st.text(max_size=20))
conversations = st.lists(st.one_of(messages, messages, data_frames, control_frames, goodbyes), max_size=12)
cuttings = st.lists(st.integers(0, 5000), max_size=6)
given_a_moment = settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def in_virtual_time(function: partial) -> None:
    trio.run(function, clock=trio.testing.MockClock(autojump_threshold=0))


async def check(frames: list[Frame], cuts: list[int]) -> None:
    expected = model(frames)
    codes = expected.codes or {NORMAL}
    if not expected.codes:
        frames = [*frames, close(NORMAL)]
    received, closes = await converse(b"".join(frame.encode() for frame in frames), cuts)
    assert received == expected.messages
    assert len(closes) <= 1
    assert (closes or [NO_GOODBYE])[0] in codes


@given_a_moment
@given(conversations, cuttings)
def test_any_frames_in_any_pieces_are_heard_as_the_model_says(frames: list[Frame], cuts: list[int]):
    in_virtual_time(partial(check, frames, cuts))


@given_a_moment
@given(st.binary(max_size=300), cuttings)
def test_any_bytes_end_in_one_goodbye_at_most(data: bytes, cuts: list[int]):
    in_virtual_time(partial(converse, data, cuts))


async def be_client(data: bytes, cuts: Sequence[int]) -> tuple[list[bytes], str, bytes]:
    """Return the messages that mcpmux gets from a server of `data`, the reason of the end, and its bytes."""
    ours, theirs = memory_stream_pair()
    received: list[bytes] = []
    ends: list[str] = []
    server = RawClient(theirs)

    async def serve(task_status: trio.TaskStatus[None]) -> None:
        key = await request_key(theirs)
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        fields = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept
        await theirs.send_all(b"HTTP/1.1 101 Yes\r\n" + fields + b"\r\n\r\n")
        await send(theirs, data, cuts)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await theirs.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, trio.TASK_STATUS_IGNORED)
        pipe = WebSocketStream(PatientStream(ours), LIMIT, nursery)
        try:
            assert await shake_hands(pipe, "server", "/mcp", (), trio.current_time() + 60, "") is None
            with suppress(TransportClosed):
                while True:
                    received.append(await pipe.receive())
            with pytest.raises(TransportClosed) as end:
                await pipe.receive()
            ends.append(str(end.value))
        finally:
            await pipe.aclose()
        await ours.aclose()
        answer = b""
        while chunk := await server.stream.receive_some():
            answer += chunk
    return received, ends[0], answer


async def request_key(stream: trio.abc.ReceiveStream) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head:
        head += await stream.receive_some()
    (line,) = [line for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:")]
    return line.partition(b":")[2].strip()


async def check_client(frames: list[Frame], cuts: list[int]) -> None:
    """Hold servers to the same rules, except that their frames are not masked."""
    expected = model(frames)
    data = b"".join(frame._replace(masked=not frame.masked).encode() for frame in frames)
    received, end, answer = await be_client(data, cuts)
    assert received == expected.messages
    _, closes = read_answer(answer)
    if expected.codes:
        assert (closes or [NO_GOODBYE])[0] in expected.codes
    else:
        assert (end, closes) == ("the connection was lost", [])


@given_a_moment
@given(conversations, cuttings)
def test_a_server_that_sends_any_frames_is_heard_as_the_model_says(frames: list[Frame], cuts: list[int]):
    in_virtual_time(partial(check_client, frames, cuts))
