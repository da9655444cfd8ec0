"""How HTTP servers under test receive, see the fixture of that name."""

from mcpmux.transports.waiting import available

TOGETHER, ALONE = "together", "alone"
received = TOGETHER if available else ALONE
