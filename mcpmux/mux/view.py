"""Decide what a view selects, and read the query by which a client narrows it. Pure.

A Selection is immutable: another configuration is another one.

The law

    A view contains what matches an `include` entry (everything, if it has none) and no `exclude` entry.

  * A selector fits when each of its members fits: the upstream, the kind, the name. The name is a URI, a
    template or a name as the upstream itself has it, or as clients of the view see it (see `naming`). A URI
    can be written in many ways (see `pattern`): an `include` fits when its glob fits every reading of the
    URI, an `exclude` when it fits any.
  * Everything that a template can stand for, as far as its literal text shows, may be read when the template
    is included. Excluding a template leaves that to the selectors of resources.
  * A selector that names annotations is about tools, as their server describes them. The server's tools have
    to be learned first (`learn`): until then such an `include` fits none, and such an `exclude` all.
  * What is unknown of a thing counts against it, as in a Policy. Methods that mcpmux does not know are in a
    view that has all of the upstream.

A view permits no use: an exchange in a view must be allowed by the Policy, too.

The query of a client's URL narrows its view: `?tools=search*,read&upstreams=docs`. `upstreams` names
upstreams; `tools`, `prompts`, `resources` and `templates` name items as upstreams have them. Each is a list
of globs, separated by commas; an absent key does not narrow the view, but with `resources` alone there are no
templates. Other parts of a query are ignored, unless one looks like a misspelt key. A narrowing becomes
Views, one of the upstreams and one of the items: the client gets what is in its own view and in these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote, unquote_plus

from mcpmux.config import Upstream
from mcpmux.config.report import InvalidValue, closest
from mcpmux.config.views import ITEM, KINDS, PROMPTS, RESOURCES, SEARCH, TEMPLATES, TOOLS, Selector, View
from mcpmux.errors import McpmuxError
from mcpmux.mux.naming import ANY_VIEW, AS_THEY_ARE, OF_URIS, Fits, Naming, is_among
from mcpmux.mux.override import Names
from mcpmux.mux.pattern import (
    EVERYTHING,
    ExactNames,
    Glob,
    Target,
    TargetGlob,
    matches,
    parse_glob,
    template_glob,
)
from mcpmux.mux.policy import KINDS_OF_USE, NAMES_URIS, SOME, Decision, as_target
from mcpmux.protocol import method as m
from mcpmux.protocol.principal import Principal

KIND_OF_LIST: Final = {
    m.RESOURCES_LIST: RESOURCES,
    m.TEMPLATES_LIST: TEMPLATES,
    m.TOOLS_LIST: TOOLS,
    m.PROMPTS_LIST: PROMPTS,
    m.TASKS_LIST: TOOLS,  # a task belongs to the use of its tool
}


class _Selected:
    """A view's selection of one kind of an upstream's things: those that `included` fits and `excluded` not.

    `is_all`: everything is selected, so that a thing need not be known. `is_possible`: something may be
    selected.
    """

    __slots__ = ("excluded", "included", "is_all", "is_possible")

    def __init__(
        self, included: Sequence[TargetGlob], excluded: Sequence[TargetGlob], *, is_unknown: bool = False
    ) -> None:
        """`is_unknown`: the server's tools have to be learned first."""
        self.included = included
        self.excluded = excluded
        self.is_all = EVERYTHING in included and not excluded
        self.is_possible = is_unknown or (bool(included) and EVERYTHING not in excluded)

    def has(self, target: Target) -> bool:
        """Return whether a target is selected for sure."""
        if EVERYTHING not in self.included and not any(target.is_in(glob) for glob in self.included):
            return False
        return not any(target.may_be_in(glob) for glob in self.excluded)


READABLE: Final = "readable"  # beside the kinds: the resources that can be read


