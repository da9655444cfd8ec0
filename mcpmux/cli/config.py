"""`mcpmux config`, `access` and `view`: a configuration's schema, access rules and views."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import click

from mcpmux.app.view_contents import Seen, for_everybody, look_as
from mcpmux.cli import console
from mcpmux.cli.client import KINDS, open_visit
from mcpmux.cli.completion import complete_file
from mcpmux.cli.console import Columns, show_items, show_json
from mcpmux.cli.options import json_option, load_config, upstream_json_option
from mcpmux.cli.process import Mistake, run
from mcpmux.config import Config
from mcpmux.config.report import closest
from mcpmux.config.schema import config_schema
from mcpmux.errors import ConfigError
from mcpmux.mux.naming import Naming, naming_of
from mcpmux.mux.override import KIND_OF
from mcpmux.mux.policy import NO_RULE, USES, Explanation, explain, policy_of
from mcpmux.printable import printable
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.principal import ANYONE, Principal

EFFECT_STYLES = {"allow": "green", "deny": "red"}
REASONS: Columns = {
    "  RULE": lambda reason: f"  {reason.rule}",
    "EFFECT": lambda reason: (reason.effect, EFFECT_STYLES[reason.effect]),
    "FITS": lambda reason: f"no: {', '.join(reason.misfits)}" if reason.misfits else "yes",
}


@click.group()
def config() -> None:
    """Describe the configuration file.

    \b
    Example:
      mcpmux config schema > mcpmux.schema.json
    """


@config.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors that complete and check it.

    \b
    Example:
      mcpmux config schema > mcpmux.schema.json
    """
    click.echo(json.dumps(config_schema(), indent=2, ensure_ascii=False))


@click.group()
def access() -> None:
    """Try the access rules of a configuration.

    \b
    Example:
      mcpmux access test mcpmux.toml --principal alice --uri docs+file:///a.md
    """


@access.command()
@click.argument("config", shell_complete=complete_file)
@click.option("--principal", default="", help="Name of the principal. Default: an unauthenticated client.")
@click.option("--scope", "scopes", multiple=True, help="A scope of the principal. May be repeated.")
@click.option("--method", help="read, subscribe, call, get, complete, or a method such as resources/read.")
@click.option("--uri", help="URI as clients see it; with --upstream, as the server has it.")
@click.option(
    "--name", help="Name of a tool or prompt as clients see it; with --upstream, as the server has it."
)
@click.option("--upstream", help="Upstream that --uri or --name belongs to.")
@upstream_json_option
def test(
    config: str,
    principal: str,
    scopes: tuple[str, ...],
    method: str | None,
    uri: str | None,
    name: str | None,
    upstream: str | None,
    as_json: bool,
) -> None:
    """Say whether a principal may do something, and which rule decides.

    No server is asked. A URI without a prefix is checked for every upstream. The exit code is 0 if it is
    allowed for at least one upstream, and 1 if it is refused.

    \b
    Examples:
      mcpmux access test mcpmux.toml --principal alice --uri docs+file:///a.md
      mcpmux access test mcpmux.toml --principal ci --scope deploy --method call --name web__search
      mcpmux access test mcpmux.toml --method complete --upstream docs --uri 'file:///{path}' --json
    """
    loaded = load_config(config)
    naming = naming_of(loaded.enabled.values(), loaded.views, loaded.merging.name_limit)
    policy = policy_of(loaded.access, naming)
    if (uri is None) == (name is None):
        raise Mistake("give either --uri or --name")
    if policy is None:
        click.echo("allowed: there are no access rules, so everybody may do everything")
        return
    use = method or ("read" if uri is not None else "call")
    if use not in USES and "/" not in use:
        raise Mistake(f"--method: expected one of {', '.join(USES)}, or a method such as resources/read")
    asked = USES.get(use, use)
    targets = find_targets(naming, asked, uri, name) if upstream is None else [(upstream, uri or name or "")]
    who = Principal(principal, frozenset(scopes))
    is_template = uri is not None and asked == m.COMPLETE  # a URI that is completed is a template
    allowed = False
    for owner, own in targets:
        explanation = explain(policy, who, owner, asked, own, is_template=is_template)
        allowed = allowed or explanation.decision.allowed
        if as_json:
            show_json(raw(as_members(owner, own, explanation)))
        else:
            show_explanation(owner, own, explanation)
    if not allowed:
        raise click.exceptions.Exit(1)


