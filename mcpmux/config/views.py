"""Views: named selections of what upstreams have, each at its own path. Settings only.

A view selects and does not permit: an item that `[[access]]` denies is in no view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, TypeAlias

from attrs import field, frozen

from mcpmux.config.auth import PRINCIPALS, UPSTREAMS
from mcpmux.config.listener import CARD, Listeners
from mcpmux.config.report import InvalidValue, hint_at
from mcpmux.config.scalars import NAME_PATTERN, Anything, Choice, Flag, Text, find_no_number, read_only
from mcpmux.errors import KeyPath, Problem

TOOLS: Final = "tools"
PROMPTS: Final = "prompts"
RESOURCES: Final = "resources"
TEMPLATES: Final = "templates"
KINDS: Final = (TOOLS, PROMPTS, RESOURCES, TEMPLATES)

LIST: Final = "list"
SEARCH: Final = "search"

HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
Hint: TypeAlias = Annotated[bool, Flag()] | None

UPSTREAM_NAME: Final = Text("the name of an upstream", NAME_PATTERN)
EXACT_NAME: Final = Text("text without control characters that is not empty", r"[^\x00-\x1f\x7f]+")
ITEM: Final = Text(
    "a name, URI or URI template as the upstream has it or as clients see it, in which * stands for any text",
    r"[^\x00-\x1f\x7f\ue000]+",
)


@frozen(kw_only=True)
class Selector:
    """What fits everything that is named here."""

    upstream: Annotated[str, UPSTREAMS] | None = None
    """Name of the upstream. * stands for any text. Default: all."""
    kind: Annotated[str, Choice(KINDS)] | None = None
    """`tools`, `prompts`, `resources` or `templates`. Default: all."""
    name: Annotated[str, ITEM] | None = None
    """Name, URI or URI template as the upstream has it, or as clients see it, with the prefix. * stands for
    any text. Default: all.
    """
    readOnlyHint: Hint = None  # noqa: N815  # the specification's spelling, here and below
    """Tools whose annotations say that they change nothing (`true`), or that do not say so."""
    destructiveHint: Hint = None  # noqa: N815
    """Tools that may destroy something (`true`), which a tool without this annotation may do."""
    idempotentHint: Hint = None  # noqa: N815
    """Tools that do nothing more when they are called again (`true`)."""
    openWorldHint: Hint = None  # noqa: N815
    """Tools that deal with the world outside (`true`), which a tool without this annotation may do."""

    def __attrs_post_init__(self) -> None:
        if self.upstream is None and self.kind is None and self.name is None and not self.hints:
            raise InvalidValue("expected at least one of `upstream`, `kind`, `name` and the hints of tools")
        if self.hints and self.kind not in (None, TOOLS):
            raise InvalidValue(f'`{next(iter(self.hints))}` is about tools; expected `kind` "tools", or none')

    @property
    def hints(self) -> dict[str, bool]:
        """The values that a tool's annotations must have, by name."""
        hints = {name: getattr(self, name) for name in HINTS}
        return {name: hint for name, hint in hints.items() if hint is not None}


@frozen(kw_only=True)
class Parameter:
    """One parameter of a tool as clients see it, instead of the server's own."""

    description: Annotated[str, Text()] | None = None
    """Description for the model."""
    default: Annotated[Any, Anything()] = None
    """What the server gets when a call does not name the parameter. It is shown as the default."""
    required: Annotated[bool, Flag()] | None = None
    """Whether a call must name the parameter."""
    hidden: Annotated[bool, Flag()] = False
    """`true`: clients do not see the parameter and cannot set it. The server gets `default`, if any."""
    value: Annotated[Any, Anything()] = None
    """What the server always gets. Clients do not see the parameter and cannot set it."""

    def __attrs_post_init__(self) -> None:
        place = find_no_number(self.default, "default") or find_no_number(self.value, "value")
        if place is not None:  # of a configuration that a program has made
            raise InvalidValue(f"expected what JSON can hold, but {place}")
        if self.value is not None and (self.hidden or self.default is not None):
            raise InvalidValue("`value` is what the server always gets; remove `hidden` and `default`")
        if not self.is_shown and (self.required is not None or self.description is not None):
            raise InvalidValue("clients do not see this parameter; remove `required` and `description`")
        if self.required and self.default is not None:
            raise InvalidValue("`required` and `default` are given; remove one of them")

    @property
    def is_shown(self) -> bool:
        return not self.hidden and self.value is None


