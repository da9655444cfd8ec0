"""The features that a pair of revisions cannot have, and their substitutes: the footnotes of the table."""

from __future__ import annotations

NOTES = {
    "a": "Elicitation came with 2025-06-18. With an older client, a server that asks gets an error.",
    "b": "URL elicitation came with 2025-11-25. With an older client, a server that asks gets an error.",
    "c": "Structured output came with 2025-06-18. If one side is older, the result says the same as text.",
    "d": "Resource links came with 2025-06-18. An older client gets the title and URI as text.",
    "e": "Audio came with 2025-03-26. An older client gets an embedded resource with the same data.",
}
ELICITATION, PAGE, STRUCTURED, LINK, AUDIO = NOTES
