"""The official example messages of 2026-07-28: through the envelope, down to every older revision, and back.

They are not part of this project; see tests/official_schema.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import MODERN_KEYS, Call, modern_meta, upgrade_result, with_meta
from mcpmux.protocol.envelope import (
    ErrorReply,
    Message,
    Notification,
    Reply,
    Request,
    decode_any,
    decode_fields,
    decode_message,
    encode_error,
    encode_notification,
    encode_reply,
    encode_request,
    raw,
)
from mcpmux.protocol.era import (
    downgrade_answer,
    downgrade_content,
    downgrade_error,
    downgrade_meta,
    downgrade_question,
    downgrade_result,
    upgrade_answer,
    upgrade_call,
    upgrade_error,
)
from mcpmux.protocol.handshake import ClientFacts
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import LEGACY, NEWEST, V_2025_06_18, V_2025_11_25
from tests.official_schema import find_schemas
from tests.oracle import SchemaOracle, schemas_available

pytestmark = pytest.mark.skipif(not schemas_available(), reason="the official examples are not here")

DIRECTORY = (find_schemas() or Path("nowhere")) / NEWEST / "examples"

RESULTS = {
    "CallToolResult": m.TOOLS_CALL,
    "CompleteResult": m.COMPLETE,
    "GetPromptResult": m.PROMPTS_GET,
    "ListPromptsResult": m.PROMPTS_LIST,
    "ListResourceTemplatesResult": m.TEMPLATES_LIST,
    "ListResourcesResult": m.RESOURCES_LIST,
    "ListToolsResult": m.TOOLS_LIST,
    "ReadResourceResult": m.RESOURCES_READ,
}
"""The server's results that older revisions have, too."""

ANSWERS = {"CreateMessageResult": m.CREATE_MESSAGE, "ElicitResult": m.ELICIT, "ListRootsResult": m.ROOTS_LIST}
QUESTIONS = {
    "CreateMessageRequestParams": m.CREATE_MESSAGE,
    "ElicitRequestFormParams": m.ELICIT,
    "ElicitRequestURLParams": m.ELICIT,
}
BLOCKS = ("TextContent", "ImageContent", "AudioContent", "ResourceLink", "EmbeddedResource")
FIELDS = (
    "StringSchema",
    "NumberSchema",
    "BooleanSchema",
    "TitledMultiSelectEnumSchema",
    "TitledSingleSelectEnumSchema",
    "UntitledMultiSelectEnumSchema",
    "UntitledSingleSelectEnumSchema",
)
REQUESTS = (
    "CallTool",
    "Complete",
    "GetPrompt",
    "ListPrompts",
    "ListResourceTemplates",
    "ListResources",
    "ListTools",
    "ReadResource",
)
NOTIFICATIONS = (
    "Cancelled",
    "LoggingMessage",
    "Progress",
    "PromptListChanged",
    "ResourceListChanged",
    "ResourceUpdated",
    "ToolListChanged",
)
CLIENT = ClientFacts(raw({"name": "c", "version": "1"}), raw({}))
OF_2026 = {"resultType", "ttlMs", "cacheScope"}


def named(*names: str) -> list[Path]:
    """Return the examples of these definitions, of each at least one."""
    paths = [sorted((DIRECTORY / name).glob("*.json")) for name in names]
    assert all(paths), names
    return list(chain.from_iterable(paths))


def all_results() -> list[Path]:
    """Return the examples of results that older revisions have, alone and in a response."""
    return named(*RESULTS, *(f"{name}Response" for name in RESULTS))


def case(subtests: pytest.Subtests, path: Path, revision: str = NEWEST) -> AbstractContextManager[None]:
    """Open a subtest with the names of the example and the revision."""
    return subtests.test(f"{path.parent.name}-{path.stem}-{revision}")


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def wire(message: Message) -> bytes:
    """Return a decoded message, encoded as we send it."""
    match message:
        case Request(id=request_id, method=method, params=params):
            return encode_request(request_id, method, None if params is None else decode_fields(params))
        case Notification(method=method, params=params):
            return encode_notification(method, None if params is None else decode_fields(params))
        case Reply(id=request_id, result=result):
            return encode_reply(request_id, decode_fields(result))
        case ErrorReply():
            return encode_error(message.id, message.as_error())


def is_message(path: Path) -> bool:
    return "jsonrpc" in read(path)


WHOLE = [path for path in sorted(DIRECTORY.glob("*/*.json")) if is_message(path)]


