"""Find names in access rules, views and overrides that no server has, for `check` and the log."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import structlog
import trio

from mcpmux.app.mux import Mux, config_naming
from mcpmux.config import Config
from mcpmux.config.model import find_idle_globs
from mcpmux.config.report import closest, suggestion
from mcpmux.config.views import KINDS, RESOURCES, TEMPLATES, TOOLS
from mcpmux.errors import RpcError
from mcpmux.mux.naming import is_among
from mcpmux.mux.override import Names, Schemas
from mcpmux.mux.pattern import matches, parse_glob
from mcpmux.mux.policy import USES, find_idle_targets, kinds_of
from mcpmux.mux.view import KIND_OF_LIST, find_unmatched
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import decode_fields, value_of
from mcpmux.runtime.resolver import search
from mcpmux.upstreams.lists import NAME_CHARACTERS, walk
from mcpmux.upstreams.upstream import Upstream

log = structlog.get_logger()

MENDED: Final = "mended"
OMITTED: Final = "left out"
PASSED_ON: Final = "passed on as it is"
"""The ways in which an item that the protocol does not allow reaches clients, or not."""

ALIKE: Final = 0.9  # a method with less similarity to one of the protocol may be a server's own
TOLD_MOST: Final = 1000  # warnings, each of which is logged once
PAUSE_SECONDS: Final = 60.0  # between two looks, however often servers report changed lists


class Listed(NamedTuple):
    """The lists of an upstream: `texts`, names, URIs and templates by kind, None for an item without one;
    `schemas`, input schemas by tool.

    `problems`: of the lists and their items. Each has `list`, `item` (if it is about a named item), `problem`
    and `fate`.
    """

    texts: dict[str, list[str | None]]
    schemas: dict[str, dict[str, Any]]
    problems: list[dict[str, str]]

    @property
    def names(self) -> dict[str, list[str]]:
        return {kind: [text for text in texts if text is not None] for kind, texts in self.texts.items()}


async def list_names(upstream: Upstream, kinds: Collection[str] = KINDS) -> Listed:
    """Return what a connected upstream lists of the kinds that it offers. Raises RpcError."""
    listed = Listed({}, {}, [])
    for method, paged in m.LISTS.items():
        kind = KIND_OF_LIST[method]
        if kind not in kinds or upstream.facts is None or not upstream.facts.offers(paged.capability):
            continue
        walked = await walk(upstream, Call(method, {}, {}))
        pages = walked.pages
        for name, problem, left_out in walked.problems:
            fate = OMITTED if left_out else MENDED
            named = {} if name is None else {"item": name[:NAME_CHARACTERS]}
            fate = PASSED_ON if upstream.space.transparent else fate
            listed.problems.append({"list": kind, **named, "problem": problem, "fate": fate})
        if walked.cut is not None:
            listed.problems.append({"list": kind, "problem": walked.cut, "fate": OMITTED})
        listed.texts[kind] = [text for page in pages for text in page.texts]
        for page in pages if kind == TOOLS else ():
            for text, item in zip(page.texts, page.items, strict=True):
                if text is not None:
                    schema = value_of(decode_fields(item).get("inputSchema"))
                    listed.schemas[text] = schema if isinstance(schema, dict) else {}
    return listed


def find_odd_methods(config: Config) -> Iterator[str]:
    """Yield a sentence for each method in rules that is nearly one of the protocol, so probably misspelt."""
    groups: dict[str, list[tuple[str, ...]]] = {
        "access[{}].methods": [rule.methods for rule in config.access],
        "limits.rate[{}].methods": [rate.methods for rate in config.limits.rate],
        "capture.rules[{}].method": [(rule.method,) if rule.method else () for rule in config.capture.rules],
    }
    for place, rules in groups.items():
        for number, methods in enumerate(rules):
            for method in methods:
                is_known = method in USES or any(
                    matches(parse_glob(method), known_method) for known_method in m.KNOWN
                )
                if not is_known and (close := closest(method, m.KNOWN, ALIKE)) is not None:
                    yield f"{place.format(number)}: `{method}` is no method{suggestion(close)}"


def find_unmatched_names(config: Config, names: Names, schemas: Schemas) -> list[str]:
    """Return a sentence for each name in the configuration that upstreams do not list.

    An upstream that is not in `names` is not judged.
    """
    upstreams, naming = config.enabled.values(), config_naming(config)
    problems = list(find_idle_globs(config, [upstream.name for upstream in config.upstreams]))
    problems += find_odd_methods(config)
    problems += find_idle_targets(config.access, config.enabled, names, naming)
    problems += find_unmatched(config.views, upstreams, names, naming)
    common = set[str]()  # mistakes of all views, reported once
    for view, overrides in naming.overrides.items():
        place = f"views.{view}: " if view else "upstreams: "
        wrong = [*overrides.find_misplaced(names), *overrides.find_bad_parameters(schemas)]
        problems += [place + text for text in wrong if text not in common]
        if not view:
            common = set(wrong)
    return list(dict.fromkeys(problems))


def kinds_named(config: Config) -> dict[str, set[str]]:
    """Return the kinds of items that the configuration names, by upstream."""
    named: dict[str, set[str]] = {name: set() for name in config.enabled}
    for view in config.views.values():
        for selector in (*view.include, *view.exclude):
            if selector.name is None or selector.hints:
                continue
            glob = parse_glob(selector.upstream or "*")
            for name in named:
                if matches(glob, name):
                    named[name].update(KINDS if selector.kind is None else (selector.kind,))
        for override in view.overrides:
            named.get(override.upstream, set()).add(override.kind)
    for rule in config.access:
        among = list(map(parse_glob, rule.upstreams))
        for name in named:
            if rule.targets and is_among(among, name):
                named[name].update(kinds_of(rule))
    for name, upstream in config.enabled.items():
        named[name].update(override.kind for override in upstream.overrides)
        if not upstream.tools.is_all:
            named[name].add(TOOLS)
        if RESOURCES in named[name]:  # a URI may be in no list but match a template
            named[name].add(TEMPLATES)
    return {name: kinds for name, kinds in named.items() if kinds}


async def watch_names(mux: Mux) -> None:
    """Log each name that upstreams do not have, at the start and when lists change, for ever."""
    config, logged = mux.config, set[str]()
    while True:
        # Servers change: a name may disappear, or be replaced by another one, at any time. This is taken
        # first, so that no change is missed.
        changed = mux.hub.lists_changed
        if mux.config is not config:
            config, logged = mux.config, set()
        for problem in await _find_now(mux):
            if problem not in logged and len(logged) < TOLD_MOST:
                logged.add(problem)
                log.warning("the configuration names what is not there", problem=problem)
        await trio.sleep(PAUSE_SECONDS)
        await changed.wait()


async def _find_now(mux: Mux) -> list[str]:
    config, names, schemas = mux.config, dict[str, dict[str, list[str]]](), dict[str, Mapping[str, Any]]()

    async def look(upstream: Upstream, kinds: Collection[str]) -> None:
        # One that is silent or not connected is not judged: its names may be there.
        with trio.move_on_after(upstream.config.list_timeout):
            await upstream.supervision.settled()
            try:
                listed = await list_names(upstream, kinds)
            except RpcError:
                return
            if upstream.facts is not None:
                names[upstream.name], schemas[upstream.name] = listed.names, listed.schemas

    async with trio.open_nursery() as nursery:
        for name, kinds in kinds_named(config).items():
            if name in mux.upstreams:
                nursery.start_soon(look, mux.upstreams[name], kinds)
    # In a thread when it takes long: globs are compared with all names of all servers.
    return await search(partial(find_unmatched_names, config, names, schemas), names)
