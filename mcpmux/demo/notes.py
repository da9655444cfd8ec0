"""A server of notes: text resources in pages, a template with completion, a prompt, a tool that adds one.

Run by `python -m mcpmux.demo.notes`. Speaks every revision.
"""

from __future__ import annotations

import re

from mcpmux.demo.server import (
    DemoServer,
    Json,
    Report,
    Tool,
    listed_tool,
    object_at,
    required_text,
    run_server,
    text_block,
    tool_failure,
    unknown,
)
from mcpmux.protocol import method as m

SCHEME = "note:///"
PAGE_SIZE = 10  # small, so that there are pages to walk through
NOTE_LIMIT = 1000  # the notes are kept in memory
TEXT_LIMIT = 10_000  # characters of one note
COMPLETION_LIMIT = 100  # values in one answer, by the specification
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")

TEMPLATE = {
    "uriTemplate": SCHEME + "{name}",
    "name": "note",
    "title": "A note by its name",
    "mimeType": "text/markdown",
}
ADD_NOTE = listed_tool(
    "add_note",
    "Add a note",
    "Keep a note until the server stops; a note of that name is replaced.",
    {
        "properties": {
            "name": {"type": "string", "pattern": f"^{NAME.pattern}$"},
            "text": {"type": "string", "maxLength": TEXT_LIMIT},
        },
        "required": ["name", "text"],
    },
    destructiveHint=True,
    idempotentHint=True,
)
EXPLAIN = {
    "name": "explain",
    "title": "Explain a note",
    "description": "Asks the model to explain one note.",
    "arguments": [{"name": "name", "description": "Which note", "required": True}],
}

# The texts: the words of MCP and of mcpmux, one note each.

WELCOME = """\
# Welcome

You are reading this through mcpmux: it started this server, found out which revision of the Model
Context Protocol it speaks, and put `notes+` in front of its URIs, so that many servers fit behind one
endpoint.

The other notes explain the words that are used here, one each. A few things to try:

* list everything that the three servers of the demo have
* read `library+book:///all`: four contents from one read, the last of them an image
* call `clock__now`: that server knows only an older revision, and you need not notice
* call `library__build_index`: it reports its progress
* call `notes__add_note`, then list again
"""

GLOSSARY = {
    "annotation": "A hint on a resource or a content block: for whom it is, how important, how fresh.",
    "capability": "What a server or a client says it can do. What is not declared must not be used.",
    "client": "The part of a host app that talks to one server.",
    "completion": "Suggestions for the value of an argument while it is being typed.",
    "content-block": "A piece of a tool's result or of a prompt: text, image, audio, or a resource.",
    "cursor": "An opaque text that asks for the next page of a list. Only the server understands it.",
    "discover": "The modern way to learn what a server speaks and offers: one request, no session.",
    "downstream": "Towards the clients: a host app that connects to mcpmux.",
    "elicitation": "A server asks the user, through the client, for something that it needs.",
    "era": "Modern is 2026-07-28, stateless; legacy is every revision before it, with sessions.",
    "host": "The application that the user sees, with a model inside and clients for its servers.",
    "initialize": "The legacy handshake: both sides agree on a revision, and a session begins.",
    "listen": "A request that stays open and brings the notifications that it asked for.",
    "multi-round-trip": "A result may be a question; the client answers it and sends the request again.",
    "multiplexer": "Many servers behind one endpoint, each reachable under its own prefix.",
    "notification": "A message that expects no answer.",
    "page": "A part of a list, with the cursor of the next part.",
    "prefix": "`name+` before a URI, `name__` before a tool: it says which server is meant.",
    "progress": "How far a long request has come, told while it runs to whoever gave a token.",
    "prompt": "A template of messages that the user picks, filled in by the server.",
    "resource": "Something that can be read, named by a URI.",
    "revision": "A dated version of the protocol; mcpmux knows five.",
    "roots": "The places in the file system that a client lets a server work in.",
    "sampling": "A server asks, through the client, for the words of a model.",
    "session": "What a legacy client and server share from `initialize` on.",
    "stdio": "A transport: one JSON message a line on the standard input and output of a process.",
    "structured-content": "The result of a tool as JSON that follows the schema the tool declared.",
    "tool": "A function that the model may call.",
    "upstream": "Towards the servers: an MCP server that mcpmux connects to.",
}