def find_targets(naming: Naming, method: str, uri: str | None, name: str | None) -> list[tuple[str, str]]:
    """Return (upstream, its own URI or name) for what a client outside of views sends. Raises Mistake."""
    namespace = naming.namespace
    if uri is not None:
        owner = namespace.resolve_uri(uri)
        return [owner] if owner is not None else [(upstream, uri) for upstream in namespace.spaces]
    assert name is not None
    if namespace.is_shortened(name):
        raise Mistake("--name: this name was shortened; use the server's own name, with --upstream")
    resolved = namespace.resolve_name(name)
    if resolved is None:
        raise Mistake("--name: no upstream has this prefix; use the server's own, with --upstream")
    upstream, own = resolved
    overrides, kind = naming.overrides.get(""), KIND_OF.get(method)
    if overrides is None or kind is None:
        return [resolved]
    renamed = overrides.own_name(upstream, kind, own)
    if renamed is None:
        raise Mistake("--name: an override has given this another name")
    return [(upstream, renamed)]


def as_members(upstream: str, target: str, explanation: Explanation) -> dict[str, Any]:
    return {
        "upstream": upstream,
        "target": target,
        "allowed": explanation.decision.allowed,
        "rule": explanation.decision.rule,
        "rules": [
            {
                "rule": reason.rule,
                "effect": reason.effect,
                "fits": not reason.misfits,
                "misfits": reason.misfits,
            }
            for reason in explanation.reasons
        ],
        "readings": explanation.readings,
    }


def show_explanation(upstream: str, target: str, explanation: Explanation) -> None:
    allowed, rule = explanation.decision
    word = "allowed" if allowed else "refused"
    why = "no rule allows it" if rule == NO_RULE and not allowed else f"by {rule}"
    click.echo(f"{word}: {printable(target)} of {upstream}, {why}")
    show_items(explanation.reasons, False, REASONS)
    for reading in explanation.readings:
        click.echo(f"  a server may also interpret it as {printable(reading)}")


# The items that a client of a view sees, their cost, and the selectors that they come from.

ITEMS: Columns = {
    "NAME": itemgetter("name"),
    "UPSTREAM": itemgetter("upstream"),
    "TOKENS": itemgetter("tokens"),
    "RULE": itemgetter("rule"),
}


@click.command()
@click.argument("config", shell_complete=complete_file)
@click.argument("name", required=False)
@click.option("--diff", "other", metavar="OTHER", help="Compare with this view.")
@click.option("--principal", help="Apply the access rules for this principal. Default: they are left out.")
@click.option("--scope", "scopes", multiple=True, help="A scope of the principal. May be repeated.")
@click.option("--query", default="", help="Narrow the view as in a client's URL, such as 'tools=a*,b'.")
@json_option(help="Print one JSON object per line.")
def view(
    config: str,
    name: str | None,
    other: str | None,
    principal: str | None,
    scopes: tuple[str, ...],
    query: str,
    as_json: bool,
) -> None:
    """Show what a client of a view sees.

    CONFIG is a TOML or JSON file. Each line names the selector that something comes from, and the tokens that
    it takes in a list: a quarter of the characters of its JSON, and nothing for tools that are searched.
    Without NAME the views are compared with each other and with the view that has everything.

    \b
    Examples:
      mcpmux view mcpmux.toml
      mcpmux view mcpmux.toml coding
      mcpmux view mcpmux.toml coding --diff reading
      mcpmux view mcpmux.toml coding --principal alice --query 'tools=search*'
    """
    loaded = load_config(config)
    for chosen in filter(None, (name, other)):
        if chosen not in loaded.views:
            close = closest(chosen, loaded.views)
            raise Mistake(f"there is no view called {chosen}" + (f"; did you mean {close}?" if close else ""))
    if other is not None and name is None:
        raise Mistake("--diff: name the view that is to be compared with it first")
    chosen_views = list(loaded.views) if name is None else [name, *filter(None, (other,))]
    who = None if principal is None else Principal(principal, frozenset(scopes))
    seen = run(look, loaded, ["", *chosen_views], who, query)
    if name is None:
        console.show_items(
            [summary(name, seen[name]) for name in seen], as_json, SUMMARY, {*SUMMARY} - {"VIEW"}
        )
    elif other is None:
        show_view(seen[name], as_json)
        console.tell(f"{total(seen[name])}; with everything {total(seen[''])}")
    else:
        show_difference(seen[name], seen[other], as_json)
        console.tell(f"{name}: {total(seen[name])}; {other}: {total(seen[other])}")


