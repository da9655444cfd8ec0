from __future__ import annotations

from mcpmux.config.traffic import Redaction
from mcpmux.traffic.redaction.redactor import Redactor, ReplaceableRedactor

MESSAGE = b'{"params":{"ssn":"123"}}'


def test_new_rules_hold_from_the_next_message_on():
    redactor = ReplaceableRedactor(Redaction())
    assert redactor.redact(None, MESSAGE)[1] == 0
    redactor.adopt(Redaction(keys=("ssn",), patterns={"number": "E-[0-9]+"}))
    assert redactor.redact(None, MESSAGE)[1] == 1
    assert redactor.redact_text("E-17") == ("[redacted: number]", 1)
    assert redactor.redact_name("E-17") == "[redacted: number]"
    redactor.adopt(Redaction())
    assert redactor.redact_name("E-17") == "E-17"


def test_nothing_that_a_redactor_does_goes_by_old_rules():
    """What the class has in public must be handed on, or it would not find what it needs."""
    public = {name for name in vars(Redactor) if not name.startswith("_")}
    assert public <= vars(ReplaceableRedactor).keys()
