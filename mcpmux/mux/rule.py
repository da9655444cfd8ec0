"""One access rule, ready to be applied, and the target that it is applied to. Pure."""

from __future__ import annotations

import re
from functools import cached_property

from mcpmux.config import AccessRule
from mcpmux.mux.glob import Glob, matches, may_meet, parse_glob
from mcpmux.mux.spelling import STAR, Way, is_clear, read, readings_of, without_tail
from mcpmux.protocol import method as m
from mcpmux.protocol.principal import Principal

USES = {
    "read": m.RESOURCES_READ,
    "subscribe": m.RESOURCES_SUBSCRIBE,
    "call": m.TOOLS_CALL,
    "get": m.PROMPTS_GET,
    "complete": m.COMPLETE,
}
"""What rules call a use → its method."""

_EXPRESSION = re.compile(r"\{[^{}]*\}")


class Target:
    """What a use is about: a URI, which has several readings, or a name, which has one."""

    def __init__(self, text: str, *, is_uri: bool) -> None:
        self.text = text
        self.is_uri = is_uri

    @cached_property
    def readings(self) -> list[tuple[Way | None, str]]:
        """Every way to read it, with what it is then."""
        if not self.is_uri or not self.is_clear:
            return [(None, self.text)]
        return list(dict.fromkeys(readings_of(self.text)))

    @cached_property
    def broadly(self) -> frozenset[str]:
        """Everything that it can be taken for."""
        texts = {text for _, text in self.readings}
        return frozenset(texts | {without_tail(text) for text in texts} if self.is_uri else texts)

    @cached_property
    def is_clear(self) -> bool:
        """Whether all its readings are known."""
        return not self.is_uri or is_clear(self.text)


class Template:
    """A URI template that is to be completed, read in the same ways as URIs."""

    def __init__(self, text: str) -> None:
        self._marked = STAR.join(template_glob(text))
        self.is_clear = is_clear(self._marked)

    @cached_property
    def readings(self) -> list[tuple[Way | None, Glob]]:
        """Every way to read it, with what it then stands for."""
        return [(way, tuple(text.split(STAR))) for way, text in dict.fromkeys(readings_of(self._marked))]


class TargetGlob:
    """A glob for targets, read in the same ways as the URIs that it is held against."""

    def __init__(self, text: str) -> None:
        self.glob = parse_glob(text)
        self._marked = text.replace("*", STAR)
        self._by_way: dict[Way | None, Glob] = {None: self.glob}

    @cached_property
    def _broadly(self) -> frozenset[Glob]:
        """Everything that the glob can be taken for."""
        return frozenset(tuple(text.split(STAR)) for _, text in readings_of(self._marked))

    def _read(self, way: Way | None) -> Glob:
        """The glob in one way; there are few to remember."""
        glob = self._by_way.get(way)
        if glob is None:
            glob = self._by_way[way] = tuple(read(self._marked, way).split(STAR))
        return glob

    def __repr__(self) -> str:
        return f"TargetGlob({'*'.join(self.glob)!r})"

    def is_every(self, target: Target) -> bool:
        """Whether it fits every reading of a target."""
        return target.is_clear and all(matches(self._read(way), text) for way, text in target.readings)

    def covers(self, template: Template) -> bool:
        """Whether it stands for everything that a template stands for, in every reading of both."""
        return template.is_clear and all(_contains(self._read(way), glob) for way, glob in template.readings)

    def meets(self, template: Template) -> bool:
        """Whether it may stand for something that a template stands for, in some reading of either."""
        return not template.is_clear or any(
            may_meet(ours, glob) for _, glob in template.readings for ours in self._broadly
        )

    def is_any(self, target: Target) -> bool:
        """Whether it fits, or may fit, something that the target can be taken for."""
        if not target.is_clear:
            return True
        globs = self._broadly if target.is_uri else (self.glob,)
        return any(matches(glob, text) for text in target.broadly for glob in globs)


class Rule:
    """A rule. `allow`: it allows; else it denies."""

    def __init__(self, rule: AccessRule, name: str) -> None:
        self.name = name
        self.source = rule
        self.allow = rule.effect == "allow"
        self._principals = tuple(map(parse_glob, rule.principals))
        self._scopes = frozenset(rule.scopes)
        self._upstreams = tuple(map(parse_glob, rule.upstreams))
        self._methods = tuple(parse_glob(USES.get(name, name)) for name in rule.methods)
        self._targets = tuple(map(TargetGlob, rule.targets))

    @classmethod
    def of(cls, rule: AccessRule, place: str) -> Rule:
        """The rule that stands at `place` of the configuration."""
        return cls(rule, rule.name or place)

    def __repr__(self) -> str:
        return f"<Rule {self.name}>"

    @property
    def is_about_all(self) -> bool:
        """Whether it names no target."""
        return not self._targets

    def fits(self, principal: Principal, upstream: str, method: str) -> bool:
        """Whether it is about this, whatever the target."""
        return (
            self.fits_principal(principal)
            and self._scopes <= principal.scopes
            and _fits(self._upstreams, upstream)
            and _fits(self._methods, method)
        )

    def fits_principal(self, principal: Principal) -> bool:
        """Whether it names the principal, or nobody."""
        return not self._principals or (bool(principal) and _fits(self._principals, principal.name))

    def misfits(self, principal: Principal, upstream: str, method: str) -> list[str]:
        """Which of its members do not fit, for people."""
        found = [] if self.fits_principal(principal) else ["principals"]
        found += [] if self._scopes <= principal.scopes else ["scopes"]
        found += [] if _fits(self._upstreams, upstream) else ["upstreams"]
        return found + ([] if _fits(self._methods, method) else ["methods"])

    # Of a rule that fits otherwise

    def allows(self, target: Target | None) -> bool:
        """Whether it allows the target for sure."""
        if not self._targets:
            return True
        return target is not None and any(glob.is_every(target) for glob in self._targets)

    def denies(self, target: Target | None) -> bool:
        """Whether it may deny the target."""
        return not self._targets or target is None or any(glob.is_any(target) for glob in self._targets)

    def may_allow(self, glob: Glob) -> bool:
        """Whether it may allow something that `glob` stands for."""
        return not self._targets or any(may_meet(each.glob, glob) for each in self._targets)

    def may_deny(self, template: Template) -> bool:
        """Whether it may deny something that a template stands for."""
        return not self._targets or any(each.meets(template) for each in self._targets)

    def allows_all(self, template: Template) -> bool:
        """Whether it allows everything that a template stands for."""
        return not self._targets or any(each.covers(template) for each in self._targets)

    def covers(self, glob: Glob) -> bool:
        """Whether it fits everything that `glob` stands for, as that is written."""
        return not self._targets or any(_contains(each.glob, glob) for each in self._targets)


def template_glob(template: str) -> Glob:
    """A URI template (RFC 6570) as a glob: each expression may stand for any text."""
    return tuple(_EXPRESSION.split(template))


def _fits(globs: tuple[Glob, ...], text: str) -> bool:
    return not globs or any(matches(glob, text) for glob in globs)


def _contains(outer: Glob, inner: Glob) -> bool:
    """Whether `outer` stands for everything that `inner` stands for.

    A mark that no literal of `outer` holds stands for each star of `inner`: only a star can take it in.
    """
    return matches(outer, STAR.join(inner))
