"""A wall around some work: errors that it ends with, by themselves or in groups, stop here.

For modules that are compiled, which `except*` cannot be.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

TakeErrors = Callable[[list[BaseException]], object]


async def walled(work: Awaitable[None], kind: type[Exception], tell: TakeErrors) -> None:
    """Do the work; `tell` hears of the errors of that kind that it ends with. Others are raised then."""
    try:
        await work
    except* kind as group:
        tell(leaves_of(group))


def leaves_of(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The errors in a group and in the groups in it."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(leaves_of(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