@frozen(kw_only=True)
class Override:
    """A tool or prompt as clients see it, instead of the server's own. Members that are left out stay."""

    kind: Annotated[str, Choice((TOOLS, PROMPTS))] = TOOLS
    """`tools` or `prompts`."""
    name: Annotated[str, EXACT_NAME]
    """Its whole name, as the server has it, or as clients see it without an override."""
    rename: Annotated[str, EXACT_NAME] | None = None
    """Another name. Clients cannot use the old one any more."""
    title: Annotated[str, Text()] | None = None
    """Title for people."""
    description: Annotated[str, Text()] | None = None
    """Description for the model."""
    annotations: Mapping[Annotated[str, Choice(HINTS)], Annotated[bool, Flag()]] = field(
        factory=dict, converter=read_only
    )
    """Annotations of a tool: `readOnlyHint`, `destructiveHint`, `idempotentHint` and `openWorldHint`."""
    icons: tuple[Mapping[Annotated[str, EXACT_NAME], Annotated[Any, Anything()]], ...] | None = None
    """Icons: tables with `src`, `mimeType` and so on. [] removes them."""

    parameters: Mapping[Annotated[str, EXACT_NAME], Parameter] = field(factory=dict, converter=read_only)
    """Parameters of a tool, by name. Arguments are then checked before the call."""

    def __attrs_post_init__(self) -> None:
        for key in ("annotations", "parameters"):
            if getattr(self, key) and self.kind == PROMPTS:
                raise InvalidValue(f"`{key}` are about tools; leave them out")


@frozen(kw_only=True)
class ViewOverride(Override):
    """An override in a view."""

    upstream: Annotated[str, UPSTREAM_NAME]
    """Name of the upstream."""


@frozen(kw_only=True)
class View:
    """A selection, served at `/mcp/NAME` where `/mcp` is the path of a listener."""

    include: tuple[Selector, ...] = ()
    """What is in the view: what at least one of these fits. Default: everything."""
    exclude: tuple[Selector, ...] = ()
    """What is not in the view, even if it is included."""
    principals: tuple[Annotated[str, PRINCIPALS], ...] = ()
    """Names of principals who may use the view. * stands for any text. Default: all. For all others
    the view does not exist.
    """

    tools: Annotated[str, Choice((LIST, SEARCH))] = LIST
    """`search`: clients get two tools in place of all others. `find_tools` finds those of the view by what
    they do, `call_tool` calls one.
    """
    overrides: tuple[ViewOverride, ...] = ()
    """Tools and prompts as clients of the view see them, instead of the servers' own."""

    def __attrs_post_init__(self) -> None:
        if not self.include and not self.exclude and not self.overrides and self.tools == LIST:
            raise InvalidValue(
                "expected `include`, `exclude`, `tools` or `overrides`; without them it has everything"
            )


def find_mistakes(
    views: Mapping[str, View | None], upstreams: Sequence[str], listeners: Listeners
) -> Iterator[Problem]:
    """Yield every mistake about views that only appears beside the upstreams and listeners.

    None stands for a view with mistakes.
    """
    if CARD in views:
        text = "at its path is the server card of mcpmux; give the view another name"
        yield Problem(("views", CARD), text)
    for name, view in views.items():
        if view is None:
            continue
        named: dict[str, Sequence[Selector | ViewOverride]]
        named = {"include": view.include, "exclude": view.exclude, "overrides": view.overrides}
        for key, items in named.items():
            for number, item in enumerate(items):
                glob = item.upstream or "*"  # the name in an override has no *
                if not any(fnmatchcase(upstream, glob) for upstream in upstreams):
                    text = f"there is no upstream of this name{hint_at(item.upstream, upstreams)}"
                    yield Problem(("views", name, key, number, "upstream"), text)
        pairs = [(override.upstream, override) for override in view.overrides]
        yield from (problem.under("views", name) for problem in find_clashing(pairs))
    names: dict[KeyPath, str | None] = {("stdio_view",): listeners.stdio_view}
    names |= {("tcp", number, "view"): listener.view for number, listener in enumerate(listeners.tcp)}
    names |= {("unix", number, "view"): listener.view for number, listener in enumerate(listeners.unix)}
    for place, chosen in names.items():
        if chosen is not None and chosen not in views:
            yield Problem(("listeners", *place), f"there is no view of this name{hint_at(chosen, views)}")


def find_clashing(overrides: Sequence[tuple[str, Override]]) -> Iterator[Problem]:
    """Yield every mistake about overrides, each of an upstream, that do not go together."""
    named = Counter((upstream, override.kind, override.name) for upstream, override in overrides)
    renamed = Counter(
        (upstream, override.kind, override.rename) for upstream, override in overrides if override.rename
    )
    kept = {
        (upstream, override.kind, override.name)
        for upstream, override in overrides
        if override.rename is None
    }
    for number, (upstream, override) in enumerate(overrides):
        if named[upstream, override.kind, override.name] > 1:
            yield Problem(("overrides", number, "name"), "another override is about the same")
        taken = upstream, override.kind, override.rename or override.name
        if override.rename is not None and (renamed[taken] > 1 or taken in kept):
            yield Problem(("overrides", number, "rename"), "another one has this name")