class Selection:
    """The selection of a view, for all principals alike. `admits` decides who may use it."""

    def __init__(
        self,
        rule: str,
        view: View,
        naming: Naming = AS_THEY_ARE,
        name: str | None = ANY_VIEW,
    ) -> None:
        """`rule`: the name to give when it refuses something.

        `name`: of the view whose clients see the names; ANY_VIEW for a selection that holds in all views.
        """
        self._rule = rule
        self._naming, self._name = naming, name
        self._yes, self._no = Decision(True, rule), Decision(False, rule)
        self._view = view
        self._principals = tuple(map(parse_glob, view.principals))
        self._known: dict[tuple[str, str], _Selected] = {}  # by upstream and kind, which are configured
        self.hints: dict[str, Hints] = {}  # of the tools of upstreams
        self._asking = [selector for selector in (*view.include, *view.exclude) if selector.hints]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Selection) or (self._rule, self._view) != (other._rule, other._view):
            return False
        is_named = any(selector.name is not None for selector in (*self._view.include, *self._view.exclude))
        return not is_named or self._naming == other._naming

    def __hash__(self) -> int:
        return hash(self._rule)

    @property
    def is_searched(self) -> bool:
        """Whether its tools are searched instead of listed."""
        return self._view.tools == SEARCH

    def asks_hints(self, upstream: str) -> bool:
        """Return whether the annotations of an upstream's tools matter to it."""
        return any(_is_about(selector, upstream, TOOLS) for selector in self._asking)

    @property
    def goes_by_hints(self) -> bool:
        """Whether the annotations of the tools of any upstream matter to it."""
        return bool(self._asking)

    def learn(self, upstream: str, hints: Hints) -> None:
        """Decide by these hints of an upstream's tools from now on."""
        self.hints[upstream] = hints
        self._known.pop((upstream, TOOLS), None)

    def admits(self, principal: Principal) -> bool:
        """Return whether the view exists for a principal."""
        if not self._principals:
            return True
        return bool(principal) and any(matches(glob, principal.name) for glob in self._principals)

    def decide(
        self, principal: Principal, upstream: str, method: str, target: str | Target | None
    ) -> Decision:
        """See Rules. The principal does not matter."""
        return self._yes if self._has(upstream, method, target) else self._no

    def _has(self, upstream: str, method: str, target: str | Target | None) -> bool:
        if method in NAMES_URIS:
            selected = self._readable(upstream)
        elif method in KIND_OF_LIST:
            selected = self._selected(upstream, KIND_OF_LIST[method])
        elif method in KINDS_OF_USE:
            kinds = KINDS_OF_USE[method]
            if target is SOME:
                return any(self._selected(upstream, kind).is_possible for kind in kinds)
            selected = self._selected(upstream, kinds[0])
        else:
            return all(self._selected(upstream, kind).is_all for kind in KINDS)
        if isinstance(target, Target) and target.is_template:
            selected, target = self._selected(upstream, TEMPLATES), Target(target.text)
        if selected.is_all:
            return True
        if target is SOME:
            return selected.is_possible
        object_ = as_target(method, target)
        return object_ is not None and selected.has(object_)

    def rule_for(self, upstream: str, kind: str, item: str) -> str:
        """Return the path of the first `include` that puts a thing in the view, "" when there is none."""
        target = Target(item, is_uri=kind in (RESOURCES, TEMPLATES))
        for number, selector in enumerate(self._view.include):
            if _is_about(selector, upstream, kind):
                hints = self.hints.get(upstream, {})
                globs = self._globs(self._naming.certain, [selector], upstream, kind, hints)
                if any(target.is_in(glob) for glob in globs):
                    return f"{self._rule}.include[{number}]"
        return ""

    def _readable(self, upstream: str) -> _Selected:
        """Return the selection of readable resources: the selected ones, and those of selected templates."""
        if (readable := self._known.get((upstream, READABLE))) is None:
            listed = self._selected(upstream, RESOURCES)
            selectors = self._view.include
            including = [selector for selector in selectors if _is_about(selector, upstream, TEMPLATES)]
            templates = self._globs(self._naming.certain, including, upstream, TEMPLATES, {})
            # A template stands for its literal text, with any text in place of the expressions.
            texts = ["*".join(template_glob("*".join(template.glob))) for template in templates]
            expansions = [EVERYTHING if text == "*" else TargetGlob(text) for text in texts]
            readable = _Selected([*listed.included, *expansions], listed.excluded)
            self._known[upstream, READABLE] = readable
        return readable

    def _selected(self, upstream: str, kind: str) -> _Selected:
        if (selected := self._known.get((upstream, kind))) is None:
            selected = self._known[upstream, kind] = self._select(upstream, kind)
        return selected

    def _select(self, upstream: str, kind: str) -> _Selected:
        known_hints, certain = self.hints.get(upstream), self._naming.certain
        included, excluded = (
            [selector for selector in selectors if _is_about(selector, upstream, kind)]
            for selectors in (self._view.include, self._view.exclude)
        )
        if known_hints is None and any(selector.hints for selector in (*included, *excluded)):
            included = [selector for selector in included if not selector.hints]
            # The hints are unknown: no tool is certain, and all may be excluded, but later some may fit.
            globs = self._globs(certain, included, upstream, kind, {})
            return _Selected(globs, [EVERYTHING], is_unknown=True)
        hints = known_hints or {}
        includes = self._globs(certain, included, upstream, kind, hints)
        excludes = self._globs(self._naming.possible, excluded, upstream, kind, hints)
        return _Selected(includes if self._view.include else [EVERYTHING], excludes)

    def _globs(
        self, fits: Fits, selectors: Iterable[Selector], upstream: str, kind: str, known: Hints
    ) -> list[TargetGlob]:
        """Return the globs for what selectors fit for sure, or perhaps, given the known tools."""
        globs: list[TargetGlob] = []
        for selector in selectors:
            own = fits(selector.name or "*", upstream, kind, _among(selector), self._name)
            if selector.hints:
                # Then it is about the known tools with these hints, by their names.
                hints_asked_for = selector.hints.items()
                fitting = (name for name, hints in known.items() if hints_asked_for <= hints.items())
                names = [name for name in fitting if any(glob.fits(name) for glob in own)]
                own = [ExactNames(names)] if names else []
            globs += own
        return globs


