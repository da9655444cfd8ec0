"""A catalog of tools as large as a company's: those of public servers, and its internal ones.

The public servers run behind one mcpmux, which is asked for its list. The company's own servers are only
described, in `tool_catalog.txt`. Their tools are near neighbours of each other and of the public ones.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

from tests.peers.blocking_client import HttpClient
from tests.peers.revision import MODERN
from tests.real.mux import HttpMux, Json, stdio, write_config
from tests.real.parts import npm_env, pip_env

OWN_SERVERS = Path(__file__).with_suffix(".txt")

Words = dict[str, tuple[str, str]]
"""The names and descriptions of plain verbs."""

TERSE: Words = {
    "list": ("list", "List {many} {place}."),
    "get": ("get", "Get one {one}: {what}."),
    "create": ("create", "Create {a_one} {place}."),
    "update": ("update", "Update {a_one}."),
    "delete": ("delete", "Delete {a_one}."),
    "search": ("search", "Search {many} {place} by text."),
    "count": ("count", "Count {many}."),
    "export": ("export", "Export {many} as CSV or JSON."),
    "archive": ("archive", "Archive {a_one}, so that it becomes read-only."),
    "history": ("get history of", "Show who changed {a_one} and when."),
}
FORMAL: Words = {
    "list": ("list", "Returns {many} {place}, newest first, a page at a time. {A_one} is {what}."),
    "get": ("retrieve", "Retrieves the details of an existing {one} by its identifier: {what}."),
    "create": ("create", "Creates a new {one} object. {A_one} is {what}."),
    "update": ("update", "Updates the specified {one}. Values that are left out stay unchanged."),
    "delete": ("remove", "Permanently removes {a_one}. It cannot be undone."),
    "search": ("query", "Returns the {many} {place} that match an expression of the query language."),
    "count": ("count", "Returns the number of {many} that match a condition."),
    "export": ("export", "Writes {many} into a file for spreadsheets and returns where to download it."),
    "archive": ("archive", "Archives {a_one}: it is kept but no longer listed."),
    "history": ("audit", "Returns the audit trail of {a_one}: changed values, by whom and when."),
}
CHATTY: Words = {
    "list": ("list", "Use this tool to see which {many} there are {place}. Knows no text search."),
    "get": ("read", "Look up a single {one} when you know its id. {A_one} is {what}."),
    "create": ("add", "Add {a_one} {place}. Ask the user before you do so."),
    "update": ("edit", "Change some values of {a_one} that exists already."),
    "delete": ("delete", "Remove {a_one} for good. Make sure that the user really wants that."),
    "search": ("find", "Find {many} {place} by words in them, best match first."),
    "count": ("count", "Tell how many {many} there are."),
    "export": ("export", "Save {many} to a file that the user can download."),
    "archive": ("archive", "Close {a_one} without losing what is in it. Nobody can add anything later."),
    "history": ("history of", "Show earlier revisions of {a_one} and who made them."),
}
WORDINGS = {"terse": TERSE, "formal": FORMAL, "chatty": CHATTY}

Style = Callable[[list[str]], str]
STYLES: dict[str, Style] = {
    "snake": "_".join,
    "kebab": "-".join,
    "camel": lambda words: words[0] + "".join(map(str.capitalize, words[1:])),
}

PAGING = "limit: Most results per page; cursor: Where the page before ended"
PLURALS = ("list", "search", "count", "export")


def catalog(directory: Path) -> list[Json]:
    """Return all tools; the public servers work in `directory`."""
    return [*public_tools(directory), *own_tools()]


def public_tools(directory: Path) -> list[Json]:
    """Return tools of public servers that need no network or credentials, as one mcpmux lists them."""
    repository = directory / "repository"
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    python, more_python = str(pip_env("servers")), str(pip_env("catalog"))
    programs, more_programs = npm_env("servers") / ".bin", npm_env("catalog") / ".bin"
    memory = f"MEMORY_FILE_PATH={directory / 'memory.jsonl'}"
    commands = {
        "everything": [str(programs / "mcp-server-everything"), "stdio"],
        "files": [str(programs / "mcp-server-filesystem"), str(directory)],
        "memory": ["env", memory, str(programs / "mcp-server-memory")],
        "time": [python, "-m", "mcp_server_time", "--local-timezone", "UTC"],
        "git": [python, "-m", "mcp_server_git", "--repository", str(repository)],
        "fetch": [more_python, "-m", "mcp_server_fetch"],
        # It cannot be started as a module, and its script has the path of its environment in it.
        "sqlite": [
            more_python,
            "-c",
            "import mcp_server_sqlite as m; m.main()",
            "--db-path",
            str(directory / "data.db"),
        ],
        "thinking": [str(more_programs / "mcp-server-sequential-thinking")],
        "browser": [str(more_programs / "playwright-mcp"), "--headless"],
    }
    config = write_config(directory, {name: stdio(command) for name, command in commands.items()})
    with HttpMux(config) as mux:
        client = HttpClient(mux.url, MODERN)
        client.hello()
        tools: list[Json] = client.ask("tools/list")[-1]["result"]["tools"]
    missing = commands.keys() - {tool["name"].partition("__")[0] for tool in tools}
    assert not missing, f"no tools of {missing}"
    return tools


def own_tools() -> Iterator[Json]:
    """Return the tools of the servers in `tool_catalog.txt`."""
    lines = [line for line in OWN_SERVERS.read_text().splitlines() if line and not line.startswith("#")]
    server = thing = ""
    for mark, group in groupby(lines, lambda line: line[0]):
        if mark == "@":
            (server,) = group
        elif mark == "=":
            (thing,) = group
        else:
            yield from _tools_of(server, thing, [line.strip() for line in group])


def _tools_of(server: str, thing: str, lines: list[str]) -> Iterator[Json]:
    """Yield tools for one kind of thing: the plain verbs, then the further actions."""
    head, _, rest = server.removeprefix("@ ").partition(": ")
    place, _, common = rest.partition(" | ")
    prefix, style, wording = head.split(", ")
    nouns, what = thing.removeprefix("= ").split(": ")
    singular, plural = nouns.split(", ")
    article = "an" if singular[0] in "aeiou" and not singular.startswith("use") else "a"
    a_one = f"{article} {singular}"
    blanks = {
        "one": singular,
        "many": plural,
        "a_one": a_one,
        "A_one": a_one[0].upper() + a_one[1:],
        "what": what,
    }
    verbs, fields, *actions = lines
    id_field = f"{_key(singular)}_id: Id of the {singular}"
    filters = "; ".join(field for field in fields.split("; ") if "*" in field)

    def tool(action: str, description: str, params: list[str]) -> Json:
        words = re.split("[ -]", action.lower())
        shown = {"title": " ".join(words).title()} if wording == "formal" else {}
        name = f"{prefix}__{STYLES[style](words)}"
        return {"name": name, **shown, "description": description, "inputSchema": _schema([*params, common])}

    for verb in verbs.split():
        word, template = WORDINGS[wording][verb]
        params = {
            "list": [filters, PAGING],
            "search": ["query: What to look for", PAGING],
            "count": [filters],
            "export": [filters, "format: csv or json"],
            "create": [fields],
            "update": [id_field, fields],
        }.get(verb, [id_field])
        noun = plural if verb in PLURALS else singular
        yield tool(f"{word} {noun}", template.format(**blanks, place=place), params)
    for line in actions:
        action, _, rest = line.removeprefix("+ ").partition(": ")
        description, _, params_of_action = rest.partition(" | ")
        about_one = [] if line.startswith("+") else [id_field]
        yield tool(action, description, [*about_one, params_of_action])


def _schema(params: list[str]) -> Json:
    """Return the JSON Schema of parameters that are written as `name: description; name: description`."""
    fields = [field.split(": ", 1) for part in params if part for field in part.split("; ")]
    return {
        "type": "object",
        "properties": {
            name.strip("*"): {"type": _type_of(description), "description": description}
            for name, description in fields
        },
        "required": [name for name, _ in fields if name.endswith("_id")],
    }


def _type_of(description: str) -> str:
    if description.startswith("Whether"):
        return "boolean"
    return "integer" if description.startswith(("How many", "Most", "Seconds")) else "string"


def _key(noun: str) -> str:
    return re.sub("[ -]", "_", noun.lower())
