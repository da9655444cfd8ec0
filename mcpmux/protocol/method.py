"""Method names, and the facts about them that several rooms need.

Source: the schema of each revision; `server/utilities/caching` (2026-07-28) for the cacheable ones,
`basic/patterns/mrtr` (2026-07-28) for those that may ask for input; `basic/utilities/tasks` (2025-11-25) and
the extension `io.modelcontextprotocol/tasks` (SEP-2663) for tasks.
"""

from __future__ import annotations

from typing import Final, NamedTuple

INITIALIZE: Final = "initialize"
INITIALIZED: Final = "notifications/initialized"
PING: Final = "ping"
DISCOVER: Final = "server/discover"

RESOURCES_LIST: Final = "resources/list"
TEMPLATES_LIST: Final = "resources/templates/list"
RESOURCES_READ: Final = "resources/read"
RESOURCES_SUBSCRIBE: Final = "resources/subscribe"
RESOURCES_UNSUBSCRIBE: Final = "resources/unsubscribe"
TOOLS_LIST: Final = "tools/list"
TOOLS_CALL: Final = "tools/call"
PROMPTS_LIST: Final = "prompts/list"
PROMPTS_GET: Final = "prompts/get"
COMPLETE: Final = "completion/complete"
LISTEN: Final = "subscriptions/listen"
SET_LEVEL: Final = "logging/setLevel"

CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"
LOG_MESSAGE: Final = "notifications/message"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
RESOURCE_UPDATED: Final = "notifications/resources/updated"
RESOURCES_CHANGED: Final = "notifications/resources/list_changed"
TOOLS_CHANGED: Final = "notifications/tools/list_changed"
PROMPTS_CHANGED: Final = "notifications/prompts/list_changed"
ROOTS_CHANGED: Final = "notifications/roots/list_changed"

TASKS_GET: Final = "tasks/get"
TASKS_RESULT: Final = "tasks/result"
TASKS_LIST: Final = "tasks/list"
TASKS_CANCEL: Final = "tasks/cancel"
TASKS_UPDATE: Final = "tasks/update"
TASK_STATUS: Final = "notifications/tasks/status"
ELICITATION_COMPLETE: Final = "notifications/elicitation/complete"

UNASKED: Final = frozenset(
    {RESOURCE_UPDATED, RESOURCES_CHANGED, TOOLS_CHANGED, PROMPTS_CHANGED, TASK_STATUS, ELICITATION_COMPLETE}
)
"""Notifications of servers that belong to no request, on any stream."""

LIST_CHANGES: Final = {"tools": TOOLS_CHANGED, "prompts": PROMPTS_CHANGED, "resources": RESOURCES_CHANGED}
"""Capability → the notification of its lists. A listen asks for it as `<capability>ListChanged`."""

CAPABILITY_OF_CHANGE: Final = {change: capability for capability, change in LIST_CHANGES.items()}

OWN: Final = "dev.mcpmux/"
"""With this begin the methods that mcpmux uses inside; from a wire they are not taken."""

MISSED: Final = "dev.mcpmux/missed"
"""From our own edge to the core, never on a wire: announcements of a server may have been lost."""

HEARING: Final = "dev.mcpmux/hearing"
"""Likewise: a legacy server's announcements can or cannot be received any more; its channel has the state."""

FORGOTTEN: Final = "dev.mcpmux/forgotten"
"""Likewise: a legacy server refuses the stream that its session had before, as if it had lost its session."""

CREATE_MESSAGE: Final = "sampling/createMessage"
ELICIT: Final = "elicitation/create"
ROOTS_LIST: Final = "roots/list"


class ListMethod(NamedTuple):
    """A paged list: the result's member that holds the items, and the capability that offers it."""

    items: str
    capability: str


LISTS: Final = {
    RESOURCES_LIST: ListMethod("resources", "resources"),
    TEMPLATES_LIST: ListMethod("resourceTemplates", "resources"),
    TOOLS_LIST: ListMethod("tools", "tools"),
    PROMPTS_LIST: ListMethod("prompts", "prompts"),
}

PAGED: Final = {**LISTS, TASKS_LIST: ListMethod("tasks", "tasks")}
"""Every paged list; tasks are merged like the others, but are each client's own."""

CACHEABLE: Final = frozenset({*LISTS, DISCOVER, RESOURCES_READ})

MAY_ASK_FOR_INPUT: Final = frozenset({PROMPTS_GET, RESOURCES_READ, TOOLS_CALL})

ASKED: Final = "dev.mcpmux/asked"
"""Likewise: a client was asked something during our own `resources/subscribe`, which takes longer then."""

ANSWERED: Final = "dev.mcpmux/answered"
"""Likewise: the client has answered, or will not."""

ASKED_DURING: Final = MAY_ASK_FOR_INPUT | {TASKS_RESULT, RESOURCES_SUBSCRIBE}
"""Requests during which a legacy server may ask its client something."""

ABOUT_TASKS: Final = frozenset({TOOLS_CALL, TASKS_GET, TASKS_RESULT, TASKS_LIST, TASKS_CANCEL, TASKS_UPDATE})
"""Methods that can make a task or are about one."""

ABOUT_ONE_TASK: Final = frozenset({TASKS_GET, TASKS_RESULT, TASKS_CANCEL, TASKS_UPDATE})

IDEMPOTENT: Final = frozenset(
    {*LISTS, DISCOVER, RESOURCES_READ, PROMPTS_GET, COMPLETE, TASKS_GET, TASKS_LIST, TASKS_RESULT}
)
"""Requests that change nothing, so they may be sent again after a lost connection."""

READ_ONLY: Final = frozenset(
    {*LISTS, DISCOVER, PING, RESOURCES_READ, PROMPTS_GET, COMPLETE, LISTEN, SET_LEVEL}
    | {RESOURCES_SUBSCRIBE, RESOURCES_UNSUBSCRIBE}
)
"""Requests that change nothing for other readers. All others may: calls, ends of tasks, unknown methods."""

REQUESTS: Final = READ_ONLY | ABOUT_TASKS | {INITIALIZE}
"""Every request of a client that mcpmux knows."""

KNOWN: Final = (
    REQUESTS
    | UNASKED
    | {INITIALIZED, CANCELLED, PROGRESS, LOG_MESSAGE, ACKNOWLEDGED, ROOTS_CHANGED}
    | {CREATE_MESSAGE, ELICIT, ROOTS_LIST}
)
"""Every method that passes on a wire."""

REMOVED_IN_MODERN: Final = frozenset(
    {INITIALIZE, PING, SET_LEVEL, RESOURCES_SUBSCRIBE, RESOURCES_UNSUBSCRIBE, TASKS_LIST, TASKS_RESULT}
)
"""Requests of the legacy revisions that 2026-07-28 no longer has."""