def _among(selector: Selector) -> tuple[Glob, ...]:
    return () if selector.upstream is None else (parse_glob(selector.upstream),)


def _is_about(selector: Selector, upstream: str, kind: str) -> bool:
    is_of_kind = kind == TOOLS if selector.hints else selector.kind in (None, kind)
    return is_of_kind and is_among(_among(selector), upstream)


Hints: TypeAlias = Mapping[str, Mapping[str, bool]]
"""The hints in the annotations of tools, by the names of the tools."""


def hints_of(annotations: Any) -> dict[str, bool]:
    """Return the hints in the annotations of a tool, of any type, with the defaults of the specification.

    Source: `ToolAnnotations` of 2026-07-28.
    """
    # Without annotations a tool may do anything.
    members = annotations if isinstance(annotations, dict) else {}
    # A tool that only reads does not destroy, and a repeated call has no further effect.
    reads_only = members.get("readOnlyHint") is True
    return {
        "readOnlyHint": reads_only,
        "destructiveHint": not reads_only and members.get("destructiveHint") is not False,
        "idempotentHint": reads_only or members.get("idempotentHint") is True,
        "openWorldHint": members.get("openWorldHint") is not False,
    }


def overridden(hints: Mapping[str, bool], annotations: Mapping[str, bool]) -> Mapping[str, bool]:
    """Return the hints of a tool as clients see them, with overridden annotations."""
    if not annotations:
        return hints
    members = {**hints, **annotations}
    if annotations.get("readOnlyHint") is False:  # what did not destroy, as it only read, may do so
        members["destructiveHint"] = annotations.get("destructiveHint", True)
    return hints_of(members)


def selections_of(views: Mapping[str, View], naming: Naming = AS_THEY_ARE) -> dict[str, Selection]:
    """Return the views of a configuration, ready to be applied."""
    return {name: Selection(f"views.{name}", view, naming=naming, name=name) for name, view in views.items()}


def selection_of(upstreams: Collection[Upstream], naming: Naming = AS_THEY_ARE) -> Selection | None:
    """Return the selection by the tables of upstreams, for every view; None if that is everything."""
    include: list[Selector] = []
    exclude: list[Selector] = []
    for upstream in upstreams:
        name, tools = upstream.name, upstream.tools
        if tools.included is None:
            include.append(Selector(upstream=name))
        else:
            include += [Selector(upstream=name, kind=TOOLS, name=tool) for tool in tools.included]
            include += [Selector(upstream=name, kind=kind) for kind in KINDS if kind != TOOLS]
        exclude += [Selector(upstream=name, kind=TOOLS, name=tool) for tool in tools.excluded]
    if all(upstream.tools.is_all for upstream in upstreams):
        return None
    return Selection("upstreams", View(include=tuple(include), exclude=tuple(exclude)), naming=naming)