def test_a_whole_message_comes_out_of_the_envelope_as_it_went_in(subtests: pytest.Subtests):
    for path in WHOLE:
        with case(subtests, path):
            data = path.read_bytes()
            message = decode_message(data)
            assert json.loads(wire(message)) == json.loads(data)
            payload = getattr(message, "params", None) or getattr(message, "result", None)
            assert payload is None or bytes(payload) in data  # not a byte of it was changed


def test_every_payload_keeps_its_members_as_they_are_spelled(subtests: pytest.Subtests):
    for path in named(*(path.name for path in sorted(DIRECTORY.glob("*")))):
        with case(subtests, path):
            fields = decode_fields(path.read_bytes())
            assert all(bytes(value) in path.read_bytes() for value in fields.values())
            assert decode_any(raw(fields)) == read(path)


# Results of servers


def result_of(path: Path) -> tuple[str, Fields]:
    """Return the method of the request, and the result in an example."""
    name = path.parent.name.removesuffix("Response")
    content = read(path)
    result = content["result"] if path.parent.name.endswith("Response") else content
    return RESULTS[name], decode_fields(raw(result))


def downgraded(method: str, result: Fields, revision: str) -> Fields:
    return downgrade_content(method, downgrade_result(dict(result)), revision)


def judge(revision: str, method: str, result: Fields) -> Any:
    """Check the result by the schema of the revision, and return it as JSON."""
    decoded = decode_any(raw(result))
    SchemaOracle(revision).check_from_server({"jsonrpc": "2.0", "id": 1, "result": decoded}, method)
    return decoded


def test_a_result_is_good_in_every_older_revision(subtests: pytest.Subtests):
    for path, revision in product(all_results(), LEGACY):
        with case(subtests, path, revision):
            method, result = result_of(path)
            down = judge(revision, method, downgraded(method, result, revision))
            assert not OF_2026 & down.keys()
            assert "io.modelcontextprotocol/" not in json.dumps(down)


def test_a_result_comes_back_from_2025_11_25_as_it_was(subtests: pytest.Subtests):
    """All but how long it stays fresh, and the server's name, which older results do not say."""
    for path in all_results():
        with case(subtests, path):
            method, result = result_of(path)
            back = judge(NEWEST, method, upgrade_result(method, downgraded(method, result, V_2025_11_25)))
            original = decode_any(raw(result))
            for key in ("ttlMs", "cacheScope", "_meta"):
                original.pop(key, None)
                back.pop(key, None)
            if not isinstance(original.get("structuredContent", {}), dict):
                del original["structuredContent"]  # an object only, in the older revision
            assert back == original


def test_a_block_of_content_is_good_in_every_older_revision(subtests: pytest.Subtests):
    for path, revision in product(named(*BLOCKS), LEGACY):
        with case(subtests, path, revision):
            block = read(path)
            for method, result in (
                (m.TOOLS_CALL, {"content": [block]}),
                (m.PROMPTS_GET, {"messages": [{"role": "user", "content": block}]}),
            ):
                down = judge(revision, method, downgraded(method, decode_fields(raw(result)), revision))
                if revision >= V_2025_06_18:
                    assert down == result


def test_an_item_of_a_list_is_good_in_every_older_revision(subtests: pytest.Subtests):
    for path, revision in product(
        named("Tool", "Resource", "TextResourceContents", "BlobResourceContents"), LEGACY
    ):
        with case(subtests, path, revision):
            item = read(path)
            kind = path.parent.name
            method, key = {"Tool": (m.TOOLS_LIST, "tools"), "Resource": (m.RESOURCES_LIST, "resources")}.get(
                kind, (m.RESOURCES_READ, "contents")
            )
            judge(revision, method, downgraded(method, decode_fields(raw({key: [item]})), revision))


# Requests of clients


def test_a_request_is_good_in_every_older_revision(subtests: pytest.Subtests):
    for path, revision in product(named(*(f"{name}Request" for name in REQUESTS)), LEGACY):
        with case(subtests, path, revision):
            message = decode_message(path.read_bytes())
            assert isinstance(message, Request)
            call = Call.of(message.method, message.params)
            params = with_meta(call.params, downgrade_meta(call))
            request: dict[str, Any] = {"jsonrpc": "2.0", "id": message.id, "method": message.method}
            request |= {"params": params} if params else {}
            older = decode_any(raw(request))
            SchemaOracle(revision).check_from_client(older)
            again = upgrade_call(Call.of(message.method, raw(params)), CLIENT)
            assert again.params == call.params
            assert {
                key: value for key, value in again.meta.items() if key not in MODERN_KEYS
            } == downgrade_meta(call)
            back = {**older, "params": with_meta(again.params, modern_meta(again, CLIENT.info))}
            SchemaOracle(NEWEST).check_from_client(decode_any(raw(back)))


