"""A secret that is planted anywhere in a configuration is never shown, not even beside other mistakes."""

from __future__ import annotations

import traceback

import pytest

from mcpmux.config import Config, Missing
from mcpmux.errors import ConfigError
from mcpmux.hosts.configuration import read_config
from tests.config.documents import read

SECRET = "sk-PLANTED-0123456789"
ENVIRON = {"TOKEN": SECRET}

FAILING = [
    f'[upstreams.docs]\ncommand = "npx"\nenv = {{ TOKEN = "{SECRET}" }}\nargz = []',
    f'[upstreams.docs]\ncommand = "npx"\nenv = "TOKEN={SECRET}"',
    f'[upstreams.docs]\ncommand = "npx"\nenv = ["TOKEN={SECRET}"]',
    f'[upstreams.docs]\ncommand = "npx"\nenv = {{ TOKEN = ["{SECRET}"] }}',
    f'[upstreams.docs]\ncommand = "npx"\nenv = {{ TOKEN = "{SECRET}\\u0000" }}',
    f'[upstreams.docs]\ncommand = "npx"\nenv = {{ TOKEN = "{SECRET}${{UNSET}}" }}',
    f'[upstreams.docs]\ncommand = "npx"\nenv = {{ TOKEN = "${{UNSET:-{SECRET}${{X}}}}" }}',
    f'[upstreams.docs]\ncommand = "npx"\nenv = {{ TOKEN = "${{{SECRET}" }}',
    f'[upstreams.docs]\ncommand = "npx"\nenv = {{ TOKEN = "{SECRET}" ',
    f'[upstreams.docs]\ncommand = "npx"\nenv = {{ TOKEN = {SECRET} }}',
    f'[upstreams.docs]\ncommand = "npx"\nargs = "--token {SECRET}"',
    f'[upstreams.docs]\ncommand = ["{SECRET}"]\nargs = ["{SECRET}", 5]',
    '[upstreams.docs]\ncommand = "npx"\nargs = ["${TOKEN}", "${UNSET}"]',
    f'[upstreams.docs]\nurl = "ftp://user:{SECRET}@example.com/"',
    f'[upstreams.docs]\nurl = "https://user:{SECRET}@example.com:99999/"',
    f'[upstreams.docs]\nurl = "https://[{SECRET}@example.com/"',
    '[upstreams.docs]\nurl = "https://example.com/ ?key=${TOKEN}"',
    f'[upstreams.docs]\nurl = "https://example.com"\nheaders = {{ Authorization = "Bearer {SECRET}\\n" }}',
    f'[upstreams.docs]\nurl = "https://example.com"\nheaders = "Authorization: {SECRET}"',
    f'[upstreams.docs]\nurl = "https://example.com"\nheaders = {{ "X Y" = "{SECRET}" }}',
    f'[upstreams.docs]\nurl = "https://example.com"\nprefix = "{SECRET}"\nconnect_timeout = "{SECRET}"',
    f'[upstreams.docs]\ncommand = "npx"\n[merging]\ncursor_key = ["{SECRET}"]\npage_size = "{SECRET}"',
    '[upstreams.docs]\ncommand = "npx"\n[merging]\ncursor_key = "${TOKEN}\\u0000"',
    f'[upstreams.docs]\ncommand = "npx"\n[logging]\nlevel = "{SECRET}"\n[limits]\nmax_sessions = "{SECRET}"',
    f'[upstreams.docs]\ncommand = "npx"\n[listeners]\nhttp = ["{SECRET}", "${{TOKEN}}"]\nstdio = "{SECRET}"',
    {"mcpServers": {"docs": {"type": SECRET, "env": {"TOKEN": SECRET}}}},
    {"mcpServers": {"docs": {"command": "npx", "url": f"https://{SECRET}@example.com"}}},
    {"mcpServers": {"docs": {"command": "npx", "envFile": f"/nowhere/{SECRET}"}}},
    {"mcpServers": {"docs": {"url": "https://example.com", "headers": [f"Authorization: {SECRET}"]}}},
    {"mcpServers": {"docs": {"command": "npx", "args": ["${input:" + SECRET + "}"]}}},
    {"mcpServers": [{"command": "npx", "env": {"TOKEN": SECRET}}]},
    {"mcpServers": {"docs": SECRET}, "mcpmux": SECRET},
    '{"mcpServers": {"docs": {"command": "npx", "env": {"TOKEN": "' + SECRET + '"} "x"}}',
    '{"mcpServers": {"docs": {"env": {"TOKEN": "' + SECRET,
    '{"mcpServers": {"docs": {"env": {"TOKEN": ' + SECRET,
]


def shown_by(error: BaseException) -> str:
    """Return all that a log or a traceback could show of an exception and of those behind it."""
    text = repr(error) + str(error) + "".join(traceback.format_exception(error))
    for inner in (error.__cause__, error.__context__):
        text += shown_by(inner) if inner is not None else ""
    return text


@pytest.mark.parametrize("document", FAILING)
def test_mistakes_do_not_show_secrets(document):
    try:
        (upstream,) = read(document, ENVIRON).upstreams
    except ConfigError as error:
        assert error.__context__ is None
        assert SECRET not in shown_by(error)
    else:
        assert isinstance(upstream.target, Missing)
        assert SECRET not in repr(upstream)


def test_undecodable_file_is_not_shown(tmp_path):
    path = tmp_path / "mux.toml"
    path.write_bytes(f"token = '{SECRET}'".encode() + b"\xff")
    with pytest.raises(ConfigError) as caught:
        read_config(str(path), {}, bytes)
    assert SECRET not in shown_by(caught.value)


def test_values_do_not_show_secrets():
    config = read(
        f"""
        [upstreams.docs]
        command = "npx"
        args = ["--token", "${{TOKEN}}"]
        env = {{ TOKEN = "${{TOKEN}}" }}
        [upstreams.web]
        url = "https://user:{SECRET}@example.com/mcp?key={SECRET}"
        headers = {{ Authorization = "Bearer {SECRET}" }}
        [merging]
        cursor_key = "{SECRET}"
        """,
        ENVIRON,
    )
    assert isinstance(config, Config)
    assert SECRET not in repr(config) + str(config)
    assert SECRET not in "".join(upstream.target.display for upstream in config.upstreams)
