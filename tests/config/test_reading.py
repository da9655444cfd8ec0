from __future__ import annotations

import pytest

from mcpmux.config import (
    Config,
    Http,
    HttpListener,
    Identity,
    Limits,
    Listeners,
    Logging,
    Merging,
    Missing,
    Secret,
    Stdio,
    Upstream,
)
from mcpmux.config.model import SAFE_VARIABLES, TIMED_METHODS
from mcpmux.errors import ConfigError
from tests.config.documents import problems_of, read

DOCS = '[upstreams.docs]\ncommand = "npx"\n'

TIMED = ", ".join(f'"{method}"' for method in TIMED_METHODS)
NO_UPSTREAM = "expected at least one upstream that is enabled"
NEITHER = "expected `command` (a program to start) or `url` (the endpoint of a running server)"
ADVICE = "set it, put it into an `env_file`, or give a default (`${UNSET:-default}`)"
UNSET = f"the environment variable `UNSET` is not set; {ADVICE}"
NO_INHERITANCE = "expected true, false, or a list of names of environment variables, got text"
NOT_A_PREFIX = 'expected a name (a letter, then up to 31 of a-z, 0-9, "." and "-") or ""'
NOT_A_NAME = 'expected a name of a-z, 0-9, "." and "-" such as `my-docs`, at most 32 characters'


def test_upstreams_come_in_file_order_with_defaults():
    config = read(
        """
        [upstreams.web]
        url = "https://example.com/mcp"
        [upstreams.docs]
        command = "npx"
        """
    )
    assert config == Config(
        upstreams=(
            Upstream(name="web", prefix="web", target=Http("https://example.com/mcp")),
            Upstream(name="docs", prefix="docs", target=Stdio("npx")),
        )
    )
    assert config.listeners == Listeners(stdio=False, http=())
    first = config.upstreams[0]
    assert (first.connect_timeout, first.request_timeout, first.list_timeout) == (30.0, 60.0, 10.0)


def test_every_setting_is_read():
    config = read(
        """
        [upstreams.docs]
        command = "${RUNNER}"
        args = ["-y", "pkg@${VERSION:-1}"]
        env = { TOKEN = "${TOKEN}", PORT = 8080 }
        cwd = "/srv"
        prefix = "d"
        connect_timeout = "2m"
        request_timeout = 5
        list_timeout = "500ms"
        [upstreams.web]
        url = "https://example.com/mcp?key=${TOKEN}"
        headers = { Authorization = "Bearer ${TOKEN}" }
        prefix = ""
        [listeners]
        stdio = true
        [[listeners.http]]
        port = "${PORT}"
        host = "0.0.0.0"
        path = "/"
        allowed_hosts = ["mux.example.com"]
        allowed_origins = ["https://app.example.com"]
        [[listeners.http]]
        host = "::1"
        port = 0
        [merging]
        page_size = 50
        cursor_key = "0123456789abcdef"
        [limits]
        max_message_bytes = "1MiB"
        max_head_bytes = 4096
        max_sessions = 7
        [identity]
        name = "mux"
        title = "Mux"
        instructions = "Be kind."
        [logging]
        level = "debug"
        format = "json"
        """,
        {"RUNNER": "npx", "TOKEN": "hunter2", "PORT": "8484"},
    )
    assert config == Config(
        upstreams=(
            Upstream(
                name="docs",
                prefix="d",
                target=Stdio(
                    "npx", ("-y", "pkg@1"), {"TOKEN": Secret("hunter2"), "PORT": Secret("8080")}, "/srv"
                ),
                connect_timeout=120.0,
                request_timeout=5.0,
                list_timeout=0.5,
            ),
            Upstream(
                name="web",
                prefix="",
                target=Http(
                    "https://example.com/mcp?key=hunter2", {"Authorization": Secret("Bearer hunter2")}
                ),
            ),
        ),
        listeners=Listeners(
            stdio=True,
            http=(
                HttpListener(
                    host="0.0.0.0",
                    port=8484,
                    path="/",
                    allowed_hosts=("mux.example.com",),
                    allowed_origins=("https://app.example.com",),
                ),
                HttpListener(host="::1", port=0),
            ),
        ),
        merging=Merging(page_size=50, cursor_key=Secret("0123456789abcdef")),
        limits=Limits(max_message_bytes=2**20, max_head_bytes=4096, max_sessions=7),
        identity=Identity(name="mux", title="Mux", instructions="Be kind."),
        logging=Logging(level="debug", format="json"),
    )


def test_own_layout_may_be_json():
    config = read(
        {"$schema": "mux.json", "upstreams": {"docs": {"command": "npx"}}, "logging": {"level": "error"}}
    )
    assert config.upstreams[0].target == Stdio("npx")
    assert config.logging.level == "error"


