"""Replace what upstreams say about tools and prompts by overrides of views and settings. Pure.

Laws: a shown name leads back to the thing that it is shown for, and to no other; a renamed thing has lost its
own name, which may then be another thing's. A view's override adds to the one in the settings of the
upstream, and wins where both set the same member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from mcpmux.config import Upstream
from mcpmux.config.report import closest
from mcpmux.config.views import PROMPTS, TOOLS, Override, View
from mcpmux.mux.parameters import Parameters, find_bad_values, override_schema
from mcpmux.mux.rewrite import Namespace
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import decode_any, members_of, raw
from mcpmux.protocol.raw_json import Fields

KIND_OF: Final = {
    m.TOOLS_LIST: TOOLS,
    m.TOOLS_CALL: TOOLS,
    m.PROMPTS_LIST: PROMPTS,
    m.PROMPTS_GET: PROMPTS,
    m.COMPLETE: PROMPTS,
}
"""The kind of thing that a list has, or that a request uses by its name."""


Names: TypeAlias = Mapping[str, Mapping[str, Sequence[str]]]
"""What upstreams list: names, URIs and templates by kind (KINDS), by upstream."""


class Overrides:
    """All overrides that hold in one view, by (upstream, kind) and the upstream's own names."""

    def __init__(self, overrides: Iterable[tuple[str, Override]]) -> None:
        """Pairs of an upstream and an override; later ones add to earlier ones about the same thing."""
        self._by_own: dict[tuple[str, str], dict[str, Override]] = {}
        for upstream, override in overrides:
            known = self._by_own.setdefault((upstream, override.kind), {})
            before = known.get(override.name)
            known[override.name] = override if before is None else _added(before, override)
        self._by_shown = {
            place: {each.rename: own for own, each in known.items() if each.rename is not None}
            for place, known in self._by_own.items()
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Overrides) and self._by_own == other._by_own

    __hash__ = None  # type: ignore[assignment]  # not needed

    def own_name(self, upstream: str, kind: str, shown: str) -> str | None:
        """Return the upstream's own name for a shown one; None for the original name of a renamed thing."""
        place = upstream, kind
        if place not in self._by_own:
            return shown
        own = self._by_shown[place].get(shown)
        if own is not None:
            return own
        override = self._by_own[place].get(shown)
        return shown if override is None or override.rename in (None, shown) else None

    def is_shown(self, upstream: str, kind: str, own: str) -> bool:
        """Return whether a thing can be shown: not if another thing has been given its name."""
        return own in self._by_own.get((upstream, kind), {}) or self.own_name(upstream, kind, own) == own

    def shown_name(self, upstream: str, kind: str, own: str) -> str:
        """Return the name under which a thing is shown."""
        override = self._by_own.get((upstream, kind), {}).get(own)
        return own if override is None else override.rename or own

    def parameters(self, upstream: str, own: str) -> Parameters:
        """Return the overridden parameters of an upstream's tool."""
        override = self._by_own.get((upstream, TOOLS), {}).get(own)
        return override.parameters if override is not None else {}

    def has_parameters(self, upstream: str) -> bool:
        """Return whether parameters of any tool of an upstream are overridden."""
        return any(each.parameters for each in self._by_own.get((upstream, TOOLS), {}).values())

    def apply(
        self,
        upstream: str,
        kind: str,
        names: Iterable[str | None],
        items: Iterable[Fields],
        expose: Callable[[str], str] = str,
    ) -> list[bool]:
        """Change the items of a list, as clients see them, in place. Return whether each can be shown.

        `names`: the upstream's own; `expose`: adds the upstream's prefix to a name.
        """
        known, shown = self._by_own.get((upstream, kind), {}), []
        for own, item in zip(names, items, strict=True):
            shown.append(own is None or self.is_shown(upstream, kind, own))
            if own is not None and own in known:
                _apply(known[own], item, expose)
        return shown

    def find_misplaced(self, names: Names) -> Iterator[str]:
        """Yield a sentence for each override of a thing that is not listed, and for each taken new name."""
        for (upstream, kind), known in self._by_own.items():
            if upstream not in names:
                continue
            # In their order, as the closest is looked for among the first; `in` needs no walk over all.
            listed = dict.fromkeys(names[upstream].get(kind, ()))
            about = f"an override of {kind} of {upstream}"
            for own, override in known.items():
                if own not in listed:
                    close = closest(own, listed)
                    hint = f"; did you mean `{close}`?" if close else ""
                    yield f"{about}: none is called {own}{hint}"
                elif override.rename in listed and override.rename not in known:
                    yield f"{about}: {own} gets the name {override.rename}, which hides what is called so"

    def find_bad_parameters(self, schemas: Schemas) -> Iterator[str]:
        """Yield a sentence for each overridden parameter that contradicts its tool's input schema."""
        for (upstream, kind), known in self._by_own.items():
            for own, override in known.items():
                schema = schemas.get(upstream, {}).get(own) if kind == TOOLS else None
                for text in find_bad_values(schema, override.parameters) if schema is not None else ():
                    yield f"an override of {own} of {upstream}: {text}"


Schemas: TypeAlias = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Input schemas by upstream and tool."""


def _apply(override: Override, item: Fields, expose: Callable[[str], str]) -> None:
    if override.rename is not None:
        item["name"] = raw(expose(override.rename))
    if override.title is not None:
        item["title"] = raw(override.title)
    if override.description is not None:
        item["description"] = raw(override.description)
    if override.annotations:
        item["annotations"] = raw({**members_of(item.get("annotations")), **override.annotations})
    if override.parameters:
        schema = decode_any(item.get("inputSchema", b"null"))
        own = schema if isinstance(schema, dict) else {}
        item["inputSchema"] = raw(override_schema(own, override.parameters))
    if override.icons is not None:
        item["icons"] = raw([dict(icon) for icon in override.icons])


def _added(before: Override, override: Override) -> Override:
    said = {
        field.name: getattr(override, field.name)
        for field in attrs.fields(Override)
        if getattr(override, field.name) not in (None, {})
    }
    annotations = {**before.annotations, **override.annotations}
    parameters = {**before.parameters, **override.parameters}
    return attrs.evolve(before, **{**said, "annotations": annotations, "parameters": parameters})


def overrides_of(
    views: Mapping[str, View], upstreams: Iterable[Upstream], namespace: Namespace | None = None
) -> dict[str, Overrides]:
    """Return the overrides of each view, "" for the one with everything; views without any are left out.

    With a `namespace`, an override can also name its tool or prompt as clients see it.
    """

    def own(upstream: str, override: Override) -> tuple[str, Override]:
        found = namespace.resolve_name(override.name) if namespace is not None else None
        is_prefixed = found is not None and found[0] == upstream and found[1] != override.name
        return upstream, attrs.evolve(override, name=found[1]) if found and is_prefixed else override

    common = [own(each.name, override) for each in upstreams for override in each.overrides]
    found = {"": common}
    for name, view in views.items():
        found[name] = [*common, *(own(each.upstream, each) for each in view.overrides)]
    return {name: Overrides(overrides) for name, overrides in found.items() if overrides}
