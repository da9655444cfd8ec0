"""Method names, and the facts about them that several rooms need.

Source: the schema of each revision; `server/utilities/caching` (2026-07-28) for the cacheable ones,
`basic/patterns/mrtr` (2026-07-28) for those that may ask for input.
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

MISSED = "dev.mcpmux/missed"
"""Said by our own edge to the core, never on a wire: what a server told for a while may not have arrived."""

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

CACHEABLE = frozenset({*LISTS, DISCOVER, RESOURCES_READ})

MAY_ASK_FOR_INPUT = frozenset({PROMPTS_GET, RESOURCES_READ, TOOLS_CALL})

IDEMPOTENT = frozenset({*LISTS, DISCOVER, RESOURCES_READ, PROMPTS_GET, COMPLETE})
"""Reading these twice changes nothing, so they may be sent again after a lost connection."""

REMOVED_IN_MODERN = frozenset({INITIALIZE, PING, SET_LEVEL, RESOURCES_SUBSCRIBE, RESOURCES_UNSUBSCRIBE})
"""Requests of the legacy revisions that 2026-07-28 no longer has."""
