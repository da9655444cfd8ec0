"""A server of a little book: an image, a read of several contents, resource links, a slow tool.

Run by `python -m mcpmux.demo.library`. Speaks every revision.
"""

from __future__ import annotations

import base64
from collections import Counter

import trio

from mcpmux.demo.server import (
    DemoServer,
    Json,
    Report,
    Tool,
    listed_tool,
    run_server,
    text_block,
    tool_failure,
)

COVER = "book:///cover"
EVERYTHING = "book:///all"
COVER_PNG = (  # 32 by 32 pixels, from red on the left to blue at the bottom
    "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAfklEQVR42rXNkRaDUAAA0PdoGIbDYThcFobhMAzDYTgcDsNwOAyH"
    "YRgOW9S+4p5z/cY9D1sIPybu+UEHiQ5SHRx1cNJBpoOzDi46KHRQ6qDSwVUHtQ4aHbQ6uOmg08FdBw8dPHXQ62DQwUsHbx2MOvjo"
    "YNLBrINFB18drDT4A/9y+K82rnweAAAAAElFTkSuQmCC"
)
STEPS = 20  # of the long-running tool
DEFAULT_SECONDS = 2.0  # long enough to watch the bar
MAX_SECONDS = 60.0
_NO_PUNCTUATION = str.maketrans("", "", ",.")

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

FIND = listed_tool(
    "find_chapters",
    "Find chapters",
    "Links to the chapters that contain a word.",
    {"properties": {"word": {"type": "string", "description": "What to look for"}}, "required": ["word"]},
    readOnlyHint=True,
)
BUILD_INDEX = listed_tool(
    "build_index",
    "Build the index",
    "Takes its time and reports how far it is; then lists the book's most frequent words.",
    {
        "properties": {
            "seconds": {"type": "number", "minimum": 0, "maximum": MAX_SECONDS, "default": DEFAULT_SECONDS}
        }
    },
    readOnlyHint=True,
)


def describe(uri: str) -> Json:
    return {
        "uri": uri,
        "name": CHAPTERS[uri][0],
        "mimeType": "text/plain",
        "size": len(chapter_contents(uri)["text"].encode()),
        "annotations": {"audience": ["user"]},
    }


def list_resources() -> list[Json]:
    whole = {"uri": EVERYTHING, "name": "The whole book", "description": "Chapters and cover in one read"}
    cover = {"uri": COVER, "name": "Cover", "mimeType": "image/png", "size": len(base64.b64decode(COVER_PNG))}
    return [whole, cover, *(describe(uri) for uri in CHAPTERS)]


def chapter_contents(uri: str) -> Json:
    title, text = CHAPTERS[uri]
    return {"uri": uri, "mimeType": "text/plain", "text": f"{title}\n\n{text}\n"}


def read(uri: str) -> list[Json] | None:
    cover = {"uri": COVER, "mimeType": "image/png", "blob": COVER_PNG}
    if uri == COVER:
        return [cover]
    if uri == EVERYTHING:
        return [*map(chapter_contents, CHAPTERS), cover]
    return [chapter_contents(uri)] if uri in CHAPTERS else None


async def find_chapters(arguments: Json, _report: Report) -> Json:
    """Links to the chapters with a word in them."""
    word = arguments.get("word")
    if not isinstance(word, str) or not word:
        return tool_failure("`word` must be text, for example `desk`")
    found = [uri for uri, texts in CHAPTERS.items() if word.lower() in " ".join(texts).lower()]
    links = [{"type": "resource_link", **describe(uri)} for uri in found]
    return {"content": [text_block(f"{len(found)} of {len(CHAPTERS)} chapters contain “{word}”"), *links]}


async def build_index(arguments: Json, report: Report) -> Json:
    """The most frequent words, after some seconds."""
    seconds = arguments.get("seconds", DEFAULT_SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_SECONDS:
        return tool_failure(f"`seconds` must be a number from 0 to {MAX_SECONDS:g}")
    for step in range(1, STEPS + 1):
        await trio.sleep(seconds / STEPS)
        await report(step, STEPS, f"page {step} of {STEPS}")
    words = Counter(
        " ".join(text for _, text in CHAPTERS.values()).lower().translate(_NO_PUNCTUATION).split()
    )
    frequent = sorted(words, key=lambda word: (-words[word], word))[:5]
    return {"content": [text_block("\n".join(f"{words[word]} × {word}" for word in frequent))]}


def make_server() -> DemoServer:
    """The server; it keeps nothing between requests."""
    return DemoServer(
        "library",
        "A book of three chapters with a cover.",
        list_resources,
        read,
        [Tool(FIND, find_chapters), Tool(BUILD_INDEX, build_index)],
    )


if __name__ == "__main__":
    run_server(make_server())
