"""What a worker answers to administrators' questions, which the keeper puts together.

| about | answer |
| --- | --- |
| `states` | the state of each upstream's shared session, by name |
| `upstreams` | a list of `UpstreamState` |
| `metrics` | text for Prometheus |
| `pulse` | None, as it answers at all |
"""

from __future__ import annotations

from typing import Any

from mcpmux.app.mux import Mux
from mcpmux.app.watching import Inspector
from mcpmux.traffic.telemetry.prometheus import render


class Answers:
    """Of one worker. `inspector`: what it has counted of the traffic, None without an admin listener."""

    def __init__(self, mux: Mux, inspector: Inspector | None) -> None:
        self._inspector = inspector
        self._view = inspector.view(mux) if inspector is not None else None
        self._gauges = inspector.gauges(mux) if inspector is not None else ()

    def __repr__(self) -> str:
        return f"<Answers of {self._view!r}>"

    def answer(self, about: str) -> Any:
        """The answer; None to what is unknown."""
        if self._view is None or self._inspector is None:
            return None
        if about == "states":
            return self._view.states
        if about == "upstreams":
            return self._view.show()
        return render(self._inspector.metrics, self._gauges).decode() if about == "metrics" else None
