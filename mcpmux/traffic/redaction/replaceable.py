"""A redactor whose rules can be replaced while threads use it; a message meets one set of rules."""

from __future__ import annotations

from collections.abc import Sequence

from mcpmux.config.traffic import Redaction
from mcpmux.traffic.redaction.redactor import Redactor


class ReplaceableRedactor(Redactor):
    """Made once, handed to everybody, who need not know."""

    def __init__(self, rules: Redaction | None = None) -> None:
        self._rules = rules or Redaction()
        self._now = Redactor(self._rules)

    def __repr__(self) -> str:
        return repr(self._now)

    def adopt(self, rules: Redaction) -> None:
        """Go by these rules from the next message on."""
        if rules != self._rules:
            self._rules, self._now = rules, Redactor(rules)

    @property
    def current(self) -> Redactor:
        """See Redactor."""
        return self._now

    def redact(self, method: str | None, data: bytes) -> tuple[bytes, int]:
        """See Redactor."""
        return self._now.redact(method, data)

    def spares(self, messages: Sequence[bytes], joined: bytes) -> bool:
        """See Redactor."""
        return self._now.spares(messages, joined)

    def spares_text(self, joined: str) -> bool:
        """See Redactor."""
        return self._now.spares_text(joined)

    def redact_text(self, text: str) -> tuple[str, int]:
        """See Redactor."""
        return self._now.redact_text(text)

    def redact_name(self, name: str | None) -> str | None:
        """See Redactor."""
        return self._now.redact_name(name)

    def clean(self, text: str) -> str:
        """See Redactor."""
        return self._now.clean(text)