SUMMARY: Columns = {
    "VIEW": lambda found: found["view"] or "(everything)",
    **{kind.upper(): itemgetter(kind) for kind in KINDS},
    "TOKENS": itemgetter("tokens"),
}


def summary(view: str, seen: Sequence[Seen]) -> dict[str, object]:
    """Return the number of items and tokens of a view."""
    counts = Counter(item.kind for item in seen)
    return {"view": view, **{kind: counts[kind] for kind in KINDS}, "tokens": tokens_of(seen)}


def tokens_of(seen: Sequence[Seen]) -> int:
    return sum(item.tokens for item in seen)


def total(seen: Sequence[Seen]) -> str:
    counts = Counter(item.kind for item in seen)
    parts = [f"{counts[kind]} {kind if counts[kind] != 1 else kind[:-1]}" for kind in KINDS if counts[kind]]
    return f"{', '.join(parts) or 'nothing'}, about {tokens_of(seen):,} tokens"


def show_view(seen: Sequence[Seen], as_json: bool) -> None:
    """Print the items of a view, kind by kind."""
    if as_json:
        console.show_items([item._asdict() for item in seen], True, ITEMS)
        return
    for kind in KINDS:
        rows = [item._asdict() for item in seen if item.kind == kind]
        if rows:
            console.show_line(f"{KINDS[kind].heading} ({len(rows)})")
            console.show_items(rows, False, ITEMS, {"TOKENS"})
            click.echo()


def show_difference(ours: Sequence[Seen], theirs: Sequence[Seen], as_json: bool) -> None:
    """Print the items that only one of two views has: `-` the first one, `+` the other."""
    in_ours, in_theirs = ({(item.kind, item.name): item for item in seen} for seen in (ours, theirs))
    rows = [{"only": "-", **item._asdict()} for key, item in in_ours.items() if key not in in_theirs]
    rows += [{"only": "+", **item._asdict()} for key, item in in_theirs.items() if key not in in_ours]
    columns: Columns = {"": itemgetter("only"), "KIND": itemgetter("kind"), **ITEMS}
    console.show_items(rows, as_json, columns, {"TOKENS"})


async def look(
    config: Config, views: Sequence[str], who: Principal | None, query: str
) -> dict[str, list[Seen]]:
    """Return the items that a client sees in each view; "" is the one with everything.

    Raises ConfigError for a view that does not exist for `who`; for None every view exists.
    """
    if who is None:
        config = for_everybody(config)
    seen: dict[str, list[Seen]] = {}
    async with console.show_activity("listing"), open_visit(config, has_access=True) as mux:
        for name in views:
            client = mux.service.enter(who or ANYONE, name, query if name else "")
            if client is None:
                raise ConfigError([f"{name}: this view does not exist for {who.name if who else 'anybody'}"])
            if (judging := mux.service.judging(client)) is not None:
                for sentence in await judging:
                    console.tell(f"warning: {sentence}")
            seen[name] = await look_as(client, mux.router.access, mux.upstreams)
    return seen
