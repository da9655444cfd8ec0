"""A server of a little book: an image, a read of several contents, resource links, a slow tool.

Run by `python -m mcpmux.demo.library`. Speaks every revision.
"""

from __future__ import annotations

from collections import Counter

import trio

from mcpmux.demo.server import DemoServer, Json, Report, describe, run_server, text_block, tool_failure

BOOK = describe("library")
RESOURCES = {resource["uri"]: resource for resource in BOOK["resources"]}
CHAPTERS = {uri: f"{RESOURCES[uri]['name']}\n\n{text}\n" for uri, text in BOOK["chapters"].items()}
COVER = {"uri": "book:///cover", "mimeType": "image/png", "blob": BOOK["cover"]["png"]}
SECONDS = BOOK["tools"][1]["inputSchema"]["properties"]["seconds"]  # the default is enough to watch the bar
STEPS = 20  # of the long-running tool
_NO_PUNCTUATION = str.maketrans("", "", ",.")


def read(uri: str) -> list[Json] | None:
    chapters = [{"uri": uri, "mimeType": "text/plain", "text": text} for uri, text in CHAPTERS.items()]
    return [part for part in (*chapters, COVER) if uri in (part["uri"], "book:///all")] or None


async def find_chapters(arguments: Json, _report: Report) -> Json:
    """Return links to the chapters with a word in them."""
    word = arguments.get("word")
    if not isinstance(word, str) or not word:
        return tool_failure("`word` must be text, for example `desk`")
    uris = [uri for uri, text in CHAPTERS.items() if word.lower() in text.lower()]
    links = [{"type": "resource_link", **RESOURCES[uri]} for uri in uris]
    return {"content": [text_block(f"{len(uris)} of {len(CHAPTERS)} chapters contain “{word}”"), *links]}


async def build_index(arguments: Json, report: Report) -> Json:
    """Return the most frequent words, after some seconds."""
    seconds, most = arguments.get("seconds", SECONDS["default"]), SECONDS["maximum"]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= most:
        return tool_failure(f"`seconds` must be a number from 0 to {most:g}")
    for step in range(1, STEPS + 1):
        await trio.sleep(seconds / STEPS)
        await report(step, STEPS, f"page {step} of {STEPS}")
    texts = " ".join(BOOK["chapters"].values()).lower()
    words = Counter(texts.translate(_NO_PUNCTUATION).split())
    frequent = sorted(words, key=lambda word: (-words[word], word))[:5]
    return {"content": [text_block("\n".join(f"{words[word]} × {word}" for word in frequent))]}


def make_server() -> DemoServer:
    """Return the server; it has no state between requests."""
    return DemoServer("library", BOOK, read, {"find_chapters": find_chapters, "build_index": build_index})


if __name__ == "__main__":
    run_server(make_server())
