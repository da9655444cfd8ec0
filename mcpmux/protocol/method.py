"""Method names, and the facts about them that several rooms need.

Source: the schema of each revision; `server/utilities/caching` (2026-07-28) for the cacheable ones,
`basic/patterns/mrtr` (2026-07-28) for those that may ask for input; `basic/utilities/tasks` (2025-11-25) and
the extension `io.modelcontextprotocol/tasks` (SEP-2663) for tasks.
"""

from __future__ import annotations

from typing import NamedTuple

INITIALIZE = "initialize"
INITIALIZED = "notifications/initialized"
PING = "ping"
DISCOVER = "server/discover"

RESOURCES_LIST = "resources/list"
TEMPLATES_LIST = "resources/templates/list"
RESOURCES_READ = "resources/read"
RESOURCES_SUBSCRIBE = "resources/subscribe"
RESOURCES_UNSUBSCRIBE = "resources/unsubscribe"
TOOLS_LIST = "tools/list"
TOOLS_CALL = "tools/call"
PROMPTS_LIST = "prompts/list"
PROMPTS_GET = "prompts/get"
COMPLETE = "completion/complete"
LISTEN = "subscriptions/listen"
SET_LEVEL = "logging/setLevel"

CANCELLED = "notifications/cancelled"
PROGRESS = "notifications/progress"
LOG_MESSAGE = "notifications/message"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
RESOURCE_UPDATED = "notifications/resources/updated"
RESOURCES_CHANGED = "notifications/resources/list_changed"
TOOLS_CHANGED = "notifications/tools/list_changed"
PROMPTS_CHANGED = "notifications/prompts/list_changed"
ROOTS_CHANGED = "notifications/roots/list_changed"

TASKS_GET = "tasks/get"
TASKS_RESULT = "tasks/result"
TASKS_LIST = "tasks/list"
TASKS_CANCEL = "tasks/cancel"
TASKS_UPDATE = "tasks/update"
TASK_STATUS = "notifications/tasks/status"
ELICITATION_COMPLETE = "notifications/elicitation/complete"

MISSED = "dev.mcpmux/missed"
"""Said by our own edge to the core, never on a wire: what a server told for a while may not have arrived."""

HEARING = "dev.mcpmux/hearing"
"""Likewise: whether a legacy server's announcements can be heard has changed; its channel says how it is."""

CREATE_MESSAGE = "sampling/createMessage"
ELICIT = "elicitation/create"
ROOTS_LIST = "roots/list"


class ListMethod(NamedTuple):
    """A paged list: the result's member that holds the items, and the capability that offers it."""

    items: str
    capability: str


LISTS = {
    RESOURCES_LIST: ListMethod("resources", "resources"),
    TEMPLATES_LIST: ListMethod("resourceTemplates", "resources"),
    TOOLS_LIST: ListMethod("tools", "tools"),
    PROMPTS_LIST: ListMethod("prompts", "prompts"),
}

PAGED = {**LISTS, TASKS_LIST: ListMethod("tasks", "tasks")}
"""Every list that comes in pages; tasks are merged like the others, but are each client's own."""

CACHEABLE = frozenset({*LISTS, DISCOVER, RESOURCES_READ})

MAY_ASK_FOR_INPUT = frozenset({PROMPTS_GET, RESOURCES_READ, TOOLS_CALL})

ASKED_DURING = MAY_ASK_FOR_INPUT | {TASKS_RESULT}
"""Requests during which a legacy server may ask its client something."""

ABOUT_TASKS = frozenset({TOOLS_CALL, TASKS_GET, TASKS_RESULT, TASKS_LIST, TASKS_CANCEL, TASKS_UPDATE})
"""What can make a task or is about one."""

ABOUT_ONE_TASK = frozenset({TASKS_GET, TASKS_RESULT, TASKS_CANCEL, TASKS_UPDATE})

IDEMPOTENT = frozenset(
    {*LISTS, DISCOVER, RESOURCES_READ, PROMPTS_GET, COMPLETE, TASKS_GET, TASKS_LIST, TASKS_RESULT}
)
"""Reading these twice changes nothing, so they may be sent again after a lost connection."""

REMOVED_IN_MODERN = frozenset(
    {INITIALIZE, PING, SET_LEVEL, RESOURCES_SUBSCRIBE, RESOURCES_UNSUBSCRIBE, TASKS_LIST, TASKS_RESULT}
)
"""Requests of the legacy revisions that 2026-07-28 no longer has."""
