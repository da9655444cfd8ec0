"""How settings and queries name what upstreams have: as the upstream does, or as clients see it. Pure.

The law

    A text that begins with the prefix of an upstream (`docs__search`, `docs+file:///a`, `ui://docs/app`) is
    read as clients see it, any other one as the upstream itself has it.

  * What allows or includes goes by one reading only, so that it never fits more than was meant. With a prefix
    it fits what clients of the view reach under this name, at that upstream, and nothing else: not what
    another upstream itself calls so. A star stands for no part of a prefix. Without a prefix it fits what any
    upstream calls so, and what is shown so of an upstream without a prefix.
  * What denies or excludes goes by every reading: the name that the upstream has, each name that is shown in
    some view, with the prefix and without, shortened and whole. A star may stand for a prefix or a part of
    it, unless the rule names its upstreams: then it is clear already which upstream is meant.
  * A prefix counts when the rule can be about its upstream. In a rule about others the text is one of theirs.

Laws: what an allowing text with a prefix fits is what the text resolves to; whatever a denying text fits as
it is shown or as its upstream has it cannot be used; whatever a text allows, the same text denies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, TypeAlias

from mcpmux.config import Upstream
from mcpmux.config.report import CANDIDATES_LIMIT, closest
from mcpmux.config.scalars import derive_prefix
from mcpmux.config.views import RESOURCES, TEMPLATES, TOOLS, View
from mcpmux.mux.override import Names, Overrides, overrides_of
from mcpmux.mux.pattern import Glob, matches, rests_of
from mcpmux.mux.rewrite import JOINT, UI, Namespace
from mcpmux.mux.spelling import EVERYTHING, NameGlob, Target, TargetGlob

OF_URIS: Final = frozenset({RESOURCES, TEMPLATES})
ANY_VIEW: Final = None

Fits: TypeAlias = Callable[[str, str, str, Sequence[Glob], str | None], list[TargetGlob]]
"""What a text fits of an upstream's things of a kind: `Naming.certain` or `Naming.possible`."""

HOST_LIMITS: Final = {"Claude Code": ("mcp__mcpmux__", 64), "Cursor": ("mcpmux", 60)}
"""What host apps that know mcpmux as `mcpmux` put before the name of a tool, and the most for both."""

MENTIONED: Final = 3  # names in one sentence; a server may have hundreds
_MODEL_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")

NAMES_ALIKE: Final = 0.6  # similarity of names that may be meant
URIS_ALIKE: Final = 0.8  # of URIs, which begin alike


