"""A server of notes: text resources in pages, a template with completion, a prompt, a tool that adds one.

Run by `python -m mcpmux.demo.notes`. Speaks every revision.
"""

from __future__ import annotations

import re

from mcpmux.demo.server import (
    DemoServer,
    Json,
    Report,
    describe,
    object_at,
    required_text,
    run_server,
    text_block,
    tool_failure,
    unknown,
)
from mcpmux.protocol import method as m

SCHEME = "note:///"
NOTE_LIMIT = 1000  # the notes are kept in memory
COMPLETION_LIMIT = 100  # values in one answer, by the specification
ABOUT = describe("notes")
EXPLAIN = ABOUT["prompts"][0]
_OF_NOTE = ABOUT["tools"][0]["inputSchema"]["properties"]
NAME = re.compile(_OF_NOTE["name"]["pattern"])
TEXT_LIMIT = _OF_NOTE["text"]["maxLength"]


class Notes:
    """All notes: text by name. `about` lists them, the oldest first."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._resources: dict[str, Json] = {}
        for name, text in ABOUT["notes"].items():
            self._keep(name, text)
        self.about = ABOUT | {"resources": self._resources.values()}

    def _keep(self, name: str, text: str) -> Json:
        self._texts[name] = text
        self._resources[name] = resource = {
            "uri": SCHEME + name,
            "name": name,
            "title": name.replace("-", " ").capitalize(),
            "description": "Start here" if name == "welcome" else f"What “{name}” means",
            "mimeType": "text/markdown",
            "size": len(text.encode()),
            "annotations": {"audience": ["user", "assistant"], "priority": 1 if name == "welcome" else 0.5},
        }
        return resource

    def read(self, uri: str) -> list[Json] | None:
        """Return the contents of a note, None when there is no such note."""
        text = self._texts.get(uri.removeprefix(SCHEME)) if uri.startswith(SCHEME) else None
        return None if text is None else [{"uri": uri, "mimeType": "text/markdown", "text": text}]

    async def add(self, arguments: Json, _report: Report) -> Json:
        name, text = arguments.get("name"), arguments.get("text")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            return tool_failure("`name` must be up to 64 of a-z, 0-9 and `-`, and not begin with `-`")
        if not isinstance(text, str) or len(text) > TEXT_LIMIT:
            return tool_failure(f"`text` must be text of at most {TEXT_LIMIT} characters")
        if name not in self._texts and len(self._texts) >= NOTE_LIMIT:
            return tool_failure(f"there are {NOTE_LIMIT} notes already; replace one")
        link = {"type": "resource_link", **self._keep(name, text)}
        return {"content": [text_block(f"Kept as {SCHEME}{name}"), link]}

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
    """Return the server over a fresh set of notes."""
    notes = Notes()
    answers = {m.PROMPTS_GET: notes.prompt, m.COMPLETE: notes.complete}
    return DemoServer("notes", notes.about, notes.read, {"add_note": notes.add}, answers)


if __name__ == "__main__":
    run_server(make_server())
