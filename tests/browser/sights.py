"""Real servers of every revision, and what clients ask them besides reading all that they list.

Everything that is asked here is answered the same each time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.real.mux import Json

Asking = tuple[str, Json]
"""A method and its parameters."""


class Sight(NamedTuple):
    """A real server: its newest revision, and what it is asked."""

    revision: str
    asking: tuple[Asking, ...]
    sampling: tuple[Asking, ...] = ()
    """What makes the server ask the client to sample, or for its roots."""
    elicitation: tuple[Asking, ...] = ()
    """What makes the server ask the client to elicit; some do not look whether the client can."""
    subscribing: tuple[Asking, ...] = ()
    """What can be asked in a session only."""


def _call(name: str, /, **arguments: Any) -> Asking:
    return "tools/call", {"name": name, "arguments": arguments}


def _get(name: str, /, **arguments: str) -> Asking:
    return "prompts/get", {"name": name, "arguments": arguments}


def _read(uri: str) -> Asking:
    return "resources/read", {"uri": uri}


def _complete(ref: Json, name: str, value: str) -> Asking:
    return "completion/complete", {"ref": ref, "argument": {"name": name, "value": value}}


def _complete_prompt(prompt: str, name: str, value: str) -> Asking:
    return _complete({"type": "ref/prompt", "name": prompt}, name, value)


def _complete_template(template: str, name: str, value: str) -> Asking:
    return _complete({"type": "ref/resource", "uri": template}, name, value)


_MISTAKES = (
    _call("no-such-tool"),
    _get("no-such-prompt"),
)

_OLD_EVERYTHING = (
    _call("echo", message="Grüße, 世界\n"),
    _call("add", a=2, b=0.5),
    _call("add", a="two"),
    _call("getTinyImage"),
    _call("longRunningOperation", duration=0.2, steps=2),
    _get("complex_prompt", temperature="0.5", style="casual"),
    _read("test://static/resource/99"),
    _read("test://static/resource/101"),
    _complete_prompt("complex_prompt", "style", "f"),
    _complete_template("test://static/resource/{id}", "id", "1"),
    *_MISTAKES,
)

_MIDDLE_EVERYTHING = (
    *_OLD_EVERYTHING,
    _call("annotatedMessage", messageType="error", includeImage=True),
    _call("getResourceReference", resourceId=2),
    _get("resource_prompt", resourceId="3"),
)

_SAMPLING = _call("sampleLLM", prompt="the prompt", maxTokens=7)
_SUBSCRIBING = (
    ("resources/subscribe", {"uri": "test://static/resource/4"}),  # samples the client before it answers
    ("resources/unsubscribe", {"uri": "test://static/resource/4"}),
)

SIGHTS = {
    "everything-2024-11-05": Sight("2024-11-05", _OLD_EVERYTHING, (_SAMPLING,), (), _SUBSCRIBING),
    "everything-2025-03-26": Sight("2025-03-26", _MIDDLE_EVERYTHING, (_SAMPLING,), (), _SUBSCRIBING),
    "everything-2025-06-18": Sight(
        "2025-06-18",
        (
            *_MIDDLE_EVERYTHING,
            _call("getResourceLinks", count=2),
            _call("structuredContent", location="here"),
        ),
        (_SAMPLING,),
        (_call("startElicitation"),),
        _SUBSCRIBING,
    ),
    "everything": Sight(
        "2025-11-25",
        (
            _call("echo", message="Grüße, 世界\n"),
            _call("get-sum", a=2, b=0.5),
            _call("get-sum", a="two"),
            _call("get-tiny-image"),
            _call("get-annotated-message", messageType="success", includeImage=True),
            _call("get-resource-links", count=3),
            _call("get-resource-reference", resourceType="Text", resourceId=3),
            _call("get-structured-content", location="Chicago"),
            _call("trigger-long-running-operation", duration=0.2, steps=2),
            _get("args-prompt", city="Paris", state="Texas"),
            _get("completable-prompt", department="Sales", name="Eve"),
            _get("resource-prompt", resourceType="Text", resourceId="2"),
            _get("resource-prompt", resourceType="Sound", resourceId="2"),
            _read("demo://resource/dynamic/text/7"),
            _read("demo://resource/dynamic/text/seven"),
            _read("demo://no-such-resource"),
            _complete_prompt("completable-prompt", "department", "S"),
            _complete_prompt("args-prompt", "city", "P"),
            _complete_template("demo://resource/dynamic/text/{resourceId}", "resourceId", "12"),
            *_MISTAKES,
        ),
        (
            _call("get-roots-list"),
            _call("trigger-sampling-request", prompt="the prompt", maxTokens=7),
        ),
        (_call("trigger-elicitation-request"),),
        (
            ("resources/subscribe", {"uri": "demo://resource/static/document/features.md"}),
            ("resources/unsubscribe", {"uri": "demo://resource/static/document/features.md"}),
        ),
    ),
    "memory": Sight(
        "2025-11-25",
        (
            _call("read_graph"),
            _call("search_nodes", query="moon"),
            _call("open_nodes", names=["Moon"]),
            _call("open_nodes", names="Moon"),
            _call("no-such-tool"),
        ),
    ),
    "time": Sight(
        "2026-07-28",
        (
            _call("convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo"),
            _call("convert_time", source_timezone="Moon", time="12:00", target_timezone="Asia/Tokyo"),
            _call("no-such-tool"),
        ),
    ),
    "modern": Sight(
        "2026-07-28",
        (
            _call("echo", text="Grüße, 世界\n"),
            _call("measure", text="four"),
            _call("link"),
            _call("count"),
            _call("fail"),
            _get("review", code="x = 1", language="Python"),
            _get("review"),
            _read("memo://note/a%20b"),
            _read("memo://search?q=a&page=2"),
            _read("memo://nothing"),
            _complete_prompt("review", "language", "P"),
            _complete_template("memo://note/{name}", "name", "n"),
            *_MISTAKES,
        ),
    ),
}
