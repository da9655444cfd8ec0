"""`mcpmux view`: what a client of a view sees, what it costs, and which selector it comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter

import click

from mcpmux.app.view_contents import Seen, for_everybody, look_as
from mcpmux.cli import console
from mcpmux.cli.client.listing import KINDS
from mcpmux.cli.client.visit import open_visit
from mcpmux.cli.console import Columns
from mcpmux.cli.options import complete_view, config_argument, json_option, load_config, split_config
from mcpmux.cli.process import Mistake, run
from mcpmux.config import Config
from mcpmux.config.report import hint_at
from mcpmux.errors import ConfigError
from mcpmux.protocol.principal import ANYONE, Principal

COLUMNS: Columns = {
    "NAME": itemgetter("name"),
    "UPSTREAM": itemgetter("upstream"),
    "TOKENS": itemgetter("tokens"),
    "RULE": itemgetter("rule"),
}


@click.command()
@config_argument
@click.argument("name", required=False, shell_complete=complete_view)
@click.option("--diff", "other", metavar="OTHER", help="Compare with this view.")
@click.option("--principal", help="Apply the access rules for this principal. Default: they are left out.")
@click.option("--scope", "scopes", multiple=True, help="A scope of the principal. May be repeated.")
@click.option("--query", default="", help="Narrow the view as in a client's URL, such as 'tools=a*,b'.")
@json_option(help="Print one JSON object per line.")
def view(
    config: str | None,
    name: str | None,
    other: str | None,
    principal: str | None,
    scopes: tuple[str, ...],
    query: str,
    as_json: bool,
) -> None:
    """Show what a client of a view sees.

    CONFIG is a TOML or JSON file, mcpmux.toml by default. Each line names the selector that something comes
    from, and the tokens that it takes in a list: a quarter of the characters of its JSON, and nothing for
    tools that are searched.
    Without NAME the views are compared with each other and with the view that has everything.

    \b
    Examples:
      mcpmux view
      mcpmux view coding
      mcpmux view mcpmux.toml coding --diff reading
      mcpmux view mcpmux.toml coding --principal alice --query 'tools=search*'
    """
    config, names = split_config(config, () if name is None else (name,))
    if len(names) > 1:
        raise Mistake(f"{names[0]}: there is no such file")
    name = names[0] if names else None
    loaded = load_config(config)
    for chosen in filter(None, (name, other)):
        if chosen not in loaded.views:
            raise Mistake(f"there is no view `{chosen}`{hint_at(chosen, loaded.views)}")
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
        show(seen[name], as_json)
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


def show(seen: Sequence[Seen], as_json: bool) -> None:
    """Print the items of a view, kind by kind."""
    if as_json:
        console.show_items([item._asdict() for item in seen], True, COLUMNS)
        return
    for kind in KINDS:
        rows = [item._asdict() for item in seen if item.kind == kind]
        if rows:
            console.show_line(f"{KINDS[kind].heading} ({len(rows)})")
            console.show_items(rows, False, COLUMNS, {"TOKENS"})
            click.echo()


def show_difference(ours: Sequence[Seen], theirs: Sequence[Seen], as_json: bool) -> None:
    """Print the items that only one of two views has: `-` the first one, `+` the other."""
    in_ours, in_theirs = ({(item.kind, item.name): item for item in seen} for seen in (ours, theirs))
    rows = [{"only": "-", **item._asdict()} for key, item in in_ours.items() if key not in in_theirs]
    rows += [{"only": "+", **item._asdict()} for key, item in in_theirs.items() if key not in in_ours]
    columns: Columns = {"": itemgetter("only"), "KIND": itemgetter("kind"), **COLUMNS}
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
