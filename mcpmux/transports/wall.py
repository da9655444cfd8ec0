"""A wall around some work: its errors of one kind stop here, alone or in exception groups.

It serves the modules that mypyc compiles, which cannot contain `except*`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

TakeErrors = Callable[[list[BaseException]], object]


async def walled(work: Awaitable[None], kind: type[Exception], tell: TakeErrors) -> None:
    """Await `work`; pass its errors of `kind` to `tell`, as a flat list, then raise all others."""
    try:
        await work
    except* kind as group:
        tell(leaves_of(group))


def leaves_of(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the errors in a group and in its nested groups."""
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves.extend(leaves_of(error) if isinstance(error, BaseExceptionGroup) else [error])
    return leaves