class Notes:
    """All notes: text by name."""

    def __init__(self) -> None:
        self._texts = {"welcome": WELCOME, **GLOSSARY}

    def resources(self) -> list[Json]:
        """Every note as a resource, the oldest first."""
        return [self._describe(name) for name in self._texts]

    def _describe(self, name: str) -> Json:
        text = self._texts[name]
        return {
            "uri": SCHEME + name,
            "name": name,
            "title": name.replace("-", " ").capitalize(),
            "description": "Start here" if name == "welcome" else f"What “{name}” means",
            "mimeType": "text/markdown",
            "size": len(text.encode()),
            "annotations": {"audience": ["user", "assistant"], "priority": 1 if name == "welcome" else 0.5},
        }

    def read(self, uri: str) -> list[Json] | None:
        """The contents of a note, None when there is no such note."""
        text = self._texts.get(uri.removeprefix(SCHEME)) if uri.startswith(SCHEME) else None
        return None if text is None else [{"uri": uri, "mimeType": "text/markdown", "text": text}]

    async def add(self, arguments: Json, _report: Report) -> Json:
        name, text = arguments.get("name"), arguments.get("text")
        problem = self._problem(name, text)
        if problem is not None:
            return tool_failure(problem)
        self._texts[str(name)] = str(text)
        link = {"type": "resource_link", **self._describe(str(name))}
        return {"content": [text_block(f"Kept as {SCHEME}{name}"), link]}

    def _problem(self, name: object, text: object) -> str | None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            return "`name` must be up to 64 of a-z, 0-9 and `-`, and not begin with `-`"
        if not isinstance(text, str) or len(text) > TEXT_LIMIT:
            return f"`text` must be text of at most {TEXT_LIMIT} characters"
        if name not in self._texts and len(self._texts) >= NOTE_LIMIT:
            return f"there are {NOTE_LIMIT} notes already; replace one"
        return None

    async def prompt(self, params: Json, _report: Report) -> Json:
        prompt = required_text(params, "name")
        if prompt != EXPLAIN["name"]:
            raise unknown("Prompt", "name", prompt)
        uri = SCHEME + required_text(object_at(params, "arguments"), "name")
        contents = self.read(uri)
        if contents is None:
            raise unknown("Resource", "uri", uri)
        question = text_block("Explain this note to somebody who is new to the Model Context Protocol.")
        note = {"type": "resource", "resource": contents[0]}
        messages = [{"role": "user", "content": content} for content in (question, note)]
        return {"description": EXPLAIN["description"], "messages": messages}

    async def complete(self, params: Json, _report: Report) -> Json:
        """`completion/complete`: the template's and the prompt's only argument is the name of a note."""
        start = required_text(object_at(params, "argument"), "value")
        names = sorted(name for name in self._texts if name.startswith(start))
        more = len(names) > COMPLETION_LIMIT
        return {"completion": {"values": names[:COMPLETION_LIMIT], "total": len(names), "hasMore": more}}


def make_server() -> DemoServer:
    """The server over a fresh set of notes."""
    notes = Notes()
    return DemoServer(
        "notes",
        "Notes explain the words of the Model Context Protocol. Begin with note:///welcome.",
        notes.resources,
        notes.read,
        [Tool(ADD_NOTE, notes.add)],
        lists={m.TEMPLATES_LIST: lambda: [TEMPLATE], m.PROMPTS_LIST: lambda: [EXPLAIN]},
        answers={m.PROMPTS_GET: notes.prompt, m.COMPLETE: notes.complete},
        page_size=PAGE_SIZE,
    )


if __name__ == "__main__":
    run_server(make_server())
