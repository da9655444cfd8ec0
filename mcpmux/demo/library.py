"""A server of a little book: an image, a read with several contents, resource links, a long-running tool.

Run by `python -m mcpmux.demo.library`. Speaks every revision.
"""

from __future__ import annotations

import base64

import trio

from mcpmux.demo.picture import draw_cover
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

COVER = "book:///cover"
EVERYTHING = "book:///all"
COVER_SIDE = 32  # pixels
STEPS = 20  # of the long-running tool
DEFAULT_SECONDS = 2.0  # long enough to watch the bar
MAX_SECONDS = 60.0

CHAPTERS = {
    "book:///chapter/1": (
        "The switchboard",
        "Every caller had to know every number. Then somebody put a desk in the middle, with one number.",
    ),
    "book:///chapter/2": (
        "The interpreter",
        "Half of the callers spoke as their parents had. The desk learned both ways, and nobody noticed.",
    ),
    "book:///chapter/3": (
        "The quiet line",
        "One day a line fell silent. The desk said so, kept the other lines open, and tried again.",
    ),
}

FIND = {
    "name": "find_chapters",
    "title": "Find chapters",
    "description": "Links to the chapters that contain a word.",
    "inputSchema": {
        "type": "object",
        "properties": {"word": {"type": "string", "description": "What to look for"}},
        "required": ["word"],
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}
BUILD_INDEX = {
    "name": "build_index",
    "title": "Build the index",
    "description": "Takes its time and reports how far it is; then lists the book's most frequent words.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "seconds": {"type": "number", "minimum": 0, "maximum": MAX_SECONDS, "default": DEFAULT_SECONDS}
        },
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}


def describe(uri: str) -> Json:
    """A chapter as a resource."""
    return {
        "uri": uri,
        "name": CHAPTERS[uri][0],
        "mimeType": "text/plain",
        "size": len(chapter_contents(uri)["text"].encode()),
        "annotations": {"audience": ["user"]},
    }


def list_resources() -> list[Json]:
    """`resources/list`."""
    whole = {"uri": EVERYTHING, "name": "The whole book", "description": "Chapters and cover in one read"}
    cover = {"uri": COVER, "name": "Cover", "mimeType": "image/png", "size": len(draw_cover(COVER_SIDE))}
    return [whole, cover, *(describe(uri) for uri in CHAPTERS)]


def cover_contents() -> Json:
    """The image, as read."""
    data = base64.b64encode(draw_cover(COVER_SIDE)).decode()
    return {"uri": COVER, "mimeType": "image/png", "blob": data}


def chapter_contents(uri: str) -> Json:
    """A chapter, as read."""
    title, text = CHAPTERS[uri]
    return {"uri": uri, "mimeType": "text/plain", "text": f"{title}\n\n{text}\n"}


async def read(params: Json, _report: Report) -> Json:
    """`resources/read`."""
    uri = required_text(params, "uri")
    if uri == COVER:
        return {"contents": [cover_contents()]}
    if uri == EVERYTHING:
        return {"contents": [*map(chapter_contents, CHAPTERS), cover_contents()]}
    if uri in CHAPTERS:
        return {"contents": [chapter_contents(uri)]}
    raise unknown("Resource", "uri", uri)


async def call(params: Json, report: Report) -> Json:
    """`tools/call`."""
    tool, arguments = required_text(params, "name"), object_at(params, "arguments")
    if tool == FIND["name"]:
        return find_chapters(arguments.get("word"))
    if tool == BUILD_INDEX["name"]:
        return await build_index(arguments.get("seconds", DEFAULT_SECONDS), report)
    raise unknown("Tool", "name", tool)


def find_chapters(word: object) -> Json:
    """Links to the chapters with `word` in them."""
    if not isinstance(word, str) or not word:
        return tool_failure("`word` must be text, for example `desk`")
    found = [uri for uri, texts in CHAPTERS.items() if word.lower() in " ".join(texts).lower()]
    links = [{"type": "resource_link", **describe(uri)} for uri in found]
    return {"content": [text_block(f"{len(found)} of {len(CHAPTERS)} chapters contain “{word}”"), *links]}


async def build_index(seconds: object, report: Report) -> Json:
    """The most frequent words, after `seconds`."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_SECONDS:
        return tool_failure(f"`seconds` must be a number from 0 to {MAX_SECONDS:g}")
    for step in range(1, STEPS + 1):
        await trio.sleep(seconds / STEPS)
        await report(step, STEPS, f"page {step} of {STEPS}")
    counts = count_words()
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:5]
    return {"content": [text_block("\n".join(f"{counts[word]} × {word}" for word in frequent))]}


def count_words() -> dict[str, int]:
    """How often each word of the chapters occurs."""
    counts: dict[str, int] = {}
    for _, text in CHAPTERS.values():
        for word in text.lower().replace(",", "").replace(".", "").split():
            counts[word] = counts.get(word, 0) + 1
    return counts


def make_server() -> DemoServer:
    """The server; it keeps nothing between requests."""
    return DemoServer(
        "library",
        "A book of three chapters with a cover.",
        lists={m.RESOURCES_LIST: list_resources, m.TOOLS_LIST: lambda: [FIND, BUILD_INDEX]},
        answers={m.RESOURCES_READ: read, m.TOOLS_CALL: call},
    )


if __name__ == "__main__":
    run_server(make_server())
