"""Whether any of many words is in a message: found, or not, in one pass. The only module that knows RE2."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Scan = Callable[[bytes], bool]
"""Whether a word is there. Time in proportion to the message, whatever it is."""


def scan_for(names: Iterable[bytes], words: Iterable[bytes], ignored: bytes) -> Scan:
    """Finds `names` in any case and with any number of `ignored` bytes in them, `words` as they are."""
    import re2  # not at the top: it is large, and most runs look at no message

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    between = b"[" + re.escape(ignored) + b"]*"
    loose = b"|".join(between.join(_literal(name)) for name in names)
    exact = b"|".join(b"".join(_literal(word)) for word in words)
    words_of_both = re2.Set.SearchSet(options)
    words_of_both.Add(b"|".join(part for part in (loose and b"(?i:%b)" % loose, exact) if part))
    words_of_both.Compile()
    match = words_of_both.Match
    return lambda data: bool(match(data))


def _literal(word: bytes) -> list[bytes]:
    return [rb"\x%02x" % byte for byte in word]