class Naming:
    """The names that the things of upstreams have: their own ones, and those that clients see in each view.

    `overrides`: by view, those in the settings of upstreams under "". Immutable.
    """

    def __init__(self, namespace: Namespace, overrides: Mapping[str, Overrides] | None = None) -> None:
        self.namespace = namespace
        self.overrides = overrides or {}
        self._joints = {
            name: (f"{mark}{JOINT}", f"{mark}+", f"{UI}{mark}/") for name, mark in namespace.marks.items()
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Naming) and self._key == other._key

    __hash__ = None  # type: ignore[assignment]  # nobody needs it

    @property
    def _key(self) -> tuple[object, ...]:
        prefixes = {name: space.prefix for name, space in self.namespace.spaces.items()}
        return prefixes, self.namespace.name_limit, self.overrides

    def owner_of(self, text: str, kind: str, among: Sequence[Glob] = ()) -> str | None:
        """The upstream with whose prefix a text begins; None for a text without one.

        `among`: globs of the upstreams that may be meant; none for all.
        """
        resolve = self.namespace.resolve_uri if kind in OF_URIS else self.namespace.resolve_name
        found = resolve(text)
        if found is None or found[1] == text or not is_among(among, found[0]):
            return None
        return found[0]

    # What a text fits of one upstream

    def certain(
        self, text: str, upstream: str, kind: str, among: Sequence[Glob] = (), view: str | None = ANY_VIEW
    ) -> list[TargetGlob]:
        """What an allowing text fits for sure of an upstream's things of a kind, in a view."""
        owner = self.owner_of(text, kind, among)
        other = TOOLS if kind in OF_URIS else RESOURCES
        if owner not in (None, upstream) or (owner is None and self.owner_of(text, other, among) is not None):
            return []  # it is another upstream's, or begins like something of another kind
        if kind in OF_URIS:
            found = self.namespace.resolve_uri(text) if owner is not None else None
            return [_glob(found[1] if found is not None else text)]
        overrides, space = self.overrides.get(view or ""), self.namespace.spaces.get(upstream)
        if owner is None and (text == "*" or overrides is None or space is None or space.prefix):
            return [_glob(text)]
        joint = self._joints[upstream][0] if owner is not None else ""
        if text == f"{joint}*":
            return [EVERYTHING]
        is_short = owner is not None and "*" not in text and self.namespace.is_shortened(text)

        def spellings_of(own: str) -> Iterator[str]:
            shown = _shown_name(overrides, upstream, kind, own)
            if not joint:
                yield own
            if shown is not None:
                yield space.expose_name(shown) if is_short and space is not None else f"{joint}{shown}"

        return [NameGlob(text, spellings_of)]

    def possible(
        self, text: str, upstream: str, kind: str, among: Sequence[Glob] = (), view: str | None = ANY_VIEW
    ) -> list[TargetGlob]:
        """What a denying text may fit of an upstream's things of a kind. ANY_VIEW: as any view shows them."""
        if text == "*":
            return [EVERYTHING]
        joints = self._joints.get(upstream, ("", "", ""))
        # What names its upstreams says with a star nothing of their prefixes.
        is_settled = bool(among) and all(len(glob) == 1 for glob in among)
        if kind in OF_URIS:
            _, plus, ui = joints
            texts = [text, *_rests(text, plus, is_settled)]
            texts += [f"{UI}{rest}" for rest in _rests(text, ui, is_settled)]
            return [_glob(each) for each in dict.fromkeys(texts)]
        space, joint = self.namespace.spaces.get(upstream), joints[0]
        shows = [each for name, each in self.overrides.items() if view in (ANY_VIEW, name)]
        is_prefixed = bool(joint) and (not is_settled or text.startswith(joint))

        def spellings_of(own: str) -> Iterator[str]:
            for name in {own, *(each.shown_name(upstream, kind, own) for each in shows)}:
                yield name
                if is_prefixed and space is not None:
                    yield f"{joint}{name}"
                    yield space.expose_name(name)

        return [NameGlob(text, spellings_of)]

    # What is listed

    def find_idle(
        self,
        place: str,
        text: str,
        kinds: Sequence[str],
        among: Sequence[Glob],
        upstreams: Iterable[str],
        names: Names,
        fits: Fits,
        view: str | None = ANY_VIEW,
    ) -> Iterator[str]:
        """Yields a sentence when a text at `place` in the settings selects nothing of what is listed.

        `among`: globs of the upstreams that it is about; `fits`: `certain` or `possible`. An upstream that is
        not in `names` may have anything.
        """
        owner = next(filter(None, (self.owner_of(text, kind, among) for kind in kinds)), None)
        about = [each for each in upstreams if is_among(among, each)]
        if not about or any(each not in names for each in (about if owner is None else [owner])):
            return
        listed = {each: names[each] for each in about if each in names}
        if not self.is_listed(text, kinds, among, listed, fits, view):
            close = self.nearest(text, kinds, listed, view or "")
            hint = f"; did you mean `{close}`?" if close else ""
            yield f"{place}: `{text}` selects nothing of what servers have{hint}"

    def is_listed(
        self,
        text: str,
        kinds: Iterable[str],
        among: Sequence[Glob],
        names: Names,
        fits: Fits,
        view: str | None,
    ) -> bool:
        """Whether a text selects anything of what the upstreams in `names` list."""
        for upstream, kind in ((upstream, kind) for upstream in names for kind in kinds):
            listed = names[upstream]
            targets = [Target(own, is_uri=kind in OF_URIS) for own in listed.get(kind, ())]
            if kind == RESOURCES:  # it may be one that a template stands for
                targets += [Target(own, is_template=True) for own in listed.get(TEMPLATES, ())]
            globs = fits(text, upstream, kind, among, view) if targets else []
            if any(target.may_be_in(glob) for target in targets for glob in globs):
                return True
        return False

    def find_long(self, names: Names) -> Iterator[str]:
        """Yields what is to be said of the names that upstreams' tools have for host apps and models."""
        for upstream, listed in names.items():
            space, overrides = self.namespace.spaces[upstream], self.overrides.get("")
            shown = {
                name: space.expose_name(name)
                for own in listed.get(TOOLS, ())
                if (name := _shown_name(overrides, upstream, TOOLS, own)) is not None
            }
            short = [f"`{name}` is `{seen}`" for name, seen in shown.items() if not seen.endswith(name)]
            if short:
                yield f"tools of {upstream} with shortened names: {_some(short)}"
            for host, (before, limit) in HOST_LIMITS.items():
                long = [f"`{seen}`" for seen in shown.values() if len(before) + len(seen) > limit]
                if long:
                    most = limit - len(before)
                    yield (
                        f"tools of {upstream} with names too long for {host}, which allows {most} characters "
                        f"({limit} with `{before}`): {_some(long)}; set `merging.name_limit` and a `prefix`, "
                        "or rename them by `overrides`"
                    )
            odd = [f"`{seen}`" for seen in shown.values() if not _MODEL_NAME.fullmatch(seen)]
            if odd:
                yield f"tools of {upstream} with names that model APIs may refuse: {_some(odd)}"

    def nearest(
        self, text: str, kinds: Collection[str], names: Names, view: str = "", *, with_own: bool = True
    ) -> str | None:
        """The name that is nearest to a text, as a view shows it; `with_own`: or as upstreams list it."""
        stem = text.rstrip("*").rstrip("_+")
        for upstream, (joint, plus, _) in self._joints.items():
            if text.endswith("*") and stem == joint[: -len(JOINT)] and upstream in names:
                return f"{plus if OF_URIS.issuperset(kinds) else joint}*"
        owner = next(filter(None, (self.owner_of(text, kind) for kind in kinds)), None)
        # A prefix is long and the same for many names, so it is left out of the comparison.
        found: dict[str, list[str]] = {}
        overrides = self.overrides.get(view)
        candidates = (
            (upstream, kind, own)
            for upstream, listed in names.items()
            if owner in (None, upstream)
            for kind in kinds
            for own in listed.get(kind, ())
        )
        for upstream, kind, own in islice(candidates, CANDIDATES_LIMIT):
            space = self.namespace.spaces.get(upstream)
            shown = own if kind in OF_URIS else _shown_name(overrides, upstream, kind, own)
            if space is not None and shown is not None:
                full = space.expose_uri(own) if kind in OF_URIS else space.expose_name(shown)
                found.setdefault(shown, []).append(full)
            if with_own:
                found.setdefault(own, []).append(own)
        part = closest(likely_own(text), found, URIS_ALIKE if OF_URIS.issuperset(kinds) else NAMES_ALIKE)
        return None if part is None else closest(text, found[part], 0.0)


