"""What is remembered of upstreams' answers: whether, how much, and for how long."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from attrs import field, frozen

from mcpmux.config.scalars import Duration, Flag, Size, Whole, about

Seconds: TypeAlias = Annotated[float, Duration()]


@frozen(kw_only=True)
class Caching:
    """The cache that all upstreams share."""

    enabled: Annotated[bool, Flag()] = field(
        default=True,
        metadata=about(
            "Serve again what upstreams mark as fresh (`ttlMs`), until a client does something there; ask "
            "identical requests at the same time once. false: every request goes to its upstream."
        ),
    )
    max_bytes: Annotated[int, Size(1024)] = field(
        default=64 * 2**20, metadata=about("Memory for it, about; what was not used for longest goes first.")
    )
    max_entries: Annotated[int, Whole(1, 10_000_000)] = field(
        default=100_000, metadata=about("Answers that are kept.")
    )
    trust_announcements: Annotated[bool, Flag()] = field(
        default=False,
        metadata=about(
            "Keep lists without a `ttlMs`, too, while their upstreams say that they announce changes "
            "(`listChanged`). Off, as many servers say so and announce nothing: clients would get old lists."
        ),
    )
    max_list_age: Seconds = field(
        default=60.0,
        metadata=about(
            "With `trust_announcements`: such a list is asked for again after this long, although its "
            "upstream has announced no change."
        ),
    )
