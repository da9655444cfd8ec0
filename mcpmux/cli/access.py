"""`mcpmux access`: what the access rules of a configuration say, without asking any server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from mcpmux.cli.console import make_table, show_json, show_table
from mcpmux.cli.lazy import Commands
from mcpmux.cli.options import load_config
from mcpmux.config import Config
from mcpmux.errors import ConfigError
from mcpmux.mux.namespace import Namespace
from mcpmux.mux.policy import NO_RULE, USES, Explanation, Policy, explain, policy_of
from mcpmux.printable import printable
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.principal import Principal

DEFAULT_USES = {"uri": "read", "name": "call"}
STYLES = {"allow": "green", "deny": "red"}


@click.group(cls=Commands)
def access() -> None:
    """About the access rules of a configuration.

    \b
    Example:
      mcpmux access test mcpmux.toml --principal alice --uri docs+file:///a.md
    """


@access.command()
@click.argument("config")
@click.option("--principal", default="", help="Name of the principal; default: a client that nobody knows.")
@click.option("--scope", "scopes", multiple=True, help="A scope that it has. May be repeated.")
@click.option("--method", help="read, subscribe, call, get, complete, or a method such as resources/read.")
@click.option("--uri", help="URI, as clients say it; with --upstream as the server itself has it.")
@click.option("--name", help="Name of a tool or prompt, as clients say it or, with --upstream, its own.")
@click.option("--upstream", help="Name of the upstream, when URI or name are its own.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line and upstream.")
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

    No server is asked. A URI without prefix is looked at for every upstream. Exit code 0 when it is allowed
    (for one upstream at least), 1 when it is refused.

    \b
    Examples:
      mcpmux access test mcpmux.toml --principal alice --uri docs+file:///a.md
      mcpmux access test mcpmux.toml --principal ci --scope deploy --method call --name web__search
      mcpmux access test mcpmux.toml --method complete --upstream docs --uri 'file:///{path}' --json
    """
    loaded = load_config(config)
    policy = policy_of(loaded.access)
    if (uri is None) == (name is None):
        raise ConfigError(["give either --uri or --name"])
    if policy is None:
        click.echo("allowed: there are no access rules, so everybody may do everything")
        return
    use = method or DEFAULT_USES["uri" if uri is not None else "name"]
    if use not in USES and "/" not in use:
        raise ConfigError(
            [f"--method: expected one of {', '.join(USES)}, or a method such as resources/read"]
        )
    targets = [(upstream, uri or name or "")] if upstream is not None else find_targets(loaded, uri, name)
    who = Principal(principal, frozenset(scopes))
    judged = [
        (each, own, judge(policy, who, each, USES.get(use, use), own, is_uri=uri is not None))
        for each, own in targets
    ]
    for each, own, explanation in judged:
        if as_json:
            show_json(raw(as_members(each, own, explanation)))
        else:
            show(each, own, explanation)
    if not any(explanation.decision.allowed for _, _, explanation in judged):
        raise click.exceptions.Exit(1)


def find_targets(config: Config, uri: str | None, name: str | None) -> list[tuple[str, str]]:
    """(upstream, its own URI or name) of what a client says. Raises ConfigError."""
    enabled = {each.name: each.prefix for each in config.upstreams if each.enabled}
    namespace = Namespace(enabled)
    if uri is not None:
        found = namespace.resolve_uri(uri)
        return [found] if found is not None else [(each, uri) for each in enabled]
    assert name is not None
    if namespace.is_shortened(name):
        raise ConfigError(["--name: it was shortened; give the server's own name, and --upstream"])
    resolved = namespace.resolve_name(name)
    if resolved is None:
        raise ConfigError(["--name: no upstream has names that begin so; give its own name, and --upstream"])
    return [resolved]


def judge(
    policy: Policy, principal: Principal, upstream: str, method: str, target: str, *, is_uri: bool
) -> Explanation:
    """What the rules say; a URI that is to be completed is a template."""
    is_template = is_uri and method == m.COMPLETE
    return explain(policy, principal, upstream, method, target, is_template=is_template)


def as_members(upstream: str, target: str, explanation: Explanation) -> dict[str, Any]:
    """For machines."""
    return {
        "upstream": upstream,
        "target": target,
        "allowed": explanation.decision.allowed,
        "rule": explanation.decision.rule,
        "rules": [
            {"rule": each.rule, "effect": each.effect, "fits": not each.misfits, "misfits": each.misfits}
            for each in explanation.reasons
        ],
        "readings": explanation.readings,
    }


def show(upstream: str, target: str, explanation: Explanation) -> None:
    """For people: the decision, then every rule."""
    allowed, rule = explanation.decision
    word = "allowed" if allowed else "refused"
    why = "no rule allows it" if rule == NO_RULE and not allowed else f"by {rule}"
    click.echo(f"{word}: {printable(target)} of {upstream}, {why}")
    show_table(fill_table(explanation))
    for reading in explanation.readings:
        click.echo(f"  a server may also read it as {printable(reading)}")


def fill_table(explanation: Explanation) -> Table:
    """One row for each rule: what it does, and which of its members do not fit."""
    table = make_table(["  RULE", "EFFECT", "FITS"])
    for each in explanation.reasons:
        table.add_row(f"  {each.rule}", Text(each.effect, style=STYLES[each.effect]), _told(each.misfits))
    return table


def _told(misfits: Sequence[str]) -> str:
    return f"no: {', '.join(misfits)}" if misfits else "yes"
