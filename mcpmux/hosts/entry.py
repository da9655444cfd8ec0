"""Translate each host app's form of a server to a table of our configuration.

Most use the form of Claude Desktop: `command`, `args`, `env`, `url`, `headers`. Codex, Goose and Zed
have other forms, which are translated to that one first. A part that our configuration cannot express
goes to `notes`; if that is the whole server, to `reason`. Both are free of values from the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from mcpmux.config.layout import MCPMUX
from mcpmux.config.report import closest
from mcpmux.hosts.host import DOLLAR, OTHER, Machine, Place
from mcpmux.hosts.reference import NotTakenOver, Surroundings, escape, reference, translate
from mcpmux.protocol.envelope import value_at

Table = dict[str, Any]


@frozen
class Found:
    """A server in the file of a host app. `table`: its upstream as in our file, with secrets in it.

    `settings`: the `"mcpmux"` object of its entry, which is in the table, too.
    """

    name: str
    place: Place
    table: Table = field(factory=dict, repr=False)
    enabled: bool = True
    settings: object = field(factory=dict, repr=False)
    notes: tuple[str, ...] = ()
    reason: str | None = None


def find_servers(place: Place, document: Mapping[str, Any], machine: Machine) -> Iterator[Found]:
    """Yield every server in the document that was read from `place`, in its order."""
    host, document = place.host, _plain(document)
    for servers, project, disabled in _find_parts(place, document):
        inputs = {str(input_.get("id")): input_ for input_ in _tables(document.get("inputs"))}
        surroundings = Surroundings(host, machine.home, machine.separator, project, inputs)
        for name, raw in servers.items():
            entry = dict(_table(raw))
            settings = entry.pop(MCPMUX, {})
            enabled = name not in disabled and _is_on(entry) and _is_on(_table(settings))
            server = Found(name, Place(host, place.path, project), {}, enabled, settings)
            try:
                if not isinstance(raw, Mapping):
                    raise NotTakenOver("it is no table")
                table, notes = _make_table(
                    _READERS.get(host.name, _read_plain)(entry, surroundings), surroundings
                )
                table |= {key: value for key, value in _table(settings).items() if key != "enabled"}
                yield evolve(server, table=table, notes=tuple(notes))
            except NotTakenOver as mistake:
                yield evolve(server, reason=str(mistake))


def _is_on(entry: Mapping[str, Any]) -> bool:
    return entry.get("enabled") is not False and entry.get("disabled") is not True


Part = tuple[Mapping[str, Any], Path | None, frozenset[str]]
"""Servers by name, the project that they are for, and the names of those that are turned off elsewhere."""


def _find_parts(place: Place, document: Mapping[str, Any]) -> Iterator[Part]:
    node = _table(value_at(document, place.host.servers))
    settings = _table(document.get("mcp")) if place.host.name == "gemini" else {}
    disabled = set(_texts(settings.get("excluded")))
    if "allowed" in settings:
        disabled |= node.keys() - set(_texts(settings["allowed"]))
    yield node, place.project, frozenset(disabled)
    if place.host.name == "claude-code" and place.project is None:
        for path, part in _table(document.get("projects")).items():
            off = frozenset(_texts(_table(part).get("disabledMcpServers")))
            yield _table(_table(part).get("mcpServers")), Path(path), off


def _plain(value: Any) -> Any:
    """Return the value in JSON's types: names are texts, and so are dates."""
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _tables(value: object) -> Iterator[Mapping[str, Any]]:
    yield from (item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else ()


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


# From the form of one host app to that of most.


def _read_plain(raw: Mapping[str, Any], around: Surroundings) -> Table:
    table = _translate(raw, around)
    if isinstance(path := table.pop("envFile", None), str):
        folder = around.project if around.host is OTHER else around.project or around.home
        table["env_file"] = _inside(folder, path)
    return table


def _translate(raw: Mapping[str, Any], around: Surroundings) -> Table:
    """Return the entry without keys for the host app itself, and with our references."""
    kept = raw.keys() - (HOST_APP_KEYS - _READ)
    return {
        # Other members may contain references that only the host app can resolve.
        key: translate(value, around) if key in _READ or key in _RENAMED else value
        for key, value in raw.items()
        if key in kept
    }


def _inside(folder: Path | None, path: str) -> str:
    """Return the path, in our words, in a folder. One that begins with a variable is complete."""
    return path if folder is None or path.startswith("${") else str(Path(escape(str(folder))) / path)


def _read_codex(raw: Mapping[str, Any], around: Surroundings) -> Table:
    table = _translate(raw, around)
    headers = dict(_table(table.pop("http_headers", None)))
    for header, name in _table(table.pop("env_http_headers", None)).items():
        headers[header] = reference(str(name))
    if isinstance(token := table.pop("bearer_token_env_var", None), str):
        headers["Authorization"] = f"Bearer {reference(token)}"
    env = dict(_table(table.get("env")))
    listed = table.pop("env_vars", None)
    for name in [*_texts(listed), *_texts([variable.get("name") for variable in _tables(listed)])]:
        env.setdefault(name, reference(name))
    milliseconds = table.pop("startup_timeout_ms", None)
    if "startup_timeout_sec" in table:
        table["connect_timeout"] = table.pop("startup_timeout_sec")
    elif isinstance(milliseconds, int):
        table["connect_timeout"] = milliseconds / 1000
    if "tool_timeout_sec" in table:
        table["timeouts"] = {"tools/call": table.pop("tool_timeout_sec")}
    renamed = {"enabled_tools": "includeTools", "disabled_tools": "excludeTools", "oauth_resource": "oauth"}
    for key, plain in renamed.items():
        if key in table:
            table.setdefault(plain, table.pop(key))
    if isinstance(table.get("tools"), Mapping):
        table.pop("tools")  # approvals: the tools that are used without asking
    return table | {key: members for key, members in (("headers", headers), ("env", env)) if members}


_GOOSE_OWN = {
    "builtin": "it is a part of Goose",
    "platform": "it is a part of Goose",
    "frontend": "its tools are those of the Goose app",
    "inline_python": "it is Python code in the file, which Goose runs",
    "sse": "Goose itself has no HTTP+SSE any more",
}


def _read_goose(raw: Mapping[str, Any], around: Surroundings) -> Table:
    kind = str(raw.get("type"))
    if kind in _GOOSE_OWN:
        raise NotTakenOver(_GOOSE_OWN[kind])
    if raw.get("socket"):
        raise NotTakenOver("it speaks HTTP over a Unix socket")
    table = _translate({key: value for key, value in raw.items() if key != "headers"}, around)
    env = dict(_table(table.pop("envs", None)))
    for name in _texts(table.pop("env_keys", None)):
        env.setdefault(name, reference(name))  # Goose has the value in the system's keyring
    headers = translate(dict(_table(raw.get("headers"))), around, DOLLAR)
    for name, value in env.items():
        headers = {key: str(header).replace(f"${{{name}}}", str(value)) for key, header in headers.items()}
    renamed = {"cmd": "command", "uri": "url", "available_tools": "includeTools"}
    table = {renamed.get(key, key): value for key, value in table.items()}
    for key in ("bundled", "display_name", "socket"):
        table.pop(key, None)
    if not table.get("includeTools"):
        table.pop("includeTools", None)  # an empty list means all of them
    if kind == "stdio":
        return table | {"env": env}
    return table | {"headers": headers}


def _read_zed(raw: Mapping[str, Any], around: Surroundings) -> Table:
    table = {key: value for key, value in raw.items() if key not in ("source", "remote")}
    if isinstance(table.get("command"), Mapping):  # the form of older versions
        inner = table.pop("command")
        table |= {
            "command": inner.get("path"),
            **{key: value for key, value in inner.items() if key != "path"},
        }
    if "command" not in table and "url" not in table:
        raise NotTakenOver("an extension of Zed starts it")
    table.pop("settings", None)
    return _translate(table, around)


_READERS: dict[str, Callable[[Mapping[str, Any], Surroundings], Table]] = {
    "codex": _read_codex,
    "goose": _read_goose,
    "zed": _read_zed,
}


# From the form of most host apps to ours.

# Keys in the entry of a server that are for the host app itself.
# fmt: off
HOST_APP_KEYS = frozenset({
    # approvals: the tools that are used without asking
    "allowedTools", "alwaysAllow", "autoApprove", "default_tools_approval_mode", "filterMapping", "trust",
    # how it starts and watches servers
    "alwaysLoad", "autoStart", "dev", "experimental_environment", "initTimeout", "keep_alive", "required",
    "sandbox", "sandboxEnabled", "sse_read_timeout", "startupTimeout", "start_on_launch",
    "supports_parallel_tool_calls", "timeout", "watchPaths",
    # how it logs in to the server
    "auth", "authProviderType", "authentication", "headersHelper", "oauth", "oauthScopes", "scopes",
    "targetAudience", "targetServiceAccount",
    # what it shows to people
    "description", "gallery", "icon", "iconUrl", "id", "metadata", "name", "source", "version",
})
# fmt: on
_URLS = ("url", "serverUrl", "httpUrl")
_STARTS = ("command", *_URLS)
_COPIED = ("command", "args", "cwd", "headers", "env_file", "connect_timeout", "timeouts")
_INCLUDED = ("includeTools", "enabledTools", "tools")
_EXCLUDED = ("excludeTools", "disabledTools")
_LOGIN = ("oauth", "auth", "authProviderType", "authentication")
_LOGGED_IN = "the host app logs in for it: see `oauth` and `mcpmux auth login`"
_NOTED = {
    **dict.fromkeys(_LOGIN, _LOGGED_IN),
    "headersHelper": "a program of the host app makes its headers",
    "sandboxEnabled": "the host app runs it in a sandbox, mcpmux does not",
    "sandbox": "the host app runs it in a sandbox, mcpmux does not",
}
"""Keys that our configuration cannot express -> what is lost."""
_READ = {*_URLS, *_COPIED, "env", "type", "transport", "timeout", "enabled", "disabled"}
_READ |= {*_INCLUDED, *_EXCLUDED, *_NOTED}
_RENAMED = {"cmd", "uri", "envs", "envFile", "http_headers"}
"""Keys of single host apps with texts that are read."""


def _make_table(entry: Table, around: Surroundings) -> tuple[Table, list[str]]:
    """Return the table of the upstream, and what is lost. Raises NotTakenOver."""
    urls = [entry[key] for key in _URLS if entry.get(key)]
    table: Table = {key: entry[key] for key in _COPIED if entry.get(key)}
    if (urls and "command" in table) or len(urls) > 1:
        raise NotTakenOver("it has a command and a URL, or two URLs")
    if not urls and "command" not in table:
        close = next((key for key in entry if key not in _READ and closest(key, _STARTS, 0.8)), None)
        hint = f"; is `{close}` one of them?" if close is not None else ""
        raise NotTakenOver(f"it has neither a command nor a URL{hint}")
    included = [_names(entry[key]) for key in _INCLUDED if isinstance(entry.get(key), list)]
    if selected := [names for names in included if names != ["*"]]:
        table["include_tools"] = selected[0]
    if excluded := [name for key in _EXCLUDED for name in _names(entry.get(key))]:
        table["exclude_tools"] = excluded
    notes = [note for key, note in _NOTED.items() if entry.get(key)]
    if urls:
        if around.host is not OTHER and str(urls[0]).partition(":")[0] in ("unix", "pipe"):
            raise NotTakenOver("it speaks HTTP over a socket or a pipe")
        table = {"url": urls[0], **{key: value for key, value in table.items() if key not in ("args", "cwd")}}
        if "sse" in (entry.get("type"), entry.get("transport")):
            table["transport"] = "sse"
    else:
        table.pop("headers", None)
        env: dict[str, str] = {}
        for name, value in _table(entry.get("env")).items():
            if value is None:
                notes.append("the host app takes a variable away from it, which mcpmux cannot do")
            else:
                env[name] = str(value).lower() if isinstance(value, bool) else str(value)
        if env:
            table["env"] = env
        if around.project is not None:  # the folder in which it is started there
            cwd = table.get("cwd")
            table["cwd"] = _inside(around.project, cwd if isinstance(cwd, str) else "")
    unit, timeout = around.host.timeout_seconds, entry.get("timeout")
    if unit is not None and isinstance(timeout, int | float) and timeout > 0:
        table.setdefault("timeouts", {"tools/call": round(timeout * unit, 3)})
    unknown = sorted(entry.keys() - _READ)
    notes += [f"keys that mcpmux does not know: {', '.join(unknown)}"] if unknown else []
    return table, list(dict.fromkeys(notes))


def _names(value: object) -> list[str]:
    """Return names of tools, without the arguments of Gemini CLI's `name(arguments)`."""
    return [name.partition("(")[0] for name in _texts(value)]


def is_mcpmux(table: Table) -> bool:
    """Return whether the server is mcpmux itself."""
    words = [str(table.get("command")), *map(str, table.get("args", ()))]
    names = [word.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".exe") for word in words]
    return "mcpmux" in names[:3] and "serve" in names
