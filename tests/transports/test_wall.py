"""What stops at the wall around some work, and what does not."""

from __future__ import annotations

import pytest
import trio

from mcpmux.errors import McpmuxError, Overdue
from mcpmux.transports.wall import errors_of


async def ends_with(error: BaseException | None = None) -> None:
    if error is not None:
        raise error


FIRST, SECOND = Overdue("late"), McpmuxError("other")


@pytest.mark.parametrize(
    ("end", "stopped"),
    [
        (None, []),
        (FIRST, [FIRST]),
        (ExceptionGroup("", [FIRST, ExceptionGroup("", [SECOND])]), [FIRST, SECOND]),
    ],
)
async def test_errors_stop_by_themselves_and_in_groups(end, stopped):
    assert await errors_of(McpmuxError, ends_with(end)) == stopped


async def test_others_are_raised():
    with pytest.raises(ExceptionGroup) as raised:
        await errors_of(McpmuxError, ends_with(ExceptionGroup("", [FIRST, ValueError("foreign")])))
    assert [repr(error) for error in raised.value.exceptions] == ["ValueError('foreign')"]
    with pytest.raises(ValueError, match="foreign"):
        await errors_of(McpmuxError, ends_with(ValueError("foreign")))


async def test_cancelling_goes_through_and_errors_beside_it_stop():
    async def fail_while_cancelled() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise FIRST

    with trio.CancelScope() as scope:
        scope.cancel()
        assert await errors_of(McpmuxError, fail_while_cancelled()) == [FIRST]
        await trio.sleep_forever()
    assert scope.cancelled_caught
