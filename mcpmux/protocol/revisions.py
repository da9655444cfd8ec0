"""The five revisions of MCP, their order, and the agreement of two sides on one.

Source: "Versioning and Compatibility", 2026-07-28; "Lifecycle" of the earlier revisions.
"""

from __future__ import annotations

from typing import Final

V_2024_11_05: Final = "2024-11-05"
V_2025_03_26: Final = "2025-03-26"
V_2025_06_18: Final = "2025-06-18"
V_2025_11_25: Final = "2025-11-25"
V_2026_07_28: Final = "2026-07-28"

LEGACY: Final = (V_2024_11_05, V_2025_03_26, V_2025_06_18, V_2025_11_25)
MODERN: Final = (V_2026_07_28,)
NEWEST_LEGACY: Final = LEGACY[-1]
NEWEST: Final = MODERN[-1]
SUPPORTED: Final = MODERN[::-1] + LEGACY[::-1]
"""Every revision, newest first, as listed in errors and in `server/discover`."""


def negotiate_legacy(requested: str) -> str:
    """Return the revision for the answer to `initialize`: the requested one, or our newest legacy one."""
    return requested if requested in LEGACY else NEWEST_LEGACY


def is_modern(revision: str) -> bool:
    """Return whether `revision` carries its version and capabilities on every request."""
    return revision in MODERN


def allows_batch(revision: str) -> bool:
    """Return whether JSON-RPC batches exist."""
    # A MUST in 2025-03-26, removed in 2025-06-18.
    return revision == V_2025_03_26
