"""`mcpmux` and `mcpmux traffic`: their commands, and where each of them is."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import click

import mcpmux
from mcpmux.cli.group import LazyCommands

SECTIONS = {
    "Serve": {
        "serve": "mcpmux.cli.serve:serve",
        "demo": "mcpmux.cli.serve:demo",
        "ps": "mcpmux.cli.admin.shared:ps",
        "stop": "mcpmux.cli.admin.shared:stop",
    },
    "Set up servers and host apps": {
        "import": "mcpmux.cli.moving:import_command",
        "add": "mcpmux.cli.servers:add",
        "remove": "mcpmux.cli.servers:remove_command",
        "check": "mcpmux.cli.check:check",
        "install": "mcpmux.cli.moving:install",
        "uninstall": "mcpmux.cli.moving:uninstall",
    },
    "Use servers": {
        "ls": "mcpmux.cli.client.listing:ls",
        "read": "mcpmux.cli.client.requesting:read",
        "call": "mcpmux.cli.client.requesting:call",
        "prompt": "mcpmux.cli.client.requesting:prompt",
        "complete": "mcpmux.cli.client.requesting:complete",
        "subscribe": "mcpmux.cli.client.listening:subscribe",
        "ping": "mcpmux.cli.client.listening:ping",
    },
    "Watch and control": {
        "top": "mcpmux.cli.top.command:top",
        "ctl": "mcpmux.cli.admin.ctl:ctl",
        "traffic": "mcpmux.cli.main:traffic",
        "audit": "mcpmux.cli.audit:audit",
        "bench": "mcpmux.cli.bench.command:bench",
    },
    "Configure": {
        "config": "mcpmux.cli.config:config",
        "view": "mcpmux.cli.view:view",
        "access": "mcpmux.cli.config:access",
        "auth": "mcpmux.cli.auth:auth",
        "completion": "mcpmux.cli.completion:completion",
        "help": "mcpmux.cli.main:help_command",
    },
}
TRAFFIC_SECTIONS = {
    "Commands": {
        "tail": "mcpmux.cli.traffic.messages:tail",
        "show": "mcpmux.cli.traffic.messages:show",
        "grep": "mcpmux.cli.traffic.messages:grep",
        "stats": "mcpmux.cli.traffic.report:stats",
        "export": "mcpmux.cli.traffic.report:export",
        "replay": "mcpmux.cli.traffic.replay:replay",
        "mock": "mcpmux.cli.traffic.replay:mock",
    }
}


_PACKAGE = Path(mcpmux.__file__).parent


def is_compiled() -> bool:
    """Return whether the modules that pyproject.toml lists for mypyc are compiled, not interpreted."""
    return any((_PACKAGE / f"transports/byte_stream{suffix}").exists() for suffix in EXTENSION_SUFFIXES)


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    sections=SECTIONS,
)
@click.version_option(
    mcpmux.__version__, "-V", "--version", message="%(prog)s %(version)s" + " (compiled)" * is_compiled()
)
def cli() -> None:
    """Put one Model Context Protocol endpoint in front of many servers.

    Exit codes: 0 for success, 1 for failure, 2 for a mistake on the command line or in a file.

    \b
    Examples:
      mcpmux demo                                   see it work, without installing anything
      mcpmux serve mcpmux.toml                      the servers of a file at http://127.0.0.1:8484/mcp
      mcpmux serve --upstream time="uvx mcp-server-time"
      mcpmux ls https://example.com/mcp             list what a server offers
    """


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_command(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, as its option --help does.

    \b
    Example:
      mcpmux help traffic tail
    """
    assert context.parent is not None
    cli.main([*words, "--help"], prog_name=context.parent.info_name)


@click.group(cls=LazyCommands, context_settings={"show_default": True}, sections=TRAFFIC_SECTIONS)
def traffic() -> None:
    """Watch, search, measure and export the traffic of mcpmux.

    \b
    Examples:
      mcpmux traffic tail mcpmux-capture                              live, as it passes
      mcpmux traffic stats mcpmux-capture method=resources/read       rates, errors, latency
    """