@pytest.mark.parametrize(
    ("document", "problems"),
    [
        ("", [NO_UPSTREAM]),
        ("[upstreams]", [NO_UPSTREAM]),
        ("upstreams = 5", ["upstreams: expected a table of upstreams, got a number"]),
        ("upstreams.docs = 5", ["upstreams.docs: expected a table, got a number"]),
        ("[upstreams.docs]", [f"upstreams.docs: {NEITHER}"]),
        (
            DOCS + 'url = "https://example.com"',
            ["upstreams.docs: expected `command` or `url`, got both"],
        ),
        (DOCS + "headers = {}", ["upstreams.docs: `headers` does not go with `command`"]),
        (DOCS + "transport = 'sse'", ["upstreams.docs: `transport` does not go with `command`"]),
        (
            "[upstreams.docs]\nurl = 'https://example.com'\ntransport = 'http'",
            ['upstreams.docs.transport: expected one of "auto", "streamable", "sse"'],
        ),
        (
            DOCS + "[[listeners.http]]\nport = 1\npath = '/sse'",
            ['listeners.http[0]: `sse_path` is the same as `path`; expected another path, or "" for none'],
        ),
        (
            DOCS + "[[listeners.http]]\nport = 1\nsse_path = 'sse'",
            ['listeners.http[0].sse_path: expected a path starting with "/", or ""'],
        ),
        (
            '[upstreams.docs]\nurl = "https://example.com"\nargs = []\ncwd = "/"',
            ["upstreams.docs: `args` does not go with `url`", "upstreams.docs: `cwd` does not go with `url`"],
        ),
        (DOCS + 'args = "-y"', ["upstreams.docs.args: expected a list, got text"]),
        (DOCS + "args = [1, '${UNSET}']", ["upstreams.docs.args[0]: expected text, got a number"]),
        (DOCS + "[identity]\nname = '${UNSET}'", [f"identity.name: {UNSET}"]),
        (DOCS + 'inherit_env = "PATH"', [f"upstreams.docs.inherit_env: {NO_INHERITANCE}"]),
        (
            '[upstreams.docs]\nurl = "https://example.com"\ninherit_env = false',
            ["upstreams.docs: `inherit_env` does not go with `url`"],
        ),
        (DOCS + "env = ['A=1']", ["upstreams.docs.env: expected a table, got a list"]),
        (
            DOCS + "env = { A = true, 'B=C' = 'x' }",
            [
                "upstreams.docs.env.A: expected text, got true or false",
                'upstreams.docs.env."B=C": expected the name of an environment variable',
            ],
        ),
        (DOCS + "comand = 5", ["upstreams.docs.comand: unknown key; did you mean `command`?"]),
        (DOCS + "enabled = 'no'", ["upstreams.docs.enabled: expected true or false, got text"]),
        (
            DOCS + "prefix = 'A_B'",
            [f"upstreams.docs.prefix: {NOT_A_PREFIX}"],
        ),
        (DOCS + "cwd = 1979-05-27", ["upstreams.docs.cwd: expected text, got a date or time"]),
        ("[upstreams.docs]\ncomand = 'npx'", ["upstreams.docs.comand: unknown key; did you mean `command`?"]),
        ("[upstreams.docs]\nULR = 'x'", ["upstreams.docs.ULR: unknown key; did you mean `url`?"]),
        ("[upstream.docs]\ncommand = 'npx'", ["upstream: unknown key; did you mean `upstreams`?"]),
        ("[mcpServers.docs]\ncommand = 'npx'", ["mcpServers: unknown key; did you mean `upstreams`?"]),
        (DOCS + "timeout = 5", ["upstreams.docs.timeout: unknown key; did you mean `request_timeout`?"]),
        (
            DOCS + "[listeners]\nhttp = ['127.0.0.1:1', '127.0.0.1:2']\ntcp = ['127.0.0.1:2']",
            ["listeners: two listeners have the address 127.0.0.1:2; leave one out, or choose another port"],
        ),
        ('[upstreams."My Docs"]\ncommand = "npx"', [f'upstreams."My Docs": {NOT_A_NAME}']),
        ("[upstream.docs]\ncommand = 'npx'\n" + DOCS, ["upstream: unknown key; did you mean `upstreams`?"]),
        (
            DOCS + "[listeners]\nhttp = ['8484', { host = 'x' }, 5]",
            [
                'listeners.http[0]: expected "HOST:PORT", for example "127.0.0.1:8484" or "[::1]:8484"',
                "listeners.http[1].port: expected a value, the key is missing",
                "listeners.http[2]: expected a table, got a number",
            ],
        ),
        (
            DOCS + "[audit]\ndirectory = 'log'\n[cluster]\nurl = 'redis://store'",
            [
                "cluster: all replicas need the same `cursor_key` in [merging]; set it to random text",
                "cluster: `replica` names the audit log of each replica, which it continues; set it, too",
            ],
        ),
        (DOCS + "[merging]\ncursor_key = 'short'", ["merging.cursor_key: expected at least 16 characters"]),
        (
            DOCS + "[logging]\nlevel = 'loud'",
            ['logging.level: expected one of "debug", "info", "warning", "error"'],
        ),
        (
            DOCS + "era = 'Lagacy'",
            [
                'upstreams.docs.era: expected one of "auto", "mirror", "newest", "legacy"; '
                'did you mean "legacy"?'
            ],
        ),
        (DOCS + "era = 5", ['upstreams.docs.era: expected one of "auto", "mirror", "newest", "legacy"']),
        (
            DOCS + "timeouts = { 'tool/call' = 5 }",
            [f'upstreams.docs.timeouts."tool/call": expected one of {TIMED}; did you mean "tools/call"?'],
        ),
        (DOCS + "[logging]\nfoo = 1", ["logging.foo: unknown key; expected one of `format`, `level`"]),
        ("[upstreams.docs]\nurl = 5", ["upstreams.docs.url: expected text, got a number"]),
    ],
)
def test_mistake_is_told_with_its_key_path(document, problems):
    assert sorted(problems_of(document)) == sorted(problems)


