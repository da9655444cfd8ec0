"""What the audit log is, and what happens when it cannot be written."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from attrs import field, frozen

from mcpmux.config.scalars import Choice, SecretText, Size, Text, about
from mcpmux.config.secret import Secret

# Long enough that it cannot be guessed when it is random text.
MIN_AUDIT_KEY = 16
AuditKey: TypeAlias = Annotated[
    Secret, SecretText(f"at least {MIN_AUDIT_KEY} characters", rf"[^\x00]{{{MIN_AUDIT_KEY},}}")
]


@frozen(kw_only=True)
class Audit:
    """One record of every exchange, hash-chained, in files that are never deleted."""

    directory: Annotated[str, Text("the path of a folder", r"[^\x00]+")] | None = field(
        default=None,
        metadata=about(
            "Where the files are, made when it is missing; relative to where mcpmux was started. "
            "Without it there is no audit log."
        ),
    )
    key: AuditKey | None = field(
        default=None,
        metadata=about("Makes the hashes, so that nobody without it can write a chain that holds."),
    )
    rotate_size: Annotated[int, Size(4096)] = field(
        default=64 * 2**20, metadata=about("Size from which on a new file is begun; the chain goes on.")
    )
    sync: Annotated[str, Choice(("batch", "always", "never"))] = field(
        default="batch",
        metadata=about(
            "Before its answer goes out a record is on the disk, together with whatever waits (`batch`) or "
            "by itself (`always`), or only with the system, which a power cut may lose (`never`)."
        ),
    )
    on_full: Annotated[str, Choice(("refuse", "continue"))] = field(
        default="refuse",
        metadata=about(
            "When the log cannot be written: `refuse` exchanges, or `continue` and note the gap afterwards."
        ),
    )
    begin: Annotated[str, Choice(("listens", "all"))] = field(
        default="listens",
        metadata=about(
            "Which exchanges have a record before anything is done for them, too: those that may last for "
            "days, or `all`, so that nothing is ever done without a trace."
        ),
    )
