"""Match texts against globs and URI templates, in every way in which a server may read a URI. Pure.

A glob is the tuple of the texts between its stars: `("docs",)` is exactly that, `("", ".md")` is `*.md`.
Matching takes time in proportion to the text, for any number of stars.

A template that matches a raw URI shows who may own it. A match is a claim, not an expansion: a
simple expression stands for one or more characters of one path segment, a reserved or exploded one (`{+x}`,
`{x*}`) may cross `/`, query-like ones may be absent.

Spelling must not dodge an access rule. Two servers may take the same text for two things: one decodes
`%2e%2e`, one does not; one takes `//` for `/`, one takes `\\` for `/`. mcpmux cannot know which server does
what, so a URI has several readings:

  * the text as written, and
  * the text after 0, 1, … DECODE_LIMIT rounds of percent-decoding (fewer if it has no more to decode); with
    query and fragment cut off before that, after it or never; with repeated `/` kept or taken for one; with
    tabs and line ends kept or left out; with `\\` kept or taken for `/`: each time with scheme and host in
    lower case, without user and default port, without dot segments, `file:/x` and `file://localhost/x` as
    `file:///x`.

A glob is read in the same ways, with a mark for each of its stars. The rule decides whether all readings must
fit, or any. Names of tools and prompts are no URIs and have one reading.

Source: RFC 6570 sections 2.2 and 3.2; RFC 3986 sections 5.2.4 and 6.2; RFC 8089 appendix B; the URL standard
of WHATWG (backslashes, tabs).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote

from mcpmux.lru import Lru

URI_LIMIT: Final = 8192  # characters; a longer URI or template is not matched
MATCH_LIMIT: Final = 32_768  # pieces of a template times characters of a URI: takes some 12 ms

Glob: TypeAlias = tuple[str, ...]

_EXPRESSION: Final = re.compile(r"\{([^{}]*)\}")


def parse_glob(text: str) -> Glob:
    """Return the glob for a text: each `*` in it stands for any text, the empty one included."""
    return tuple(text.split("*"))


def rests_of(glob: str, beginning: str) -> list[str]:
    """Return the rest of a glob after `beginning`, for each way in which a matching text can begin so.

    `glob` is in its written form: `d*x` after `docs` is `*x`; `*s+x` after `docs+` is `*s+x`, and `x`.
    """
    places = {0}
    for char in beginning:
        stars = {place for place in _past_stars(glob, places) if glob[place : place + 1] == "*"}
        places = stars | {place + 1 for place in _past_stars(glob, places) if glob[place : place + 1] == char}
    return [glob[place:] for place in sorted(places)]


def _past_stars(glob: str, places: set[int]) -> set[int]:
    reached = set(places)
    for place in places:
        while glob[place : place + 1] == "*":  # it may stand for the empty text
            place += 1
            reached.add(place)
    return reached


def template_glob(template: str) -> Glob:
    """Return a glob for a URI template: each expression may stand for any text."""
    return tuple(_EXPRESSION.split(template)[::2])


def matches(glob: Glob, text: str) -> bool:
    """Return whether the glob stands for the whole text."""
    first, *middle = glob
    if not middle:
        return first == text
    last = middle.pop()
    end = len(text) - len(last)
    if end < len(first) or not text.startswith(first) or not text.endswith(last):
        return False
    # The first place for each piece is always right: a later one leaves less room for the next.
    return _in_order(middle, text, len(first), end)


def may_meet(one: Glob, other: Glob) -> bool:
    """Return whether there is a text that both globs stand for."""
    if len(one) == 1:
        return matches(other, one[0])
    if len(other) == 1:
        return matches(one, other[0])
    # Between its first and last piece a glob with a star takes any text, so for two such globs only their
    # ends can be at odds: a text with the longer of both beginnings, all middle pieces and the longer end is
    # both.
    short_head, head = sorted((one[0], other[0]), key=len)
    short_tail, tail = sorted((one[-1], other[-1]), key=len)
    return head.startswith(short_head) and tail.endswith(short_tail)


def is_inside(glob: Glob, text: str) -> bool:
    """Return whether the glob stands for some part of the text."""
    return _in_order(glob, text, 0, len(text))


def _in_order(pieces: Sequence[str], text: str, start: int, end: int) -> bool:
    for piece in pieces:
        position = text.find(piece, start, end)
        if position < 0:
            return False
        start = position + len(piece)
    return True


def casefold(glob: Glob) -> Glob:
    """Return the glob for texts in folded case."""
    return tuple(piece.casefold() for piece in glob)


class _Piece(NamedTuple):
    """A literal, then a run of characters outside `stops`. `optional`: both may be absent."""

    literal: str
    stops: str | None = None  # None: no run
    least: int = 0
    optional: bool = False


# RFC 6570 section 3.2: a reserved expression may cross a slash; one of a query or fragment may be absent.
_BY_OPERATOR: Final = {
    "+": _Piece("", "", 1),
    "#": _Piece("#", "", 0, optional=True),
    ".": _Piece(".", "/?#", 1),
    "/": _Piece("/", "?#", 1),
    ";": _Piece(";", "/?#", 0, optional=True),
    "?": _Piece("?", "#", 0, optional=True),
    "&": _Piece("&", "#", 0, optional=True),
}


_known: Final[Lru[str, tuple[_Piece, ...]]] = Lru(4096, 8 * 2**20)  # templates of a large aggregate
_PIECE_BYTES: Final = 200  # the size of one, approximately


def _pieces(template: str) -> tuple[_Piece, ...]:
    remembered = _known.get(template)
    if remembered is not None:
        return remembered
    pieces = []
    for index, part in enumerate(_EXPRESSION.split(template)):
        if index % 2:
            simple = _Piece("", "" if part.endswith("*") else "/?#", 1)
            pieces.append(_BY_OPERATOR.get(part[:1], simple))
        elif part:
            pieces.append(_Piece(part))
    result = tuple(pieces)
    _known.keep(template, result, _PIECE_BYTES * len(result))
    return result


def _after(piece: _Piece, uri: str, starts: set[int]) -> set[int]:
    """Return every place where `piece` can end when it begins at one of `starts`."""
    begun = {p + len(piece.literal) for p in starts if uri.startswith(piece.literal, p)}
    ends = set(starts) if piece.optional else set()
    if piece.stops is None:
        return ends | begun
    reached = -1
    for start in sorted(begun):
        if start < reached:
            continue  # an earlier start's run came through here and went as far
        reached = start
        while reached < len(uri) and uri[reached] not in piece.stops:
            reached += 1
        ends.update(range(start + piece.least, reached + 1))
    return ends


def matches_template(template: str, uri: str) -> bool:
    """Return whether `uri` can be an expansion of `template`."""
    if max(len(uri), len(template)) > URI_LIMIT:
        return False
    pieces = _pieces(template)
    if len(pieces) * len(uri) > MATCH_LIMIT:
        return False
    # Both are untrusted text, so there is no backtracking: the set of places that the template can have
    # reached is carried from piece to piece, which costs (pieces x length of the URI) at worst.
    places = {0}
    for piece in pieces:
        places = _after(piece, uri, places)
    return len(uri) in places


# Readings of URIs

STAR: Final = "\ue000"
"""Stands for a star while a glob is read; in a URI it would have to be percent-encoded."""

DECODE_LIMIT: Final = 3  # rounds; a URI that needs more is not clear
PLAIN_LIMIT: Final = 262_144  # characters of a URI that is searched: takes some 8 ms
LENGTH_LIMIT: Final = 8192  # characters of a URI that has several readings
READINGS_LIMIT: Final = 32_768  # characters of all its readings together: they take some 2 ms

_PLAIN_HEAD: Final = re.compile(
    r"[a-z][a-z0-9+.-]*://(?=/)|(?!file:)[a-z][a-z0-9+.-]*:(?://[a-z0-9-]+(?:\.[a-z0-9-]+)*(?=/))?"
)
# One class of characters first, which `re` looks for faster than for alternatives.
_ODD: Final = re.compile(rf"[%\\?#{STAR}\x00-\x20\x7f/](?:(?<!/)|/|\.\.?(?:/|$))")
_DOTS: Final = re.compile(r"\.\.?(?:/|$)")  # odd at the start
_SCHEME: Final = re.compile(rf"([A-Za-z{STAR}][A-Za-z0-9+.\-{STAR}]*):")
_HEAD: Final = re.compile(rf"{_SCHEME.pattern}//")
_TAIL: Final = re.compile(r"[?#]")
_IGNORED: Final = str.maketrans("", "", "\t\r\n")
_ENDS: Final = "".join(map(chr, range(0x21)))
_BLANKS: Final = re.compile(r"[\x00-\x20]")
_SLASHES: Final = re.compile(r"/{2,}")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443", "ws": ":80", "wss": ":443"}


Cut = Literal["first", "last", "never"]
Convert = Callable[[str], str]
ReadFront = Callable[[str, bool], str]


class UriReader(NamedTuple):
    """One way in which a server may read a URI.

    `rounds` of decoding; `cut`: the moment when query and fragment are taken off. `merging`: whether
    repeated slashes become one; `trimming`: whether tabs and line ends are removed, and blanks at both ends;
    `turning`: whether a backslash becomes a slash.
    """

    rounds: int
    cut: Cut
    merging: bool
    trimming: bool
    turning: bool


CUTS: Final[tuple[Cut, ...]] = ("first", "last", "never")
BOTH: Final = (True, False)


def is_plain(uri: str) -> bool:
    """Return whether every reading of a URI is known to be the text as written."""
    if len(uri) > PLAIN_LIMIT:
        return False
    head = _PLAIN_HEAD.match(uri)
    if head is None and ":" in uri:
        return False
    start = 0 if head is None else head.end()
    return _DOTS.match(uri, start) is None and _ODD.search(uri, start) is None


def readings_of(uri: str, ways: Sequence[UriReader] | None = None) -> Iterator[tuple[UriReader | None, str]]:
    """Yield (way, reading) for every way that a server may take, the first as written.

    Some come more than once. `ways`: what `clear_ways` returned for an untrusted URI. Without it the
    readings may be long.
    """
    yield None, uri
    if ways is None:
        ways = () if is_plain(uri) else _ways(uri, min(_rounds_in(uri), DECODE_LIMIT))
    decode, read_front = cache(unquote), cache(_read_front)  # most ways share their intermediate texts
    for way in ways:
        yield way, read(uri, way, decode, read_front)


def clear_ways(uri: str) -> Sequence[UriReader] | None:
    """Return the ways of reading a URI besides the one as written; None when it is not clear.

    It is not clear when its readings are too long together, or when it is encoded too often.
    """
    if is_plain(uri):
        return ()
    if len(uri) > LENGTH_LIMIT or (rounds := _rounds_in(uri)) > DECODE_LIMIT:
        return None
    ways = _ways(uri, rounds)
    return ways if len(uri) * len(ways) <= READINGS_LIMIT else None


def _ways(uri: str, rounds: int) -> list[UriReader]:
    """Return the ways that make a difference for this text."""
    bare = _decoded(uri, rounds, unquote)
    # Decoded in full: characters that only some rounds reveal must count as well.
    turned = bare.replace("\\", "/").translate(_IGNORED)
    cuts = CUTS if _TAIL.search(bare) else CUTS[:1]
    head = _HEAD.match(uri)  # the first `//` behind a scheme is no part of a path, any other may be
    merging = BOTH if "//" in turned[head.end() if head is not None else 0 :] else BOTH[:1]
    trimming = BOTH if _BLANKS.search(bare) else BOTH[:1]
    turning = BOTH if "\\" in bare else BOTH[:1]
    choices = itertools.product(range(rounds + 1), cuts, merging, trimming, turning)
    return list(itertools.starmap(UriReader, choices))


def read(
    uri: str, way: UriReader | None, decode: Convert = unquote, read_front: ReadFront | None = None
) -> str:
    """Return what a server that reads in this way takes the URI for.

    `decode` and `read_front` may remember what they returned before.
    """
    if way is None:
        return uri
    # Parsers by the URL standard of WHATWG drop tabs and line ends anywhere, and blanks at both ends.
    if way.trimming:
        uri = uri.strip(_ENDS).translate(_IGNORED)
    if way.cut != "first":
        uri = _decoded(uri, way.rounds, decode)
    cut = _TAIL.search(uri) if way.cut != "never" else None
    end = cut.start() if cut is not None else len(uri)
    service, tail = uri[:end], uri[end:]
    if way.cut == "first":
        service, tail = _decoded(service, way.rounds, decode), _decoded(tail, way.rounds, decode)
    if way.trimming:
        service = service.translate(_IGNORED)
    # The same standard takes a backslash for a slash, as Windows does.
    if way.turning:
        service = service.replace("\\", "/")
    return (read_front or _read_front)(service, way.merging) + tail


def _rounds_in(uri: str) -> int:
    """Return the rounds of decoding until the text is stable, or DECODE_LIMIT + 1 for more than the limit."""
    for rounds in range(DECODE_LIMIT + 1):
        decoded = unquote(uri)
        if decoded == uri:
            return rounds
        uri = decoded
    return DECODE_LIMIT + 1


def _decoded(text: str, rounds: int, decode: Convert) -> str:
    for _ in range(rounds):
        if "%" not in text:
            break
        text = decode(text)
    return text


def _read_front(service: str, merging: bool) -> str:
    match = _SCHEME.match(service)
    if match is None:
        return _read_path(service, merging)
    # Scheme and host ignore case, and a default port is no difference (RFC 3986 sections 6.2.2.1 and 6.2.3).
    scheme, rest = match[1].lower(), service[match.end() :]
    # Both forms are in use (RFC 8089 appendix B).
    if scheme == "file" and rest.startswith("/") and not rest.startswith("//"):
        rest = f"//{rest}"
    if not rest.startswith("//"):
        return f"{scheme}:{_read_path(rest, merging)}"
    authority, slash, path = rest[2:].partition("/")
    authority = authority.rpartition("@")[2].lower()
    authority = authority.removesuffix(_DEFAULT_PORTS.get(scheme, ":")).removesuffix(".")
    if scheme == "file" and authority == "localhost":
        authority = ""
    # A star in the authority may stand for a path as well.
    path = f"/{path}" if slash or (authority and STAR not in authority) else ""
    return f"{scheme}://{authority}{_read_path(path, merging)}"


def _read_path(path: str, merging: bool) -> str:
    if merging:
        path = _SLASHES.sub("/", path)
    if "." not in path:
        return path
    # Dot segments, as a server that resolves the path removes them (RFC 3986 section 5.2.4).
    root, segments = ("/", path[1:].split("/")) if path.startswith("/") else ("", path.split("/"))
    kept: list[str] = []
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", "..") and kept:
        kept.append("")
    return root + "/".join(kept)


# Targets, and the globs of rules that are compared with them


class Target:
    """The object of a use: a URI, which has several readings; a name, which has one; or a URI template.

    A template is read in the same ways as URIs, with a mark for each of its expressions, which may stand for
    any text.
    """

    def __init__(self, text: str, *, is_uri: bool = True, is_template: bool = False) -> None:
        self.text = text
        self.is_template = is_template
        self._marked = STAR.join(template_glob(text)) if is_template else text
        self.is_uri = is_uri

    @cached_property
    def is_plain(self) -> bool:
        """Whether its only reading is the text as written."""
        return not self.is_uri or is_plain(self._marked)

    @cached_property
    def _ways(self) -> Sequence[UriReader] | None:
        return () if self.is_plain else clear_ways(self._marked)

    @property
    def is_clear(self) -> bool:
        """Whether all its readings are known."""
        return self._ways is not None

    @cached_property
    def readings(self) -> list[tuple[UriReader | None, str]]:
        """Every way to read it, with the reading."""
        return list(dict.fromkeys(readings_of(self._marked, self._ways or ())))

    @cached_property
    def _texts(self) -> frozenset[str]:
        """The texts of all readings."""
        return frozenset(text for _, text in self.readings)

    @cached_property
    def _broadly(self) -> frozenset[str]:
        """All texts that it can stand for, also without query and fragment, which some servers ignore."""
        texts = self._texts
        return frozenset(texts | {_TAIL.split(text, 1)[0] for text in texts} if self.is_uri else texts)

    def is_in(self, glob: TargetGlob) -> bool:
        """Return whether the glob fits it, or all that a template stands for, in every reading."""
        if self.is_plain:
            return glob.fits(self._marked)
        if not self.is_clear:
            # An `allow` must not fit what cannot be checked; `may_be_in` makes a `deny` fit it.
            return False
        if glob.is_plain:  # it reads the same in every way
            return all(matches(glob.glob, text) for text in self._texts)
        return all(matches(glob.read(way), text) for way, text in self.readings)

    def may_be_in(self, glob: TargetGlob) -> bool:
        """Return whether the glob fits, or may fit, something that it can mean or stand for."""
        if not self.is_clear:
            return True
        if self.is_template:
            globs = [tuple(text.split(STAR)) for _, text in self.readings]
            return any(may_meet(expansion, own) for own in globs for expansion in glob.broadly)
        if not self.is_uri:
            return glob.fits(self._marked)
        texts = (self._marked,) if self.is_plain else self._broadly
        return any(matches(variant, text) for text in texts for variant in glob.broadly)


class TargetGlob:
    """A glob for targets, read in the same ways as the URIs that it is compared with."""

    def __init__(self, text: str) -> None:
        self.glob = parse_glob(text)
        self._marked = text.replace("*", STAR)
        self.read = cache(self._read)
        """The glob in one way of reading; there are few to remember."""

    @cached_property
    def is_plain(self) -> bool:
        """Whether the glob is the same in every way of reading."""
        return is_plain(self._marked.replace(STAR, ""))

    @cached_property
    def broadly(self) -> frozenset[Glob]:
        """All globs that it can be read as."""
        return frozenset(tuple(text.split(STAR)) for _, text in readings_of(self._marked))

    def fits(self, text: str) -> bool:
        """Return whether it fits a text that has one reading."""
        return matches(self.glob, text)

    def _read(self, way: UriReader | None) -> Glob:
        return tuple(read(self._marked, way).split(STAR))


EVERYTHING: Final = TargetGlob("*")


class ExactNames(TargetGlob):
    """Fits certain names only, in which a star is a star. Takes no longer with more names."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__("")
        self._names = frozenset(names)

    def fits(self, text: str) -> bool:
        """Return whether the text is one of the names."""
        return text in self._names


class NameGlob(TargetGlob):
    """A glob for names that is compared with every spelling of a name."""

    def __init__(self, text: str, spellings_of: Callable[[str], Iterable[str]]) -> None:
        """`spellings_of`: returns the spellings of an upstream's own name that count."""
        super().__init__(text)
        self._spellings_of = spellings_of

    def fits(self, text: str) -> bool:
        """Return whether it fits a spelling of the upstream's own name `text`."""
        return any(matches(self.glob, spelling) for spelling in self._spellings_of(text))
