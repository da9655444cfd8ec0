"""A server of notes: text resources in pages, a template with completion, a prompt, a tool that adds one.

Run by `python -m mcpmux.demo.notes`. Speaks every revision.
"""

from __future__ import annotations

import re

from mcpmux.demo.glossary import GLOSSARY, WELCOME
from mcpmux.demo.server import (
    DemoServer,
    Json,
    Report,
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
ADD_NOTE = {
    "name": "add_note",
    "title": "Add a note",
    "description": "Keep a note until the server stops; a note of that name is replaced.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": f"^{NAME.pattern}$"},
            "text": {"type": "string", "maxLength": TEXT_LIMIT},
        },
        "required": ["name", "text"],
    },
    "annotations": {"destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
}
EXPLAIN = {
    "name": "explain",
    "title": "Explain a note",
    "description": "Asks the model to explain one note.",
    "arguments": [{"name": "name", "description": "Which note", "required": True}],
}


class Notes:
    """All notes: text by name."""

    def __init__(self) -> None:
        self._texts = {"welcome": WELCOME, **GLOSSARY}

    def __repr__(self) -> str:
        return f"<Notes {len(self._texts)}>"

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

    def _contents(self, uri: str) -> Json:
        name = uri.removeprefix(SCHEME)
        if not uri.startswith(SCHEME) or name not in self._texts:
            raise unknown("Resource", "uri", uri)
        return {"uri": uri, "mimeType": "text/markdown", "text": self._texts[name]}

    async def read(self, params: Json, _report: Report) -> Json:
        """`resources/read`."""
        return {"contents": [self._contents(required_text(params, "uri"))]}

    async def call(self, params: Json, _report: Report) -> Json:
        """`tools/call`."""
        tool, arguments = required_text(params, "name"), object_at(params, "arguments")
        if tool != ADD_NOTE["name"]:
            raise unknown("Tool", "name", tool)
        name, text = arguments.get("name"), arguments.get("text")
        problem = self._problem(name, text)
        if problem is not None:
            return tool_failure(problem)
        self._texts[str(name)] = str(text)
        link = {"type": "resource_link", **self._describe(str(name))}
        return {"content": [text_block(f"Kept as {SCHEME}{name}"), link]}

    def _problem(self, name: object, text: object) -> str | None:
        """Why a note cannot be kept."""
        if not isinstance(name, str) or not NAME.fullmatch(name):
            return "`name` must be up to 64 of a-z, 0-9 and `-`, and not begin with `-`"
        if not isinstance(text, str) or len(text) > TEXT_LIMIT:
            return f"`text` must be text of at most {TEXT_LIMIT} characters"
        if name not in self._texts and len(self._texts) >= NOTE_LIMIT:
            return f"there are {NOTE_LIMIT} notes already; replace one"
        return None

    async def prompt(self, params: Json, _report: Report) -> Json:
        """`prompts/get`."""
        prompt = required_text(params, "name")
        if prompt != EXPLAIN["name"]:
            raise unknown("Prompt", "name", prompt)
        contents = self._contents(SCHEME + required_text(object_at(params, "arguments"), "name"))
        question = text_block("Explain this note to somebody who is new to the Model Context Protocol.")
        note = {"type": "resource", "resource": contents}
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
        lists={
            m.RESOURCES_LIST: notes.resources,
            m.TEMPLATES_LIST: lambda: [TEMPLATE],
            m.TOOLS_LIST: lambda: [ADD_NOTE],
            m.PROMPTS_LIST: lambda: [EXPLAIN],
        },
        answers={
            m.RESOURCES_READ: notes.read,
            m.TOOLS_CALL: notes.call,
            m.PROMPTS_GET: notes.prompt,
            m.COMPLETE: notes.complete,
        },
        page_size=PAGE_SIZE,
    )


if __name__ == "__main__":
    run_server(make_server())
