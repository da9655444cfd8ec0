"""`mcpmux config show`: all settings, in the form in which they can be read again."""

from __future__ import annotations

from pathlib import Path

from mcpmux.cli.config import as_toml
from tests.cli.invoking import Invoke
from tests.config.documents import read

MANY_KINDS = """
[upstreams.a]
command = "npx"
args = ["a b", 'q"\\']
cwd = "/x"
inherit_env = ["HOME"]
include_tools = ["x"]
timeouts = { "tools/call" = "3 m" }
overrides = [{ name = "x", title = "X" }]
[upstreams.b]
url = "https://example.com/mcp"
transport = "sse"
prefix = ""
tls = { verify = false }
[upstreams.c]
url = "tls://example.com:99"
tls = { server_name = "x" }
[upstreams.d]
url = "unix:/s"
enabled = false
[listeners]
unix = ["/t"]
[[access]]
effect = "allow"
principals = ["alice]"]
[[access]]
effect = "deny"
upstreams = ["b"]
[[capture.rules]]
upstream = "a"
level = "off"
[views."w"]
include = [{ upstream = "a" }, { kind = "tools", readOnlyHint = true }]
"""


def test_what_is_shown_means_the_same_when_it_is_read_again() -> None:
    config = read(MANY_KINDS)
    assert read(as_toml(config)) == config


def test_secrets_are_not_shown(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "mux.toml"
    file.write_text(
        """
        [upstreams.a]
        url = "https://me:PLANTED@example.com/mcp?key=PLANTED"
        headers = { X-Key = "PLANTED" }
        [upstreams.b]
        command = "npx"
        args = ["--api-key=PLANTED-0123456789"]
        env = { KEY = "PLANTED", OTHER = "${NOT_SET_ANYWHERE}" }
        [admin]
        token = "PLANTED-PLANTED-PLANTED"
        """
    )
    shown = invoke("config", "show", str(file))
    assert shown.exit_code == 0, shown.stderr
    assert "PLANTED" not in shown.output
    assert "@example.com/mcp?***" in shown.stdout
    assert "NOT_SET_ANYWHERE" in shown.stderr
