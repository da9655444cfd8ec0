"""`mcpmux check`: connect to every upstream and show its state."""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import Any

import click
import trio

from mcpmux.app import open_mux
from mcpmux.app.listeners import check_listeners
from mcpmux.cli.console import KINDS, Columns, show_activity, show_items, state_cell
from mcpmux.cli.options import load_config, quiet_option, upstream_json_option, upstream_option
from mcpmux.cli.process import run
from mcpmux.config import Config
from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.config.model import transport_of
from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.runtime.merger import walk
from mcpmux.runtime.upstreams.upstream import Upstream

Finding = dict[str, Any]
"""What was found out about one upstream, for people and machines. What is not known is left out."""


@click.command()
@click.argument("config", required=False)
@upstream_option
@upstream_json_option
@click.option("--allow-anyone", is_flag=True, help="Do not report listeners without authentication.")
@quiet_option
def check(config: str | None, upstreams: tuple[str, ...], as_json: bool, allow_anyone: bool) -> None:
    """Connect to every upstream and report its state.

    CONFIG is a TOML or JSON file, - for standard input, or one server by its URL or its command line in
    quotes. The exit code is 0 if all enabled upstreams are ready and answer their lists. It is 2 if mcpmux
    would not start with CONFIG, because it has mistakes or lets strangers in.

    \b
    Examples:
      mcpmux check mcpmux.toml
      mcpmux check --upstream web=https://example.com/mcp
      mcpmux check mcpmux.toml --json | jq -r 'select(.error) | .name'
    """
    loaded = load_config(config, upstreams, allow_anyone=allow_anyone)
    findings = run(examine_all, loaded)
    show_items(findings, as_json, COLUMNS, {*COUNTS, "CONNECT"})
    check_listeners(loaded)
    bad = [finding["name"] for finding in findings if "error" in finding]
    if bad:
        raise click.ClickException(f"{len(bad)} of {len(findings)} upstreams have problems: {', '.join(bad)}")


async def examine_all(config: Config) -> list[Finding]:
    """Examine all upstreams at the same time. Returns the findings in configuration order."""
    findings: dict[str, Finding] = {}
    async with (
        show_activity(f"connecting to {len(config.upstreams)} upstreams"),
        open_mux(config) as mux,
        trio.open_nursery() as nursery,
    ):
        for upstream in mux.upstreams.values():
            nursery.start_soon(examine, upstream, findings)
    return [findings[each.name] if each.enabled else describe(each, "disabled") for each in config.upstreams]


async def examine(upstream: Upstream, findings: dict[str, Finding]) -> None:
    await upstream.settled()
    facts = upstream.facts
    if facts is None:
        findings[upstream.name] = describe(upstream.config, upstream.state, error=upstream.trouble)
        return
    counts: dict[str, int] = {}
    error = None
    try:
        for kind, (method, _, _) in KINDS.items():
            if facts.offers(m.LISTS[method].capability):
                pages = (await walk(upstream, Call(method, {}, {}))).pages
                counts[kind] = sum(len(page.texts) for page in pages)
    except RpcError as failure:
        error = failure.message
    seconds = upstream.connect_seconds
    findings[upstream.name] = describe(
        upstream.config,
        upstream.state,
        revision=facts.revision,
        capabilities=sorted(facts.capabilities) or None,
        counts=counts or None,
        connectSeconds=None if seconds is None else round(seconds, 3),
        error=error,
        note=note_on(upstream),
    )


def describe(upstream: UpstreamConfig, state: str, **found: Any) -> Finding:
    """The finding about an upstream: what its configuration says, and what was `found`."""
    about = {
        "name": upstream.name,
        "state": state,
        "transport": transport_of(upstream.target),
        "target": upstream.target.display,
    }
    return about | {key: value for key, value in found.items() if value is not None}


def note_on(upstream: Upstream) -> str | None:
    """What the server does against its revision of the protocol; None for nothing."""
    if not upstream.unasked_logs:
        return None
    fate = "they pass" if upstream.space.transparent else "they are dropped"
    return f"sends log messages to requests that name no logLevel ({upstream.unasked_logs}): {fate}"


def _details(finding: Finding) -> str:
    """What is wrong, or the capabilities."""
    details = finding.get("error") or ", ".join(finding.get("capabilities", ()))
    return "; ".join(filter(None, (details, finding.get("note"))))


def _count(kind: str, finding: Finding) -> Any:
    return finding.get("counts", {}).get(kind)


COUNTS: Columns = {kind.upper(): partial(_count, kind) for kind in KINDS}
COLUMNS: Columns = {
    "NAME": itemgetter("name"),
    "STATE": lambda found: state_cell(found["state"], is_wrong="error" in found),
    "VIA": itemgetter("transport"),
    "REVISION": lambda found: found.get("revision"),
    **COUNTS,
    "CONNECT": lambda found: f"{found['connectSeconds']:.2f} s" if "connectSeconds" in found else None,
    "DETAILS": _details,
}
