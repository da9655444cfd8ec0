"""The bundled servers on `DemoServer`, over memory pipes; the client checks all it gets by the schema."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from mcpmux.demo import library, notes
from mcpmux.demo.server import DemoServer
from mcpmux.protocol.revisions import LEGACY, V_2025_06_18, V_2026_07_28
from tests.peers.client import ScriptedClient
from tests.peers.pipe import open_memory_pipes

ALL = (V_2026_07_28, *LEGACY)
WITH_LINKS = [revision for revision in ALL if revision >= V_2025_06_18]

LISTS = {
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "tools/list": "tools",
    "prompts/list": "prompts",
}


@asynccontextmanager
async def open_client(server: DemoServer, revision: str) -> AsyncIterator[ScriptedClient]:
    ours, theirs = open_memory_pipes()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, theirs)
            client = ScriptedClient(ours)
            if revision != V_2026_07_28:
                assert (await client.initialize(revision))["protocolVersion"] == revision
            yield client
            await ours.aclose()


@pytest.mark.parametrize("revision", ALL)
async def test_every_offered_list_is_walked_to_its_end(revision: str) -> None:
    async with open_client(notes.make_server(), revision) as client:
        lists = {method: await client.walk(method, key) for method, key in LISTS.items()}
    assert {method: len(items) for method, items in lists.items()} == {
        "resources/list": 30,
        "resources/templates/list": 1,
        "tools/list": 1,
        "prompts/list": 1,
    }


@pytest.mark.parametrize("revision", ALL)
async def test_every_listed_resource_can_be_read_and_has_the_size_it_says(revision: str) -> None:
    for server in (notes.make_server(), library.make_server()):
        async with open_client(server, revision) as client:
            for item in await client.walk("resources/list", "resources"):
                contents = (await client.request("resources/read", {"uri": item["uri"]}))["contents"]
                if "size" in item and "text" in contents[0]:
                    assert len(contents[0]["text"].encode()) == item["size"], item["uri"]


async def test_discover_offers_what_the_server_has() -> None:
    async with open_client(notes.make_server(), V_2026_07_28) as client:
        result = await client.request("server/discover")
    assert set(result["capabilities"]) == {"completions", "prompts", "resources", "tools"}
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "mcpmux-demo-notes"


async def test_list_comes_in_pages_of_ten() -> None:
    async with open_client(notes.make_server(), V_2026_07_28) as client:
        page = await client.request("resources/list")
    assert len(page["resources"]) == 10
    assert "nextCursor" in page


@pytest.mark.parametrize("cursor", ["", "x", "-1", "9" * 5000, 7])
async def test_damaged_cursor_is_refused(cursor: object) -> None:
    async with open_client(notes.make_server(), V_2026_07_28) as client:
        error = await client.refusal("resources/list", {"cursor": cursor})
    assert error["code"] == -32602


@pytest.mark.parametrize(("revision", "code"), [(V_2026_07_28, -32602), (LEGACY[-1], -32002)])
async def test_missing_resource_is_refused_in_the_words_of_the_era(revision: str, code: int) -> None:
    for server in (notes.make_server(), library.make_server()):
        async with open_client(server, revision) as client:
            error = await client.refusal("resources/read", {"uri": "note:///none"})
        assert error["code"] == code
        assert error["data"] == {"uri": "note:///none"}


@pytest.mark.parametrize("revision", WITH_LINKS)
async def test_added_note_is_linked_listed_and_readable(revision: str) -> None:
    async with open_client(notes.make_server(), revision) as client:
        added = await client.request(
            "tools/call", {"name": "add_note", "arguments": {"name": "mine", "text": "hello"}}
        )
        link = added["content"][1]
        assert link["type"] == "resource_link"
        listed = await client.walk("resources/list", "resources")
        assert listed[-1]["uri"] == link["uri"] == "note:///mine"
        read = await client.request("resources/read", {"uri": link["uri"]})
    assert read["contents"][0]["text"] == "hello"


@pytest.mark.parametrize(
    "arguments",
    [{}, {"name": "A b", "text": "x"}, {"name": "x", "text": 1}, {"name": "x", "text": "y" * 10_001}],
)
async def test_note_that_cannot_be_kept_is_a_tool_error_for_the_model(arguments: object) -> None:
    async with open_client(notes.make_server(), V_2026_07_28) as client:
        result = await client.request("tools/call", {"name": "add_note", "arguments": arguments})
    assert result["isError"] is True


async def test_notes_are_bounded() -> None:
    async with open_client(notes.make_server(), V_2026_07_28) as client:
        for number in range(notes.NOTE_LIMIT + 1):
            params = {"name": "add_note", "arguments": {"name": f"n{number}", "text": ""}}
            result = await client.request("tools/call", params)
            if result.get("isError"):
                break
        else:
            pytest.fail("never refused")
    assert "replace one" in result["content"][0]["text"]


async def test_template_and_prompt_complete_names_of_notes() -> None:
    async with open_client(notes.make_server(), V_2026_07_28) as client:
        for ref in (
            {"type": "ref/resource", "uri": "note:///{name}"},
            {"type": "ref/prompt", "name": "explain"},
        ):
            params = {"ref": ref, "argument": {"name": "name", "value": "pro"}}
            result = await client.request("completion/complete", params)
            assert result["completion"] == {"values": ["progress", "prompt"], "total": 2, "hasMore": False}


@pytest.mark.parametrize("revision", ALL)
async def test_prompt_embeds_the_note(revision: str) -> None:
    async with open_client(notes.make_server(), revision) as client:
        params = {"name": "explain", "arguments": {"name": "tool"}}
        result = await client.request("prompts/get", params)
    assert result["messages"][1]["content"]["resource"]["uri"] == "note:///tool"


@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
async def test_unknown_tool_or_prompt_is_refused(method: str) -> None:
    async with open_client(notes.make_server(), V_2026_07_28) as client:
        for params in ({"name": "nix"}, {}, {"name": "add_note", "arguments": []}):
            assert (await client.refusal(method, params))["code"] == -32602


async def test_method_that_is_not_offered_is_refused() -> None:
    async with open_client(library.make_server(), V_2026_07_28) as client:
        error = await client.refusal("prompts/list")
    assert error["code"] == -32601


async def test_cover_is_a_png_file() -> None:
    async with open_client(library.make_server(), V_2026_07_28) as client:
        result = await client.request("resources/read", {"uri": "book:///cover"})
    data = base64.b64decode(result["contents"][0]["blob"])
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data[16:24] == bytes([0, 0, 0, 32]) * 2  # width and height in the header


async def test_whole_book_comes_as_several_contents_with_uris_of_their_own() -> None:
    async with open_client(library.make_server(), V_2026_07_28) as client:
        contents = (await client.request("resources/read", {"uri": "book:///all"}))["contents"]
    assert len({content["uri"] for content in contents}) == len(contents) == 4
    assert "blob" in contents[-1]


@pytest.mark.parametrize("revision", WITH_LINKS)
async def test_found_chapters_are_links_that_can_be_read(revision: str) -> None:
    async with open_client(library.make_server(), revision) as client:
        params = {"name": "find_chapters", "arguments": {"word": "Interpreter"}}
        result = await client.request("tools/call", params)
        links = [block for block in result["content"] if block["type"] == "resource_link"]
        assert [link["uri"] for link in links] == ["book:///chapter/2"]
        await client.request("resources/read", {"uri": links[0]["uri"]})


@pytest.mark.parametrize("revision", ALL)
async def test_long_running_tool_reports_progress_to_whoever_asks(revision: str) -> None:
    async with open_client(library.make_server(), revision) as client:
        params = {"name": "build_index", "arguments": {"seconds": 0}}
        request = await client.start("tools/call", params, progressToken=0)
        steps = [await client.receive() for _ in range(library.STEPS)]
        answer = await client.receive()
    assert {step["params"]["progressToken"] for step in steps} == {0}
    assert [step["params"]["progress"] for step in steps] == list(range(1, library.STEPS + 1))
    assert answer["id"] == request
    assert "desk" in answer["result"]["content"][0]["text"]


async def test_without_a_token_there_is_no_progress() -> None:
    async with open_client(library.make_server(), V_2026_07_28) as client:
        result = await client.request("tools/call", {"name": "build_index", "arguments": {"seconds": 0}})
    assert "isError" not in result


@pytest.mark.parametrize("seconds", [-1, 61, "2", True, None])
async def test_index_refuses_to_work_for_nonsense_seconds(seconds: object) -> None:
    async with open_client(library.make_server(), V_2026_07_28) as client:
        params = {"name": "build_index", "arguments": {"seconds": seconds}}
        result = await client.request("tools/call", params)
    assert result["isError"] is True
