"""`mcpmux config` and `mcpmux access`: the configuration, its schema, and the effect of its access rules.

No server is asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
import click

from mcpmux.cli.console import Columns, show_items, show_json, tell
from mcpmux.cli.main import Group
from mcpmux.cli.options import choose_config, config_argument, load_config, upstream_json_option
from mcpmux.cli.process import Mistake
from mcpmux.config import Config, Missing, Secret, Stdio, Upstream
from mcpmux.config.expansion import MASK
from mcpmux.config.model import Settings
from mcpmux.config.schema import config_schema
from mcpmux.hosts.toml_text import format_table, format_value
from mcpmux.mux.naming import Naming, naming_of
from mcpmux.mux.override import KIND_OF
from mcpmux.mux.policy import NO_RULE, USES, Explanation, explain, policy_of
from mcpmux.printable import printable
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.principal import Principal
from mcpmux.traffic.redaction.redactor import Redactor

STYLES = {"allow": "green", "deny": "red"}
COLUMNS: Columns = {
    "  RULE": lambda reason: f"  {reason.rule}",
    "EFFECT": lambda reason: (reason.effect, STYLES[reason.effect]),
    "FITS": lambda reason: f"no: {', '.join(reason.misfits)}" if reason.misfits else "yes",
}


@click.group(cls=Group)
def config() -> None:
    """Describe the configuration file.

    \b
    Examples:
      mcpmux config show
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


@config.command("show")
@config_argument
def show_config(config: str | None) -> None:
    """Print all settings of a configuration as TOML, with defaults and without secrets.

    CONFIG is a file, mcpmux.toml by default. Variables are replaced by their values. Servers in the file of a
    host app become tables of mcpmux.

    \b
    Examples:
      mcpmux config show
      mcpmux config show ~/.cursor/mcp.json
    """
    loaded = load_config(choose_config(config))
    missing = {up.name: up.target for up in loaded.upstreams if isinstance(up.target, Missing)}
    for note in (*loaded.notes, *(f"{name}: {target.reason}" for name, target in missing.items())):
        tell(note)
    click.echo(Redactor(loaded.redaction).clean(as_toml(loaded)), nl=False)


def as_toml(config: Config) -> str:
    """Return all settings as a document of mcpmux, with MASK in the place of secrets."""
    settings = {key.name: _plain(getattr(config, key.name)) for key in attrs.fields(Settings)}
    settings["upstreams"] = {upstream.name: _as_table(upstream) for upstream in config.upstreams}
    scalars, tables = [], []
    for key, value in settings.items():
        if isinstance(value, list):
            tables += [f"[{format_table((key,), table).replace(']', ']]', 1)}" for table in value]
        elif key in ("upstreams", "views"):
            tables += [format_table((key, name), table) for name, table in value.items()]
        elif isinstance(value, dict):
            tables.append(format_table((key,), value))
        elif value is not None:
            scalars.append(f"{key} = {format_value(value)}\n")
    return "\n".join(["".join(scalars)] * bool(scalars) + tables)


def _as_table(upstream: Upstream) -> dict[str, Any]:
    place = {} if isinstance(upstream.target, Missing) else _plain(upstream.target)
    if place and not isinstance(upstream.target, Stdio):
        tls = {"tls": place["tls"]} if "tls" in place else {}
        place = {**(place if "url" in place else tls), "url": upstream.target.display}
    if (inherited := place.pop("inherited", None)) is not None:
        place["inherit_env"] = inherited
    tools = {f"{key.removesuffix('d')}_tools": names for key, names in _plain(upstream.tools).items()}
    rest = {key: value for key, value in _plain(upstream).items() if key not in ("name", "target", "tools")}
    return {**place, **tools, **rest}


def _plain(value: Any) -> Any:
    """Return a value of the configuration in the types of TOML, without members that are None."""
    if isinstance(value, Secret):
        return MASK
    if attrs.has(type(value)):
        value = {key.name: getattr(value, key.name) for key in attrs.fields(type(value))}
    if isinstance(value, Mapping):
        return {key: _plain(member) for key, member in value.items() if member is not None}
    if isinstance(value, tuple | list):
        return [_plain(member) for member in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


@click.group(cls=Group)
def access() -> None:
    """Try the access rules of a configuration.

    \b
    Example:
      mcpmux access test mcpmux.toml --principal alice --uri docs+file:///a.md
    """


@access.command()
@config_argument
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
    config: str | None,
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
    loaded = load_config(choose_config(config))
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
            show(owner, own, explanation)
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


def show(upstream: str, target: str, explanation: Explanation) -> None:
    allowed, rule = explanation.decision
    word = "allowed" if allowed else "refused"
    why = "no rule allows it" if rule == NO_RULE and not allowed else f"by {rule}"
    click.echo(f"{word}: {printable(target)} of {upstream}, {why}")
    show_items(explanation.reasons, False, COLUMNS)
    for reading in explanation.readings:
        click.echo(f"  a server may also interpret it as {printable(reading)}")
