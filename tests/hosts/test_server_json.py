"""A `server.json` becomes an upstream: what is written, what is asked for, and what is refused."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcpmux.config import Http, Stdio
from mcpmux.errors import ConfigError
from mcpmux.hosts.configuration import read_config
from mcpmux.hosts.reference import NotTakenOver
from mcpmux.hosts.server_json import Described, choose, parse_server_json
from mcpmux.hosts.toml_text import format_table


class Everything(frozenset[str]):
    def __contains__(self, _name: object) -> bool:
        return True


EVERYTHING = Everything()

STDIO = {"type": "stdio"}
NPM: dict[str, Any] = {
    "registryType": "npm",
    "identifier": "@jane/notes",
    "version": "1.2.3",
    "transport": STDIO,
}
IMAGE = {"registryType": "oci", "identifier": "images.example.com/jane/notes:1.2.3", "transport": STDIO}
HTTP = {"type": "streamable-http", "url": "https://notes.example.com/mcp"}
SSE = {"type": "sse", "url": "https://notes.example.com/sse"}


def described(
    *packages: Any, remotes: Any = (), programs: str | None = None, trusted: Collection[str] = ()
) -> Described:
    """Return the choice for the upstream `notes`. `programs`: those that are here, by default all."""
    document = {"name": "io.github.jane/notes", "packages": packages, "remotes": remotes}
    here = None if programs is None else programs.split()
    parsed = parse_server_json(json.dumps(document).encode())
    return choose(parsed, "notes", lambda program: here is None or program in here, trusted)


def args_of(**more: Any) -> list[str]:
    """Return the arguments behind the package."""
    args: list[str] = described(NPM | more, trusted=EVERYTHING).table["args"]
    assert args[:2] == ["-y", "@jane/notes@1.2.3"]
    return args[2:]


@pytest.mark.parametrize(
    ("package", "command"),
    [
        (NPM, "npx -y @jane/notes@1.2.3"),
        (NPM | {"version": ""}, "npx -y @jane/notes"),
        (NPM | {"runtimeHint": "bunx"}, "bunx -y @jane/notes@1.2.3"),
        (NPM | {"runtimeHint": "node"}, "npx -y @jane/notes@1.2.3"),
        (NPM | {"registryType": "pypi", "identifier": "jane-notes"}, "uvx jane-notes@1.2.3"),
        (NPM | {"registryType": "nuget", "identifier": "Jane.Notes"}, "dnx Jane.Notes@1.2.3 --yes"),
        (
            NPM
            | {"registryType": "nuget", "identifier": "Jane.Notes"}
            | {"packageArguments": [{"type": "positional", "value": "mcp"}]},
            "dnx Jane.Notes@1.2.3 --yes -- mcp",
        ),
        (IMAGE, "docker run -i --rm images.example.com/jane/notes:1.2.3"),
        (
            IMAGE
            | {"identifier": "jane/notes", "version": "1", "registryBaseUrl": "https://images.example.com"},
            "docker run -i --rm jane/notes:1",
        ),
        (IMAGE | {"runtimeHint": "podman"}, "podman run -i --rm images.example.com/jane/notes:1.2.3"),
        (
            IMAGE
            | {"environmentVariables": [{"name": "MODE", "value": "ro"}]}
            | {"runtimeArguments": [{"type": "named", "name": "--network", "value": "none"}]},
            "docker run -i --rm -e MODE --network none images.example.com/jane/notes:1.2.3",
        ),
    ],
)
def test_a_package_becomes_the_command_that_fetches_and_starts_it(package: Any, command: str) -> None:
    table = described(package).table
    assert " ".join([table["command"], *table["args"]]) == command


def test_where_a_package_is_said_to_be_is_told() -> None:
    (note,) = described(NPM | {"registryBaseUrl": "https://packages.example.com"}).notes
    assert note.startswith("the document says that it is at https://packages.example.com; `npx` looks")


def test_words_that_the_command_begins_with_are_not_said_twice() -> None:
    words = [{"type": "positional", "value": "run"}, {"type": "named", "name": "-i", "isRequired": True}]
    table = described(IMAGE | {"runtimeHint": "docker", "runtimeArguments": words}).table
    assert table["args"] == ["run", "-i", "--rm", "images.example.com/jane/notes:1.2.3"]


def option(text: str) -> dict[str, str]:
    name, space, value = text.partition(" ")
    return {"type": "named", "name": name, **({"value": value} if space else {})}


PYPI = NPM | {"registryType": "pypi", "identifier": "notes"}
NUGET = NPM | {"registryType": "nuget", "identifier": "Notes"}


@pytest.mark.parametrize(
    ("package", "argument", "name", "effect"),
    [
        (NPM, option("--registry http://evil.example"), "--registry", "where packages come from"),
        (NPM, option("--registry=http://evil.example"), "--registry", "where packages come from"),
        (NPM, option("--call sh x"), "--call", "runs something else"),
        (NPM, option("--package evil"), "--package", "runs something else"),
        (NPM, option("--node-options=--require=/tmp/x"), "--node-options", "runs something else"),
        (NPM, option("-y evil"), "-y", "not one that mcpmux knows"),
        (NPM, {"type": "positional", "value": "evil"}, "evil", "runs something else"),
        (NPM, {"type": "positional", "isRequired": True}, "${NOTES_ARGUMENT_1}", "runs something else"),
        (PYPI, option("--default-index http://evil.example"), "--default-index", "where packages come from"),
        (PYPI, option("--with evil"), "--with", "runs something else"),
        (PYPI, option("--python ./evil"), "--python", "runs something else"),
        (NUGET, option("--source http://evil.example"), "--source", "where packages come from"),
        (IMAGE, option("--privileged"), "--privileged", "opens the container"),
        (IMAGE, option("-v /:/host"), "-v", "opens the container"),
        (IMAGE, option("-v/:/host"), "-v/:/host", "opens the container"),
        (IMAGE, option("--mount=type=bind,src=/,dst=/x"), "--mount", "opens the container"),
        (IMAGE, option("--network host"), "--network", "opens the container"),
        (IMAGE, option("--security-opt seccomp=unconfined"), "--security-opt", "opens the container"),
        (IMAGE, option("-e AWS_SECRET_ACCESS_KEY"), "-e", "opens the container"),
        (IMAGE, option("--entrypoint sh"), "--entrypoint", "runs something else"),
        (IMAGE, option("--rm evil/image"), "--rm", "not one that mcpmux knows"),
        (IMAGE, option("--new-option"), "--new-option", "not one that mcpmux knows"),
        (IMAGE, option("-e NODE_OPTIONS=--require=/data/x"), "-e", "opens the container"),
        (IMAGE, option("-tv /:/host"), "-tv", "not one that mcpmux knows"),
        (NPM, option("--reg http://evil.example"), "--reg", "not one that mcpmux knows"),
    ],
)
def test_a_harmful_argument_needs_trust(package: Any, argument: Any, name: str, effect: str) -> None:
    package = package | {"runtimeArguments": [argument]}
    with pytest.raises(NotTakenOver) as refused:
        described(package)
    message = str(refused.value)
    assert f"`{name}`" in message
    assert effect in message
    assert f"--trust {shlex.quote(name)}`" in message
    table, notes = described(package, trusted=[name])
    words = [argument[key] for key in ("name", "value") if key in argument] or [name]
    assert any(table["args"][at:][: len(words)] == words for at in range(len(table["args"])))
    assert f"argument for `{table['command']}`: {shlex.join(words)}" in notes[0]


@pytest.mark.parametrize(
    ("package", "argument"),
    [
        (NPM, "--quiet"),
        (PYPI, "--python 3.12"),
        (NUGET, "--prerelease"),
        (IMAGE, "-e MODE=ro"),
        (IMAGE, "--memory=1g"),
        (IMAGE, "--init"),
    ],
)
def test_a_harmless_argument_is_taken_over_and_shown(package: Any, argument: str) -> None:
    table, (note,) = described(package | {"runtimeArguments": [option(argument)]})
    words = argument.split(" ", 1)
    assert note == f"the document has an argument for `{table['command']}`: {shlex.join(words)}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NODE_OPTIONS", "x"),
        ("PYTHONSTARTUP", "x"),
        ("LD_PRELOAD", "x"),
        ("PATH", "x"),
        ("HOME", "x"),
        ("npm_config_registry", "x"),
        ("DOCKER_HOST", "x"),
        ("https_proxy", "x"),
        ("BASH_ENV", "x"),
        ("LUA_INIT", "x"),
        ("RUSTC_WRAPPER", "x"),
        ("GIO_MODULE_DIR", "x"),
        ("KUBECONFIG", "x"),
        ("OPENAI_BASE_URL", "https://evil.example"),
        ("NODE_TLS_REJECT_UNAUTHORIZED", "0"),
        ("NOTES_MODE", "/etc"),
        ("NOTES_MODE", "a,../b"),
        ("NOTES_MODE", "$(id)"),
        ("NOTES_MODE", "ro\nx"),
        ("NOTES_MODE", "${HOME}"),
    ],
)
def test_a_variable_that_may_be_harmful_needs_trust(name: str, value: str) -> None:
    variables = [{"name": name, "value": value}, {"name": "NODE_ENV", "value": ""}]
    package = NPM | {"environmentVariables": variables}
    with pytest.raises(NotTakenOver, match=rf"`{name}` .*--trust {name}`"):
        described(package)
    env = {name: value.replace("${", "$${"), "NODE_ENV": ""}
    assert described(package, trusted=[name]).table["env"] == env
    requiring = NPM | {"environmentVariables": [{"name": name, "isRequired": True}]}
    assert described(requiring).table["env"] == {name: f"${{{name}}}"}


@pytest.mark.parametrize(
    "setting",
    [
        "MODE=ro",
        "AWS_REGION=eu-west-1",
        "MCP_LOG_LEVEL=info",
        "MCP_TRANSPORT=stdio",
        "PYTHONUNBUFFERED=1",
        "LANG=en_US.UTF-8",
        "NOTES_READ_ONLY=true",
        "NOTES_TIMEOUT_MS=5000",
        "DEBUG=false",
        "NO_COLOR=1",
    ],
)
def test_a_harmless_variable_is_taken_over(setting: str) -> None:
    name, _, value = setting.partition("=")
    variables = [{"name": name, "default": value}]
    assert described(NPM | {"environmentVariables": variables}).table["env"] == {name: value}
    words = {"runtimeArguments": [option(f"-e {setting}")]}
    assert described(IMAGE | words).table["args"][3:5] == ["-e", setting]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"type": "positional", "value": "start"}, ["start"]),
        ({"type": "positional", "valueHint": "folder", "default": "."}, ["."]),
        ({"type": "positional", "valueHint": "folder", "isRequired": True}, ["${NOTES_FOLDER}"]),
        ({"type": "positional", "isRequired": True}, ["${NOTES_ARGUMENT_1}"]),
        ({"type": "positional", "valueHint": "folder"}, []),
        ({"type": "named", "name": "--port", "value": "80"}, ["--port", "80"]),
        (
            {"type": "named", "name": "--port", "isRequired": True, "format": "number"},
            ["--port", "${NOTES_PORT}"],
        ),
        ({"type": "named", "name": "--port", "format": "number"}, []),
        ({"type": "named", "name": "--verbose"}, ["--verbose"]),
        (
            {"type": "named", "name": "--key", "value": "abc", "isSecret": True, "isRequired": True},
            ["--key", "${NOTES_KEY}"],
        ),
        ({"type": "positional", "value": "{a}-{b}", "variables": {"a": {"default": "x"}}}, ["x-{b}"]),
        (
            {"type": "named", "name": "-e", "value": "DB={db}", "variables": {"db": {"isRequired": True}}},
            ["-e", "DB=${NOTES_DB}"],
        ),
        ({"type": "named", "name": "-e", "value": "DB={db}", "variables": {"db": {}}}, []),
    ],
)
def test_an_argument_is_its_value_or_asked_for_or_left_out(argument: Any, words: list[str]) -> None:
    assert args_of(packageArguments=[argument]) == words


def test_secrets_are_asked_for_whatever_the_document_says() -> None:
    variables = [
        {"name": "API_KEY", "isSecret": True, "isRequired": True, "description": "from your account"},
        {"name": "SALT", "isSecret": True, "default": "pepper"},
        {"name": "PEM", "isSecret": True},
        {"name": "MODE", "default": "ro", "choices": ["ro", "rw"]},
        {"name": "REGION", "isRequired": True, "choices": ["eu", "us"]},
    ]
    table, notes = described(NPM | {"environmentVariables": variables})
    assert table["env"] == {
        "API_KEY": "${API_KEY}",
        "SALT": "${SALT}",
        "MODE": "ro",
        "REGION": "${REGION}",
    }
    assert notes == (
        "API_KEY: from your account",
        "SALT: needed",
        "REGION: one of eu, us",
        "left out, as it is optional: PEM",
    )


def test_a_remote_becomes_its_url_and_headers() -> None:
    remote = {
        "type": "streamable-http",
        "url": "https://{tenant}.example.com/{region}/mcp",
        "variables": {"tenant": {"description": "yours"}, "region": {"default": "eu"}},
        "headers": [
            {
                "name": "Authorization",
                "isRequired": True,
                "value": "Bearer {token}",
                "variables": {"token": {"isSecret": True}},
            },
            {"name": "X-Mode", "value": "ro"},
            {"name": "X-Trace"},
        ],
    }
    table, notes = described(remotes=[remote], trusted=["X-Mode", "NOTES_TENANT", "NOTES_TOKEN"])
    url = "https://${NOTES_TENANT}.example.com/eu/mcp"
    headers = {"Authorization": "Bearer ${NOTES_TOKEN}", "X-Mode": "ro"}
    assert table == {"url": url, "headers": headers}
    assert notes[:3] == (
        f"the document sends requests to {url}",
        f"the variable NOTES_TENANT is sent to {url}",
        f"the variable NOTES_TOKEN is sent to {url} in the header Authorization",
    )


SECRET = {"secret-access-key": {"isRequired": True}}


@pytest.mark.parametrize(
    ("remote", "where"),
    [
        ({"headers": [{"name": "Secret-Access-Key", "isRequired": True}]}, "in the header Secret-Access-Key"),
        (
            {"headers": [{"name": "User-Agent", "value": "x {secret-access-key}", "variables": SECRET}]},
            "in the header User-Agent",
        ),
        (
            {"url": "https://notes.example.com/{secret-access-key}", "variables": SECRET},
            "is sent to https://notes.example.com/${AWS_SECRET_ACCESS_KEY}",
        ),
    ],
)
def test_a_variable_sent_to_a_remote_needs_trust_by_name(remote: Any, where: str) -> None:
    """The document chooses its own name, and so that of a variable that is set already."""
    document = parse_server_json(json.dumps({"name": "evil/aws", "remotes": [HTTP | remote]}).encode())
    header_names = ["Secret-Access-Key", "User-Agent"]
    with pytest.raises(NotTakenOver) as refused:
        choose(document, "aws", EVERYTHING.__contains__, header_names)
    message = str(refused.value)
    assert "`AWS_SECRET_ACCESS_KEY` is sent to https://notes.example.com/" in message
    assert where in message
    assert "--trust AWS_SECRET_ACCESS_KEY`" in message
    notes = choose(document, "aws", EVERYTHING.__contains__, ["AWS_SECRET_ACCESS_KEY"]).notes
    assert notes[1].startswith("the variable AWS_SECRET_ACCESS_KEY is sent to https://notes.example.com/")
    assert where in notes[1]


@pytest.mark.parametrize("value", ["x\r\nAuthorization: y", "x\ny", "x\ry", "x\0", "x\u2028y"])
def test_a_header_of_more_than_one_line_is_refused(value: str) -> None:
    headers = [{"name": "User-Agent", "value": value}]
    with pytest.raises(NotTakenOver, match="its header `User-Agent`: expected text of one line"):
        described(remotes=[HTTP | {"headers": headers}], trusted=EVERYTHING)


def word(text: str) -> dict[str, str]:
    return {"type": "positional", "value": text}


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        (option("--exec x"), "--exec"),
        (option("--execCommand reboot"), "--execCommand"),
        (option("--init-command reboot"), "--init-command"),
        (option("--ex x"), "--ex"),
        (option("--exec=x"), "--exec"),
        (option("--exec"), "--exec"),
        (option("-e require('x')"), "-e"),
        (option("-c rm -r x"), "-c"),
        (option("-pe x"), "-pe"),
        (option("-ereboot"), "-ereboot"),
        (option("--import data:text/javascript,x"), "--import"),
        (option("--stdio npx evil"), "--stdio"),
        (option("--name=a;b"), "--name"),
        (option("--mode a;b"), "--mode"),
        (option("--mode=a\nb"), "--mode"),
        (option("--port --exec"), "--port"),
        (option("--root C:\\"), "--root"),
        (option("-d/etc"), "-d/etc"),
        (option("--root file:../x"), "--root"),
        (option("--root FILE:///etc"), "--root"),
        (option("--root a,/etc"), "--root"),
        (option("--mode a,/etc"), "--mode"),
        (option("--base-url https://evil.example/"), "--base-url"),
        (word("--exec"), "--exec"),
        (word("--"), "--"),
        (word("npx"), "npx"),
        (word("sh -c x"), "sh -c x"),
        (word("/bin/bash"), "/bin/bash"),
        (word("a && b"), "a && b"),
        (word("$(a)"), "$(a)"),
        (word("/"), "/"),
        (word("~/.ssh"), "~/.ssh"),
        (word("a/../../b"), "a/../../b"),
        (word(".."), ".."),
        (word("a,/etc"), "a,/etc"),
        (word("file:../x"), "file:../x"),
        (word("FILE:///"), "FILE:///"),
        (word("http://evil.example/"), "http://evil.example/"),
        (word("${HOME}"), "$${HOME}"),
    ],
)
def test_a_package_argument_that_may_be_harmful_needs_trust(argument: Any, name: str) -> None:
    package = NPM | {"packageArguments": [argument]}
    with pytest.raises(NotTakenOver) as refused:
        described(package)
    assert f"`{name}`" in str(refused.value)
    assert f"--trust {shlex.quote(name)}`" in str(refused.value)
    notes = described(package, trusted=[name]).notes
    assert any("an argument for the package: " in note for note in notes)


@pytest.mark.parametrize(
    "argument",
    [
        word("start"),
        word("mcp"),
        word("."),
        word("--mcp"),
        option("--port 8080"),
        option("--transport stdio"),
        option("--log-level=debug"),
        option("--logLevel debug"),
        option("--read-only true"),
        option("--read-only"),
        {"type": "positional", "valueHint": "folder", "isRequired": True},
        {"type": "named", "name": "--root", "isRequired": True, "format": "filepath"},
        {"type": "named", "name": "--exec", "isRequired": True, "isSecret": True},
    ],
)
def test_a_plain_argument_of_the_package_is_taken_and_shown(argument: Any) -> None:
    (note,) = [note for note in described(NPM | {"packageArguments": [argument]}).notes if "package:" in note]
    assert argument.get("name", argument.get("value", "")) in note


@pytest.mark.parametrize(
    ("url", "effect"),
    [
        ("http://notes.example.com/mcp", "without encryption"),
        ("HTTP://10.0.0.1/mcp", "without encryption"),
        ("http://localhost.example.com/mcp", "without encryption"),
        ("https://github.com@evil.example/mcp", "user in front"),
        ("http://127.0.0.1@evil.example/mcp", "user in front"),
        ("http://127.0.0.1\\@evil.example/mcp", "user in front"),
    ],
)
def test_an_unencrypted_or_deceptive_url_needs_trust(url: str, effect: str) -> None:
    remote = HTTP | {"url": url}
    if url.startswith("HTTP:"):
        with pytest.raises(NotTakenOver):
            described(remotes=[remote])
        return
    with pytest.raises(NotTakenOver, match=effect) as refused:
        described(remotes=[remote])
    assert f"--trust {shlex.quote(url)}`" in str(refused.value)
    assert described(remotes=[remote], trusted=[url]).notes[0] == f"the document sends requests to {url}"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/mcp", "http://localhost/mcp", "http://[::1]/mcp"])
def test_a_url_of_this_machine_needs_no_encryption(url: str) -> None:
    assert described(remotes=[HTTP | {"url": url}]).table["url"] == url


@pytest.mark.parametrize("name", ["Authorization", "Cookie", "Host", "X-Api-Key", "X-Forwarded-For"])
def test_a_header_with_a_fixed_value_needs_trust(name: str) -> None:
    headers = [{"name": name, "value": "x${A}"}, {"name": "X-Api-Version", "default": "2"}]
    with pytest.raises(NotTakenOver, match=rf"`{name}` .*--trust {name}`"):
        described(remotes=[HTTP | {"headers": headers}])
    table = described(remotes=[HTTP | {"headers": headers}], trusted=[name]).table
    assert table["headers"] == {name: "x$${A}", "X-Api-Version": "2"}


def test_the_first_usable_choice_is_taken_and_the_others_named() -> None:
    offers = (NPM, IMAGE)
    assert described(*offers, remotes=[SSE, HTTP], programs="docker npx").table["command"] == "npx"
    table, notes = described(*offers, remotes=[SSE, HTTP], programs="docker")
    assert table["command"] == "docker"
    assert notes == (
        "@jane/notes: there is no `npx` on this machine",
        "it is offered in other ways, too: https://notes.example.com/mcp, https://notes.example.com/sse",
    )
    assert described(*offers, remotes=[SSE, HTTP], programs="").table == {"url": HTTP["url"]}
    assert described(remotes=[SSE]).table == {"url": SSE["url"], "transport": "sse"}


@pytest.mark.parametrize(
    ("package", "reason"),
    [
        (NPM | {"registryType": "mcpb"}, "cannot run packages of `mcpb`"),
        (NPM | {"transport": HTTP}, "it speaks streamable-http: somebody has to start it first"),
        (NPM | {"identifier": "--package=evil"}, "no name and version"),
        (NPM | {"identifier": "../evil"}, "no name and version"),
        (NPM | {"identifier": "evil.tgz", "version": ""}, "no name and version"),
        (NPM | {"version": "evil.TAR.gz"}, "no name and version"),
        (NPM | {"identifier": "jane/notes"}, "no name and version"),  # npx takes it for a repository
        (NPM | {"identifier": "https://evil.example.com/x.tgz"}, "no name and version"),
        (NPM | {"version": "1 --x"}, "no name and version"),
        (IMAGE | {"identifier": "-v/:/host"}, "no name and version"),
        (NPM | {"packageArguments": [{"type": "named", "value": "x"}]}, "an option without a name"),
        (
            NPM | {"runtimeHint": "sh", "runtimeArguments": [{"type": "positional", "value": "-c"}]},
            "arguments are for `sh`",
        ),
    ],
)
def test_what_cannot_be_run_here_is_refused_with_the_reason(package: Any, reason: str) -> None:
    with pytest.raises(NotTakenOver, match=reason):
        described(package)


def test_a_hash_that_nobody_checks_is_told() -> None:
    notes = described(NPM | {"fileSha256": "0" * 64}).notes
    assert notes == ("its hash is not checked: `npx` fetches it, not mcpmux",)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "unix:/run/x",
        "ws://x.example/mcp",
        "",
        "{scheme}://x.example/mcp",
        "http{scheme}://x.example/mcp",
        "{scheme}",
    ],
)
def test_a_remote_of_an_unknown_transport_is_refused(url: str) -> None:
    remote = HTTP | {"url": url, "variables": {"scheme": {"isRequired": True}}}
    with pytest.raises(NotTakenOver, match="no URL"):
        described(remotes=[remote], trusted=EVERYTHING)


def test_a_scheme_that_the_document_gives_is_judged_as_any() -> None:
    remote = HTTP | {"url": "{scheme}://x.example/mcp", "variables": {"scheme": {"default": "http"}}}
    with pytest.raises(NotTakenOver, match="without encryption"):
        described(remotes=[remote])
    remote["variables"] = {"scheme": {"default": "https"}}
    assert described(remotes=[remote]).table == {"url": "https://x.example/mcp"}


@given(st.text("${}:-/aHOMEfile ", max_size=12).map(str.strip))
@example("${HOME}")
@example("${file:/etc/passwd}")
@example("$${HOME}")
@example("{x}${HOME:-a}")
def test_no_text_of_the_document_is_expanded(text: str) -> None:
    argument = {"type": "positional", "value": f"{text}{{y}}", "variables": {"y": {"default": text}}}
    variable = {"name": "X", "default": text}
    package = NPM | {"packageArguments": [argument], "environmentVariables": [variable]}
    stdio = read(described(package, trusted=EVERYTHING)).target
    assert isinstance(stdio, Stdio)
    assert stdio.args[-1] == text + text
    assert {name: value.reveal() for name, value in stdio.env.items()} == {"X": text}
    headers = [{"name": "X", "value": text}]
    http = read(described(remotes=[HTTP | {"headers": headers}], trusted=EVERYTHING)).target
    assert isinstance(http, Http)
    assert http.headers["X"].reveal() == text


def read(found: Described) -> Any:
    text = format_table(("upstreams", "notes"), found.table)
    return read_config("-", {"HOME": "/secret"}, text.encode).upstreams[0]


def test_a_dollar_before_a_variable_cannot_be_said() -> None:
    argument = {"type": "positional", "value": "${y}", "variables": {"y": {"isRequired": True}}}
    with pytest.raises(NotTakenOver, match="a `\\$` stands before"):
        args_of(packageArguments=[argument])


def test_the_answer_of_a_registry_has_the_document_in_it() -> None:
    official = {"io.modelcontextprotocol.registry/official": {"status": "deprecated"}}
    answer = {"server": {"name": "a/b", "remotes": [HTTP]}, "_meta": official}
    parsed = parse_server_json(json.dumps(answer).encode())
    assert choose(parsed, "b", lambda _program: True).notes[1:] == (
        "the registry says that it is deprecated",
    )


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{", "truncated"),
        (b"\xff", "malformed"),
        (b"[" * 100_000, "recursion"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `name`"),
        (b'{"name": "a/b", "packages": [{"registry_type": "npm"}]}', "`registryType` - at `$.packages[0]`"),
        (b'{"name": "a/b", "remotes": [{"type": 1}]}', "Expected `str`, got `int` - at `$.remotes[0].type`"),
    ],
)
def test_what_is_no_such_document_is_refused_with_the_place(data: bytes, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_server_json(data)
    assert problem in str(caught.value)


def test_a_document_that_offers_nothing_is_refused() -> None:
    with pytest.raises(NotTakenOver, match="neither packages nor remotes"):
        described()
