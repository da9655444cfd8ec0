"""The cluster of a configuration, for `mcpmux check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from mcpmux.app.serving import NO_CLUSTER
from mcpmux.cli.console import show_json
from mcpmux.cli.process import run
from mcpmux.config import Config
from mcpmux.errors import ConfigError
from mcpmux.printable import printable
from mcpmux.protocol.envelope import raw

if TYPE_CHECKING:
    from mcpmux.cluster.survey import Survey


def report_cluster(config: Config, *, as_json: bool) -> list[str]:
    """Print what is known of the cluster, if there is one. Returns its problems. Raises ConfigError."""
    if config.cluster.url is None:
        return []
    survey = run(look, config)
    if as_json:
        show_json(raw({"cluster": msgspec.to_builtins(survey)}))
    else:
        click.echo(printable(f"cluster: {survey}"))
    for warning in survey.warnings:
        click.echo(printable(f"warning: cluster: {warning}"), err=True)
    return [f"cluster: {problem}" for problem in survey.problems]


async def look(config: Config) -> Survey:
    """Survey the cluster that replicas with this configuration are. Raises ConfigError."""
    try:
        from mcpmux.cluster.redis_store import open_redis_store
        from mcpmux.cluster.seal import ClusterSeal
        from mcpmux.cluster.survey import survey
    except ImportError as error:
        raise ConfigError([f"{NO_CLUSTER} ({error})"]) from None
    async with open_redis_store(config.cluster) as store:
        return await survey(store, ClusterSeal.of(config))
