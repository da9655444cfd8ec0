"""Read names in settings and queries: as the upstream has them, or as clients see them. Pure.

The law

    A text that begins with the prefix of an upstream (`docs__search`, `docs+file:///a`, `ui://docs/app`) is
    read as clients see it, any other text as the upstream itself has it.

  * A text that allows or includes has one reading only, so that it never fits more than was meant. With a
    prefix it fits what clients of the view reach under this name, at that upstream, and not another
    upstream's own name of that spelling. A star matches no part of a prefix. Without a prefix it fits every
    upstream's own names, and names as shown of an upstream without a prefix.
  * A text that denies or excludes has every reading: the upstream's own name, each name that is shown in
    some view, with the prefix and without, shortened and whole. A star may match a prefix or a part of
    it, unless the rule names its upstreams: then it is clear already which upstream is meant.
  * A prefix counts when the rule can be about its upstream. In a rule about others the text is one of theirs.

Laws: what an allowing text with a prefix fits is what the text resolves to; a thing that a denying text fits,
by a shown name or by the upstream's own, cannot be used; everything that a text allows, the same text denies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, TypeAlias

from mcpmux.config import Upstream
from mcpmux.config.report import CANDIDATES_LIMIT, closest, suggestion
from mcpmux.config.scalars import derive_prefix
from mcpmux.config.views import RESOURCES, TEMPLATES, TOOLS, View
from mcpmux.mux.override import NO_OVERRIDES, Names, Overrides, overrides_of
from mcpmux.mux.pattern import EVERYTHING, Glob, NameGlob, Target, TargetGlob, matches, rests_of
from mcpmux.mux.rewrite import JOINT, SCHEME, UI, Namespace

OF_URIS: Final = frozenset({RESOURCES, TEMPLATES})
ANY_VIEW: Final = None

Fits: TypeAlias = Callable[[str, str, str, Sequence[Glob], str | None], list[TargetGlob]]
"""Returns the globs for what a text fits of an upstream's things: `Naming.certain` or `Naming.possible`."""

HOST_LIMITS: Final = {"Claude Code": ("mcp__mcpmux__", 64), "Cursor": ("mcpmux", 60)}
"""What host apps that call mcpmux `mcpmux` put before a tool's name, and their limit for both together."""

MENTIONED: Final = 3  # names in one sentence; a server may have hundreds
_MODEL_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")

NAMES_ALIKE: Final = 0.6  # similarity from which a name is suggested
URIS_ALIKE: Final = 0.8  # the same for URIs, whose beginnings are similar anyway


