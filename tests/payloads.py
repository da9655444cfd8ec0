"""JSON as strangers write it: equal values in many spellings, for laws about bytes that must not change."""

from __future__ import annotations

from hypothesis import strategies as st

_NUMBERS = [
    "0",
    "-0",
    "1",
    "1.0",
    "1E5",
    "1e+05",
    "0.1000",
    "-12.50",
    "123456789012345678901234567890",
    "1e400",
]
_STRINGS = [
    '""',
    '"plain"',
    '"\\u00e9"',
    '"é"',
    '"\\/"',
    '"line\\nbreak"',
    '"\\ud83d\\ude00"',
    '"file:///a"',
    '"docs+file:///a"',
]
_GAPS = ["", " ", "\n  ", "\t"]

scalars = st.sampled_from([*_NUMBERS, *_STRINGS, "true", "false", "null"])
gaps = st.sampled_from(_GAPS)


def _join(open_close: str, parts: list[str], gap: str) -> str:
    return open_close[0] + gap + f"{gap},{gap}".join(parts) + gap + open_close[1]


def _arrays(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(_join, st.just("[]"), st.lists(parts, max_size=4), gaps)


def _objects(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.dictionaries(st.sampled_from(["a", "b", "_meta", "uri", "", "é"]), parts, max_size=4)
    return st.builds(
        lambda fields, gap: _join("{}", [f'"{key}"{gap}:{gap}{part}' for key, part in fields.items()], gap),
        members,
        gaps,
    )


json_texts = st.recursive(scalars, lambda parts: _arrays(parts) | _objects(parts), max_leaves=12)
"""Any JSON value, as text."""

object_texts = _objects(json_texts)
"""Any JSON object, as text."""

member_texts = st.dictionaries(st.text(max_size=8), json_texts, max_size=5)
"""The members of an object: name → JSON text."""
