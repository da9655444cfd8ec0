"""Plan the steps when the configuration changes while mcpmux runs. Pure.

Rules
  * A disabled upstream counts as absent.
  * An upstream is adjusted if only keys of IN_PLACE changed: those are looked up at each use. If any other
    key changed, its session was opened with the old value, so the upstream is restarted.
  * A setting of LIVE changes in place. Any other setting is pending: it takes effect at the next start, and
    the user is informed. Whether listeners ask for tokens at all only changes at a start.

Laws: the plan from a configuration to itself is empty; no upstream is in two parts of a plan; the old names
without `removed` and with `added` are the new names; the plan back removes what this one adds; to
what is in force no setting is pending.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import attrs
from attrs import frozen

from mcpmux.config.model import Config, Settings

IN_PLACE = frozenset(
    {
        *("prefix", "tools", "overrides", "caching", "health_interval", "list_timeout"),
        *("connect_timeout", "request_timeout", "timeouts", "max_request_timeout"),
    }
)
"""Keys of an upstream that are looked up at each use."""

TOKENS = frozenset({"auth.tokens", "auth.issuers"})
LIVE = TOKENS | {
    *("env_file", "access", "intercept", "views", "limits.rate", "caching", "merging"),
    *("identity", "redaction", "logging.level", "logging.format"),
    *("auth.resource", "auth.required_scopes", "auth.method_scopes", "auth.certificates"),
}
"""Sections or keys of the settings that change in place."""


@frozen(kw_only=True)
class Plan:
    """The steps from one configuration to another, in the order of the new one.

    `added`, `removed`, `restarted`, `adjusted`: names of upstreams. `reordered`: whether the upstreams that
    stay have another order. `settings`: keys that change in place. `pending`: keys that change at the next
    start.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    restarted: tuple[str, ...] = ()
    adjusted: tuple[str, ...] = ()
    reordered: bool = False
    settings: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether anything changes."""
        return self != Plan()

    @property
    def touches_upstreams(self) -> bool:
        return bool(self.added or self.removed or self.restarted or self.adjusted or self.reordered)

    def as_json(self) -> dict[str, list[str]]:
        """Return the parts that are not empty, for machines and the log."""
        parts = ("added", "removed", "restarted", "adjusted", "settings", "pending")
        return {part: list(names) for part in parts if (names := getattr(self, part))}


def plan_change(old: Config, new: Config) -> Plan:
    old_ones, after = old.enabled, new.enabled
    differing = {name: _differences(old_ones[name], after[name]) for name in after if name in old_ones}
    settings: list[str] = []  # `section.key`, or `section` if that is a list
    for section in attrs.fields(Settings):
        former, later = getattr(old, section.name), getattr(new, section.name)
        if attrs.has(type(later)):
            settings += [f"{section.name}.{key}" for key in _differences(former, later)]
        elif former != later:
            settings.append(section.name)
    live = LIVE if old.auth.asks_tokens is new.auth.asks_tokens else LIVE - TOKENS
    return Plan(
        added=tuple(name for name in after if name not in old_ones),
        removed=tuple(name for name in old_ones if name not in after),
        restarted=tuple(name for name, keys in differing.items() if not IN_PLACE.issuperset(keys)),
        adjusted=tuple(name for name, keys in differing.items() if keys and IN_PLACE.issuperset(keys)),
        reordered=[name for name in old_ones if name in after] != list(differing),
        settings=tuple(key for key in settings if {key, key.partition(".")[0]} & live),
        pending=tuple(key for key in settings if not {key, key.partition(".")[0]} & live),
    )


def in_force(started: Config, config: Config) -> Config:
    """Return `config` with every setting that is pending as it was in `started`."""
    # Not `attrs.evolve`, which checks that all parts go together: a listener of the start may name a view
    # that `config` does not have any more.
    mixed = copy(config)
    for key in plan_change(started, config).pending:
        section, _, name = key.partition(".")
        settings = copy(getattr(mixed, section))
        object.__setattr__(settings, name, getattr(getattr(started, section), name))
        object.__setattr__(mixed, section, settings)
    return mixed


def _differences(old: Any, new: Any) -> list[str]:
    """Return the names of the keys in which two values of one class differ."""
    return [key.name for key in attrs.fields(type(new)) if getattr(old, key.name) != getattr(new, key.name)]