class Naming:
    """The names of upstreams' things: the upstreams' own, and those that clients see in each view.

    `overrides`: by view; those in the settings of upstreams are under "". Immutable.
    """

    def __init__(self, namespace: Namespace, overrides: Mapping[str, Overrides] | None = None) -> None:
        self.namespace = namespace
        self.overrides = overrides or {}
        self._joints = {
            name: (f"{mark}{JOINT}", f"{mark}+", f"{UI}{mark}/") for name, mark in namespace.marks.items()
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Naming) and self._key == other._key

    __hash__ = None  # type: ignore[assignment]  # not needed

    @property
    def _key(self) -> tuple[object, ...]:
        prefixes = {name: space.prefix for name, space in self.namespace.spaces.items()}
        return prefixes, self.namespace.name_limit, self.overrides

    def owner_of(self, text: str, kind: str, among: Sequence[Glob] = ()) -> str | None:
        """Return the upstream with whose prefix a text begins; None for a text without one.

        `among`: globs of the upstreams that may be meant; empty for all.
        """
        resolve = self.namespace.resolve_uri if kind in OF_URIS else self.namespace.resolve_name
        owner = resolve(text)
        if owner is None or owner[1] == text or not is_among(among, owner[0]):
            return None
        return owner[0]

    # Items of one upstream that a text fits

    def certain(
        self, text: str, upstream: str, kind: str, among: Sequence[Glob] = (), view: str | None = ANY_VIEW
    ) -> list[TargetGlob]:
        """Return the globs for what an allowing text surely fits of an upstream's things, in a view."""
        owner = self.owner_of(text, kind, among)
        other = TOOLS if kind in OF_URIS else RESOURCES
        if owner not in (None, upstream) or (owner is None and self.owner_of(text, other, among) is not None):
            return []  # another upstream's, or a name of another kind
        if kind in OF_URIS:
            owner_and_own = self.namespace.resolve_uri(text) if owner is not None else None
            return [_glob(owner_and_own[1] if owner_and_own is not None else text)]
        overrides = self.overrides.get(view or "", NO_OVERRIDES)
        space = self.namespace.spaces.get(upstream)
        if owner is None and (text == "*" or not overrides or space is None or space.prefix):
            return [_glob(text)]
        joint = self._joints[upstream][0] if owner is not None else ""
        if text == f"{joint}*":
            return [EVERYTHING]
        # A shortened name cannot be cut at its joint: only spelling out each own name finds it.
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
        """Return the globs for what a denying text may fit of an upstream's things. ANY_VIEW: in any view."""
        if text == "*":
            return [EVERYTHING]
        joints = self._joints.get(upstream, ("", "", ""))
        # In a rule that names its upstreams a star is not needed to match their prefixes.
        is_settled = bool(among) and all(len(glob) == 1 for glob in among)
        if kind in OF_URIS:
            _, plus, ui = joints
            texts = [text, *_rests(text, plus, is_settled)]
            texts += [f"{UI}{rest}" for rest in _rests(text, ui, is_settled)]
            return [_glob(text) for text in dict.fromkeys(texts)]
        space, joint = self.namespace.spaces.get(upstream), joints[0]
        shows = [override for name, override in self.overrides.items() if view in (ANY_VIEW, name)]
        is_prefixed = bool(joint) and (not is_settled or text.startswith(joint))

        def spellings_of(own: str) -> Iterator[str]:
            for name in {own, *(shown.shown_name(upstream, kind, own) for shown in shows)}:
                yield name
                if is_prefixed and space is not None:
                    yield f"{joint}{name}"
                    yield space.expose_name(name)

        return [NameGlob(text, spellings_of)]

    # Listed items

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
        """Yield a sentence when a text at `place` in the settings selects no listed thing.

        `among`: globs of the upstreams that it is about; `fits`: `certain` or `possible`.
        """
        owner = next(filter(None, (self.owner_of(text, kind, among) for kind in kinds)), None)
        about = [upstream for upstream in upstreams if is_among(among, upstream)]
        # An upstream that is missing from `names` may have any thing.
        if not about or any(name not in names for name in (about if owner is None else [owner])):
            return
        listed = {upstream: names[upstream] for upstream in about if upstream in names}
        if not self.is_listed(text, kinds, among, listed, fits, view):
            hint = suggestion(self.nearest(text, kinds, listed, view or ""))
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
        """Return whether a text selects anything that the upstreams in `names` list."""
        for upstream, kind in ((upstream, kind) for upstream in names for kind in kinds):
            listed = names[upstream]
            targets = [Target(own, is_uri=kind in OF_URIS) for own in listed.get(kind, ())]
            if kind == RESOURCES:  # a resource may come from a template without being listed
                targets += [Target(own, is_template=True) for own in listed.get(TEMPLATES, ())]
            globs = fits(text, upstream, kind, among, view) if targets else []
            if any(target.may_be_in(glob) for target in targets for glob in globs):
                return True
        return False

    def find_long(self, names: Names) -> Iterator[str]:
        """Yield sentences about names of tools that host apps or models may not accept."""
        for upstream, listed in names.items():
            space, overrides = self.namespace.spaces[upstream], self.overrides.get("", NO_OVERRIDES)
            shown = {
                name: space.expose_name(name)
                for own in listed.get(TOOLS, ())
                if (name := _shown_name(overrides, upstream, TOOLS, own)) is not None
            }
            short = [f"`{name}` is `{seen}`" for name, seen in shown.items() if not seen.endswith(name)]
            if short:
                yield f"tools of {upstream} with shortened names: {_some(short)}"
            for host, (head, limit) in HOST_LIMITS.items():
                long = [f"`{seen}`" for seen in shown.values() if len(head) + len(seen) > limit]
                if long:
                    most = limit - len(head)
                    yield (
                        f"tools of {upstream} with names too long for {host}, which allows {most} characters "
                        f"({limit} with `{head}`): {_some(long)}; set `merging.name_limit` and a `prefix`, "
                        "or rename them by `overrides`"
                    )
            odd = [f"`{seen}`" for seen in shown.values() if not _MODEL_NAME.fullmatch(seen)]
            if odd:
                yield f"tools of {upstream} with names that model APIs may refuse: {_some(odd)}"

    def nearest(
        self, text: str, kinds: Collection[str], names: Names, view: str = "", *, with_own: bool = True
    ) -> str | None:
        """Return the shown name that is nearest to a text; `with_own`: or the upstreams' own name."""
        # `docs_*` or `docs+*` with a mistake in the joint: suggest the upstream's own joint.
        stem = text.rstrip("*").rstrip("_+")
        for upstream, (joint, plus, _) in self._joints.items():
            if text.endswith("*") and stem == joint[: -len(JOINT)] and upstream in names:
                return f"{plus if OF_URIS.issuperset(kinds) else joint}*"
        owner = next(filter(None, (self.owner_of(text, kind) for kind in kinds)), None)
        # A prefix is long and the same for many names, so it is left out of the comparison.
        full_names: dict[str, list[str]] = {}
        overrides = self.overrides.get(view, NO_OVERRIDES)
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
                full_names.setdefault(shown, []).append(full)
            if with_own:
                full_names.setdefault(own, []).append(own)
        part = closest(likely_own(text), full_names, URIS_ALIKE if OF_URIS.issuperset(kinds) else NAMES_ALIKE)
        return None if part is None else closest(text, full_names[part], 0.0)


