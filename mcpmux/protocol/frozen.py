"""What the values that travel through mcpmux have in common."""

from __future__ import annotations

import msgspec


class Frozen(msgspec.Struct, frozen=True, gc=False):
    """A value: nobody changes it, and it takes no part in cycles of references.

    Subclasses say `frozen=True, gc=False` themselves, for the type checker; a compiled class gets none of its
    own keywords, and has them from here.
    """
