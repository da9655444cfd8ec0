"""One list of upstreams out of several host apps."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.config.scalars import is_name
from mcpmux.hosts.entry import Found
from mcpmux.hosts.host import HOSTS, Place
from mcpmux.hosts.importing import find_new, find_present, gather, refuse_invalid


def found(host: str, name: str, command: str, *, enabled: bool = True) -> Found:
    return Found(name, Place(HOSTS[host], Path(f"/{host}")), {"command": command}, enabled)


def test_a_server_of_several_apps_is_one_and_on_if_any_is() -> None:
    (server,) = gather([found("cursor", "Docs", "a", enabled=False), found("zed", "docs", "a")])
    assert (server.name, server.enabled) == ("docs", True)
    assert [source.place.host.name for source in server.sources] == ["cursor", "zed"]


def test_different_servers_with_one_name_are_told_apart_by_their_host_apps() -> None:
    servers = gather([found("cursor", "docs", "a"), found("codex", "docs", "b"), found("zed", "web", "c")])
    assert [server.name for server in servers] == ["docs-cursor", "docs-codex", "web"]


def test_two_of_one_host_app_are_numbered() -> None:
    servers = gather([found("claude-code", "docs", "a"), found("claude-code", "docs", "b")])
    assert [server.name for server in servers] == ["docs-claude-code", "docs-claude-code-2"]


def test_one_server_with_two_names_comes_twice() -> None:
    servers = gather([found("cursor", "a", "x"), found("codex", "b", "x")])
    assert [server.name for server in servers] == ["a", "b"]


def test_what_cannot_be_taken_over_is_left_out() -> None:
    assert gather([Found("x", Place(HOSTS["zed"], Path("/z")), reason="no")]) == []


@pytest.mark.parametrize(
    ("upstreams", "present"),
    [
        (["work"], ["work"]),
        (["gh"], ["home"]),
        (["gh", "work"], ["work", "home"]),
        (["home", "work"], ["home", "work"]),
        ([], []),
    ],
)
def test_an_upstream_is_one_of_the_servers_that_differ_in_their_secrets(
    upstreams: list[str], present: list[str]
) -> None:
    place = Place(HOSTS["cursor"], Path("/cursor"))
    servers = gather(
        Found(name, place, {"command": "x", "env": {"API_TOKEN": name * 9}}) for name in ("home", "work")
    )
    tables = {name: {"command": "x", "env": {"API_TOKEN": "${TOKEN}"}} for name in upstreams}
    assert [server.name for server in find_present(servers, tables)] == present
    missing = {"home", "work"} - {*present}
    assert {server.name for server in find_new(servers, tables)} == missing


servers = st.builds(
    found,
    st.sampled_from(["cursor", "codex", "claude-desktop"]),
    st.one_of(st.sampled_from(["docs", "Docs", "docs-cursor", "a" * 40, "ü"]), st.text(max_size=40)),
    st.sampled_from("ab"),
)


@given(st.lists(servers, max_size=8))
def test_names_are_valid_and_different_and_no_server_is_lost(all_found: list[Found]) -> None:
    gathered = gather(all_found)
    names = [server.name for server in gathered]
    assert len(set(names)) == len(names)
    assert all(map(is_name, names))
    assert sum(len(server.sources) for server in gathered) == len(all_found)


def test_text_that_no_file_can_have_is_a_reason() -> None:
    assert refuse_invalid(found("zed", "x", "\ud800"), {}).reason == "it has text that is no Unicode"