# Notifications of servers and clients


def test_a_notification_is_good_in_every_older_revision(subtests: pytest.Subtests):
    for path, revision in product(named(*(f"{name}Notification" for name in NOTIFICATIONS)), LEGACY):
        with case(subtests, path, revision):
            message = decode_message(path.read_bytes())
            assert isinstance(message, Notification)
            SchemaOracle(revision).check_from_server(json.loads(wire(message)))


# Questions of servers, and their answers


def asked(method: str, params: Any, revision: str) -> Any:
    """Return the valid question for a client of `revision`, None when it cannot be asked."""
    try:
        question = downgrade_question(method, decode_fields(raw(params)), revision, "an-id")
    except RpcError:
        return None
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": decode_any(raw(question))}
    SchemaOracle(revision).check_from_server(message)
    return message["params"]


FIRST = {m.CREATE_MESSAGE: "2024-11-05", m.ELICIT: "2025-06-18"}


def test_a_question_is_good_in_every_older_revision_that_has_it(subtests: pytest.Subtests):
    for path, revision in product(named(*QUESTIONS), LEGACY):
        with case(subtests, path, revision):
            method, params = QUESTIONS[path.parent.name], read(path)
            first = V_2025_11_25 if path.parent.name == "ElicitRequestURLParams" else FIRST[method]
            question = asked(method, params, revision)
            assert (question is not None) == (revision >= first)
            if revision == V_2025_11_25:
                assert question == params | (
                    {"elicitationId": "an-id"} if params.get("mode") == "url" else {}
                )


def test_a_form_field_is_good_in_every_revision_with_forms(subtests: pytest.Subtests):
    for path, revision in product(named(*FIELDS), [V_2025_06_18, V_2025_11_25]):
        with case(subtests, path, revision):
            form = {"type": "object", "properties": {"field": read(path)}}
            question = asked(m.ELICIT, {"message": "?", "requestedSchema": form}, revision)
            if revision == V_2025_11_25:
                assert question["requestedSchema"] == form


def test_a_sampling_message_is_good_in_every_older_revision(subtests: pytest.Subtests):
    for path, revision in product(
        named("SamplingMessage", "ToolUseContent", "ToolResultContent", *BLOCKS[:3]), LEGACY
    ):
        with case(subtests, path, revision):
            content = read(path)
            message = content if "role" in content else {"role": "user", "content": content}
            params = {"messages": [message], "maxTokens": 1}
            question = asked(m.CREATE_MESSAGE, params, revision)
            assert question == params or revision < V_2025_11_25
            answer = decode_fields(raw({**message, "model": "m"}))
            judge_answer(revision, m.CREATE_MESSAGE, downgrade_answer(m.CREATE_MESSAGE, answer, revision))


def test_an_answer_is_good_in_every_older_revision_that_has_it(subtests: pytest.Subtests):
    for path, revision in product(named(*ANSWERS), LEGACY):
        with case(subtests, path, revision):
            method = ANSWERS[path.parent.name]
            if method == m.ELICIT and revision < V_2025_06_18:
                continue
            answer = decode_fields(path.read_bytes())
            down = judge_answer(revision, method, downgrade_answer(method, answer, revision))
            if revision == V_2025_11_25:
                assert down == read(path)
            up = upgrade_answer(method, {}, decode_fields(raw(down)), revision)
            judge_answer(NEWEST, method, up)


def judge_answer(revision: str, method: str, answer: Fields) -> Any:
    decoded = decode_any(raw(answer))
    if revision == NEWEST:
        return decoded  # in this revision answers are members of requests
    SchemaOracle(revision).check_from_client({"jsonrpc": "2.0", "id": 1, "result": decoded}, method)
    return decoded


# Errors


def test_an_error_is_good_in_every_older_revision_and_back(subtests: pytest.Subtests):
    for path, revision in product(named(*(path.name for path in sorted(DIRECTORY.glob("*Error")))), LEGACY):
        with case(subtests, path, revision):
            content = read(path)
            body = content.get("error", content)
            error = RpcError(body["code"], body["message"], raw(body["data"]) if "data" in body else None)
            for method in (m.TOOLS_CALL, m.RESOURCES_READ):
                down = downgrade_error(method, error)
                SchemaOracle(revision).check_from_server(json.loads(encode_error(1, down)), method)
                back = upgrade_error(method, {"uri": raw("file:///a")}, down)
                SchemaOracle(NEWEST).check_from_server(json.loads(encode_error(1, back)), method)
                assert (back.message, back.data) == (error.message, error.data)