def find_unmatched(
    views: Mapping[str, View], upstreams: Collection[Upstream], names: Names, naming: Naming = AS_THEY_ARE
) -> Iterator[str]:
    """Yield a sentence for each name that selects no listed thing, with the nearest name there is.

    An upstream that is missing from `names` may have any thing.
    """
    for name, view in views.items():
        for key, selectors in (("include", view.include), ("exclude", view.exclude)):
            for number, selector in enumerate(selectors):
                if selector.name is not None and not selector.hints:
                    place, kinds = (
                        f"views.{name}.{key}[{number}].name",
                        [selector.kind] if selector.kind else KINDS,
                    )
                    fits = naming.certain if key == "include" else naming.possible
                    yield from naming.find_idle(
                        place,
                        selector.name,
                        kinds,
                        _among(selector),
                        [upstream.name for upstream in upstreams],
                        names,
                        fits,
                        name,
                    )
    for upstream in upstreams:
        for fits, tools in (
            (naming.certain, upstream.tools.included or ()),
            (naming.possible, upstream.tools.excluded),
        ):
            for tool in tools:
                place, among = f"tools of {upstream.name}", (parse_glob(upstream.name),)
                yield from naming.find_idle(place, tool, [TOOLS], among, [upstream.name], names, fits)


# Queries

UPSTREAMS: Final = "upstreams"
KEYS: Final = (UPSTREAMS, *KINDS)

MOST_BYTES: Final = 4096  # of a query
MOST_GLOBS: Final = 64  # in a query; each is compared with each item of each upstream
REMEMBERED: Final = 1024  # queries: a client repeats its query with each request
REMEMBERED_LENGTH: Final = 512  # characters; so the memory for them stays below 1 MB or so
_ALIKE: Final = 0.8
_PLAIN: Final = "*/:{}.~"  # characters that are not percent-encoded, besides letters and digits


class BadNarrowing(McpmuxError):
    """A part of a query is invalid; the text names it."""


def read_narrowing(query: str) -> str:
    """Return the narrowing of a query in canonical form; "" for none. Raises BadNarrowing."""
    return _read_again(query) if len(query) <= REMEMBERED_LENGTH else _read(query)


def _read(query: str) -> str:
    named: dict[str, set[str]] = {}
    for part in query.split("&"):
        key, _, value = part.partition("=")
        key = unquote_plus(key)
        if key not in KEYS:
            if (close := closest(key, KEYS, _ALIKE)) is not None:
                raise BadNarrowing(f"the query has a part {key}; did you mean {close}?")
            continue
        # After the check of the key: a long query for other purposes is no mistake.
        if len(query) > MOST_BYTES:
            raise BadNarrowing(f"the query has more than {MOST_BYTES} characters")
        items = value.split(",", MOST_GLOBS)
        if len(items) + sum(map(len, named.values())) > MOST_GLOBS:
            raise BadNarrowing(
                f"the query names more than {MOST_GLOBS} things; a * stands for any characters"
            )
        # No URI has a space in it, so that the + behind a prefix can be written as it is.
        for item in map(unquote if key in OF_URIS else unquote_plus, items):
            try:
                named.setdefault(key, set()).add(str(ITEM.read(item)))
            except InvalidValue as mistake:
                raise BadNarrowing(f"the query's {key}: {mistake}; commas stand between several") from None
    parts = []
    for key in KEYS:
        if key in named:
            # Sorted, so that queries for the same things have the same narrowing.
            encoded = ",".join(quote(item, safe=_PLAIN) for item in sorted(named[key]))
            parts.append(f"{key}={encoded}")
    return "&".join(parts)


_read_again = lru_cache(REMEMBERED)(_read)


def globs_in(narrowing: str) -> Mapping[str, list[str]]:
    """Return the globs in a result of `read_narrowing`, by key."""
    parts = [part.partition("=") for part in narrowing.split("&")]
    return {key: [unquote_plus(item) for item in value.split(",")] for key, _, value in parts}


def views_of(narrowing: str) -> Iterator[View]:
    """Yield the Views for a result of `read_narrowing`; the client gets what is in all of them."""
    # Two views together hold as many selectors as the query has globs, one view the products of lists.
    globs = {**globs_in(narrowing)}
    upstreams = globs.pop(UPSTREAMS, None)
    if upstreams is not None:
        yield View(include=tuple(Selector(upstream=upstream) for upstream in upstreams))
    if RESOURCES in globs:  # included templates would allow all resources that they stand for
        globs.setdefault(TEMPLATES, [])
    if globs:
        yield View(
            include=tuple(Selector(kind=kind, name=name) for kind in KINDS for name in globs.get(kind, ["*"]))
        )
