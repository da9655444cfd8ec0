"""What a view, or the settings of an upstream, say in place of the upstream about a tool or prompt. Pure.

Laws: a name that is shown leads back to the thing that it is shown for, and to nothing else; what has another
name has lost its own, which may be another thing's then. A view's override adds to the one in the settings of
the upstream, and wins where both say something.
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
"""What is overridden in a list, or where something is used by its name."""


Names: TypeAlias = Mapping[str, Mapping[str, Sequence[str]]]
"""What upstreams list: names, URIs and templates by KINDS, by upstream."""


class Overrides:
    """All overrides that hold in one view, by (upstream, kind) and the names that upstreams have."""

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

    __hash__ = None  # type: ignore[assignment]  # nobody needs it

    def own_name(self, upstream: str, kind: str, shown: str) -> str | None:
        """The upstream's name for what is shown under a name; None for what has another name now."""
        place = upstream, kind
        if place not in self._by_own:
            return shown
        own = self._by_shown[place].get(shown)
        if own is not None:
            return own
        override = self._by_own[place].get(shown)
        return shown if override is None or override.rename in (None, shown) else None

    def is_shown(self, upstream: str, kind: str, own: str) -> bool:
        """Whether something can be shown: not if another thing has got its name."""
        return own in self._by_own.get((upstream, kind), {}) or self.own_name(upstream, kind, own) == own

    def shown_name(self, upstream: str, kind: str, own: str) -> str:
        """The name under which something is shown."""
        override = self._by_own.get((upstream, kind), {}).get(own)
        return own if override is None else override.rename or own

    def parameters(self, upstream: str, own: str) -> Parameters:
        """What is said of the parameters of an upstream's tool."""
        override = self._by_own.get((upstream, TOOLS), {}).get(own)
        return override.parameters if override is not None else {}

    def has_parameters(self, upstream: str) -> bool:
        """Whether something is said of the parameters of any tool of an upstream."""
        return any(each.parameters for each in self._by_own.get((upstream, TOOLS), {}).values())

    def apply(
        self,
        upstream: str,
        kind: str,
        names: Iterable[str | None],
        items: Iterable[Fields],
        expose: Callable[[str], str] = str,
    ) -> list[bool]:
        """Change the items of a list, as clients would see them, in place. Whether each can be shown.

        `names`: the upstream's own; `expose`: puts a name into the words of clients.
        """
        known, shown = self._by_own.get((upstream, kind), {}), []
        for own, item in zip(names, items, strict=True):
            shown.append(own is None or self.is_shown(upstream, kind, own))
            if own is not None and own in known:
                _apply(known[own], item, expose)
        return shown

    def find_misplaced(self, names: Names) -> Iterator[str]:
        """Yields a sentence for each override of what is not listed, and for each new name that is taken."""
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
        """Yields a sentence for each overridden parameter that does not go with its tool's input schema."""
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
    """Return what is overridden in each view, "" for the one with everything; others are left out.

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
