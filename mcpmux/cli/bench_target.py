"""What `mcpmux bench` is pointed at: servers by themselves, or those of a configuration."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mcpmux.bench.plan import Plan, is_remote
from mcpmux.cli.open_files import may_open
from mcpmux.cli.source import load_config
from mcpmux.cli.wall import Mistake
from mcpmux.config import Limits, Upstream
from mcpmux.config.report import Unfit

OTHER_FILES = 64  # of the process itself
FILES_EACH = 3  # session: a connection and what is opened beside it, or a process's pipes


def find_targets(
    targets: Sequence[str], only: Sequence[str], added: Sequence[str]
) -> tuple[list[Upstream], Limits]:
    """Every server to measure, under a name that no other has. Raises ConfigError, Mistake."""
    configs = [load_config(target) for target in targets]
    if added or not targets:
        configs.append(load_config(None, added))
    found = [upstream for config in configs for upstream in config.upstreams if upstream.enabled]
    names = [upstream.name for upstream in found]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise Mistake(f"--only {unknown[0]}: there is no such upstream; there are {', '.join(names)}")
    chosen = [upstream for upstream in found if not only or upstream.name in only]
    return with_own_names(chosen), configs[0].limits


def check_files(upstreams: Sequence[Upstream], plan: Plan) -> None:
    """Let this process open as many files as the load needs. Raises Mistake when the system forbids it."""
    needed = OTHER_FILES + sum(FILES_EACH * plan.sessions + plan.workers for _ in upstreams)
    allowed = may_open(needed)
    least = OTHER_FILES + sum(max(plan.sessions, plan.workers) for _ in upstreams)
    if allowed < least:
        raise Mistake(
            f"so many connections need some {needed:,} open files, and this system allows {allowed:,}: raise "
            "its limit (`ulimit -n`), or ask for fewer sessions and clients"
        )


def with_own_names(upstreams: Sequence[Upstream]) -> list[Upstream]:
    """The same, those of the same name told apart by a number."""
    seen: dict[str, int] = {}
    named = []
    for upstream in upstreams:
        seen[upstream.name] = seen.get(upstream.name, 0) + 1
        number = seen[upstream.name]
        name = upstream.name if number == 1 else f"{upstream.name}-{number}"
        named.append(attrs.evolve(upstream, name=name))
    return named


def check_targets(upstreams: Sequence[Upstream], plan: Plan, *, allow_remote: bool) -> None:
    """Raises Mistake for a server that is not to be put under load, or not like this."""
    for upstream in upstreams:
        if is_remote(upstream) and not allow_remote:
            raise Mistake(
                f"{upstream.target.display} is not on this machine: load may harm it and those who use it; "
                "--allow-remote says that you may do this"
            )
        try:
            plan.connections_each(upstream)
        except Unfit as mistake:
            raise Mistake(f"{upstream.name}: {mistake}") from None
