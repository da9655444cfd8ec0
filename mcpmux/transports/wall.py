"""A wall around some work: what it ends with, by itself or in groups, stops here."""

from __future__ import annotations

from collections.abc import Awaitable


async def errors_of(kind: type[Exception], work: Awaitable[None]) -> list[BaseException]:
    """Do the work; the errors of that kind that it ends with, by themselves or in groups.

    Others are raised. For modules that are compiled, which `except*` cannot be.
    """
    errors: list[BaseException] = []
    try:
        await work
    except* kind as group:
        errors = leaves_of(group)
    return errors


def leaves_of(group: BaseExceptionGroup[Exception]) -> list[BaseException]:
    """The errors in a group and in the groups in it."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(leaves_of(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