@pytest.mark.parametrize(
    ("prefixes", "said"),
    [
        ({"a": "", "b": ""}, "another upstream is unprefixed too; only one may be"),
        ({"a": "x", "b": "x"}, 'another upstream has the same prefix "x"'),
        ({"a": "b", "b": "c"}, 'the prefix "b" is the name of another upstream'),
        ({"a": "b", "b": "a"}, "is the name of another upstream"),
    ],
)
def test_upstreams_that_cannot_be_told_apart_are_a_mistake(prefixes, said):
    tables = {name: {"command": "npx", "prefix": prefix} for name, prefix in prefixes.items()}
    assert said in problems_of({"upstreams": tables})[0]
    with pytest.raises(ConfigError) as caught:
        Config(upstreams=tuple(Upstream(name=n, prefix=p, target=Stdio("npx")) for n, p in prefixes.items()))
    assert said in str(caught.value)


def test_a_config_needs_upstreams_with_different_names():
    docs = Upstream(name="docs", target=Stdio("npx"))
    for upstreams, reason in (((), "at least one"), ((docs, docs), "the same name")):
        with pytest.raises(ConfigError, match=reason):
            Config(upstreams=upstreams)


def test_disabled_upstream_is_kept_and_does_not_count():
    config = read(DOCS + '[upstreams.old]\ncommand = "npx"\nprefix = "docs"\nenabled = false')
    assert [(upstream.name, upstream.enabled) for upstream in config.upstreams] == [
        ("docs", True),
        ("old", False),
    ]
    assert problems_of('[upstreams.old]\ncommand = "npx"\nenabled = false') == [NO_UPSTREAM]


@pytest.mark.parametrize(
    ("line", "inherited"),
    [
        ("", None),
        ("inherit_env = true", None),
        ("inherit_env = false", SAFE_VARIABLES),
        ('inherit_env = ["PATH", "HTTPS_PROXY"]', ("PATH", "HTTPS_PROXY")),
        ("inherit_env = []", ()),
    ],
)
def test_program_inherits_the_variables_that_its_table_says(line, inherited):
    (docs,) = read(DOCS + line).upstreams
    assert docs.target == Stdio("npx", inherited=inherited)


def test_disabled_upstream_with_mistakes_is_left_out():
    config = read(DOCS + '[upstreams.old]\ncommand = "npx"\nargz = []\nenabled = false')
    assert [upstream.name for upstream in config.upstreams] == ["docs"]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ('command = "npx"\nenv = { A = "${UNSET}" }', f"env.A: {UNSET}"),
        ('command = "npx"\nargs = ["${file:/nowhere}"]', "args[0]: the file `/nowhere` cannot be read"),
        ('command = "npx"\nenv_file = "/nowhere/.env"', "env_file: expected a readable file"),
        ('url = "${EMPTY}"', "url: expected a URL"),
        ('url = "https://x.example"\nheaders = { A = "a ${LINES}" }', "headers.A: expected text of one line"),
        ('command = "npx"\nconnect_timeout = "${LINES}"', "connect_timeout: expected seconds"),
    ],
)
def test_upstream_that_lacks_a_value_stops_no_other(table, reason):
    environ = {"EMPTY": "", "LINES": "secret\nsecret"}
    docs, web = read(f"{DOCS}[upstreams.web]\n{table}", environ).upstreams
    assert (docs.target, web.name, web.enabled) == (Stdio("npx"), "web", True)
    assert isinstance(web.target, Missing)
    assert web.target.reason.startswith(reason)
    assert "secret" not in web.target.reason


def test_every_value_that_an_upstream_lacks_is_named():
    (docs,) = read(DOCS + 'args = ["${ONE}"]\nenv = { B = "${TWO}" }').upstreams
    assert isinstance(docs.target, Missing)
    assert "`ONE`" in docs.target.reason
    assert "env.B: the environment variable `TWO`" in docs.target.reason