def is_among(globs: Sequence[Glob], text: str) -> bool:
    """Return whether one of the globs fits a text, such as the name of an upstream; no globs fit all."""
    return not globs or any(matches(glob, text) for glob in globs)


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


def _shown_name(overrides: Overrides, upstream: str, kind: str, own: str) -> str | None:
    return overrides.shown_name(upstream, kind, own) if overrides.is_shown(upstream, kind, own) else None


# Names without a configuration: in recorded messages, or of a server that is only given by its URL.

_SHOWN: Final = re.compile(
    rf"(?:(?P<ui>{UI})[a-z][a-z0-9.-]*/|[a-z][a-z0-9.-]*(?:{JOINT}|\+(?={SCHEME.pattern})))(?P<own>.+)",
    re.DOTALL,
)


def likely_own(text: str) -> str:
    """Return the probable name at the upstream, without the prefix that the text seems to begin with."""
    match = _SHOWN.fullmatch(text)
    return text if match is None else (match["ui"] or "") + match["own"]


def likely_shown(text: str, upstream: str) -> str:
    """Return the probable name that clients see, if the prefix is the one derived from its name."""
    space = Namespace({upstream: derive_prefix(upstream)}).spaces[upstream]
    return space.expose_uri(text) if SCHEME.match(text) else space.expose_name(text)


AS_THEY_ARE: Final = Naming(Namespace({}))
"""Names without prefixes and overrides."""


def naming_of(upstreams: Collection[Upstream], views: Mapping[str, View], name_limit: int) -> Naming:
    """Return the names of things at the enabled upstreams."""
    namespace = Namespace({upstream.name: upstream.prefix for upstream in upstreams}, name_limit)
    return Naming(namespace, overrides_of(views, upstreams, namespace))