def is_among(globs: Sequence[Glob], upstream: str) -> bool:
    """Whether one of the globs fits the name of an upstream; none are for all."""
    return not globs or any(matches(glob, upstream) for glob in globs)


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - MENTIONED
    return ", ".join(texts[:MENTIONED]) + (f" and {more} more" if more > 0 else "")


def _glob(text: str) -> TargetGlob:
    return EVERYTHING if text == "*" else TargetGlob(text)


def _rests(text: str, beginning: str, is_settled: bool) -> list[str]:
    if not beginning:
        return []
    if is_settled:
        return [text.removeprefix(beginning)] if text.startswith(beginning) else []
    return rests_of(text, beginning)


def _shown_name(overrides: Overrides | None, upstream: str, kind: str, own: str) -> str | None:
    if overrides is None:
        return own
    return overrides.shown_name(upstream, kind, own) if overrides.is_shown(upstream, kind, own) else None


# Where no configuration is at hand: of what passed, or at a server that is only a URL.

_SHOWN: Final = re.compile(
    rf"(?:(?P<ui>{UI})[a-z][a-z0-9.-]*/|[a-z][a-z0-9.-]*(?:{JOINT}|\+(?=[A-Za-z][A-Za-z0-9+.-]*:)))(?P<own>.+)",
    re.DOTALL,
)
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def likely_own(text: str) -> str:
    """What an upstream calls something, if its name or URI begins with a prefix, as it looks."""
    found = _SHOWN.fullmatch(text)
    return text if found is None else (found["ui"] or "") + found["own"]


def likely_shown(text: str, upstream: str) -> str:
    """How clients see what an upstream calls so, if its prefix is the one that its name gives it."""
    space = Namespace({upstream: derive_prefix(upstream)}).spaces[upstream]
    return space.expose_uri(text) if _URI.match(text) else space.expose_name(text)


AS_THEY_ARE: Final = Naming(Namespace({}))
"""No upstream has a prefix, and nothing has another name."""


def naming_of(upstreams: Collection[Upstream], views: Mapping[str, View], name_limit: int) -> Naming:
    """The names that things have with the upstreams that are enabled."""
    namespace = Namespace({each.name: each.prefix for each in upstreams}, name_limit)
    return Naming(namespace, overrides_of(views, upstreams, namespace))
