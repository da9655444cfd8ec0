"""Sets of upstreams, and the texts that are hardest for them: those that look like a prefix."""

from __future__ import annotations

from hypothesis import strategies as st

names = st.one_of(
    st.sampled_from(["a", "b", "docs", "git", "ui", "a.b", "a-b"]),
    st.from_regex(r"[a-z][a-z0-9.-]{0,31}", fullmatch=True),
)


@st.composite
def prefix_tables(draw: st.DrawFn, minimum: int = 1) -> dict[str, str]:
    """Draw upstream names and prefixes; sometimes one is unprefixed, sometimes a prefix is not the name."""
    table = draw(
        st.lists(names, min_size=minimum, max_size=5, unique=True).map(
            lambda us: dict(zip(us, us, strict=True))
        )
    )
    if draw(st.booleans()):
        table[draw(st.sampled_from(list(table)))] = ""
    if draw(st.booleans()):
        prefix = draw(names)
        renamed = draw(st.sampled_from(list(table)))
        if prefix not in table and table[renamed]:
            table[renamed] = prefix
    return table


def texts(table: dict[str, str]) -> st.SearchStrategy[str]:
    """Return any texts, and those that upstreams could write to be taken for each other."""
    heads = st.sampled_from([*table, *table.values(), "other"])
    joints = st.sampled_from(["+", "__", "_", "+ui://", "/", ""])
    shaped = st.builds(
        lambda scheme, head, joint, tail: scheme + head + joint + tail,
        st.sampled_from(["", "ui://", "ui:", "file:///"]),
        heads,
        joints,
        st.text(max_size=20) | st.sampled_from(["file:///a", "x__y", "_x", "ui://a/b", "{+path}"]),
    )
    long = st.builds(lambda head, size, tail: head + "x" * size + tail, heads, st.integers(20, 70), tails)
    return st.text() | shaped | long


tails = st.sampled_from(["", "_00000000", "_0123abcd", "_0123abcD", "_012345678"])
