"""A clock that knows one old revision. mcpmux makes it usable for clients of any revision.

Run by `python -m mcpmux.demo.clock`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from mcpmux.demo.server import DemoServer, Json, Report, describe, run_server, text_block, tool_failure

URI = "clock:///utc"


def read(uri: str) -> list[Json] | None:
    if uri != URI:
        return None
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return [{"uri": URI, "mimeType": "text/plain", "text": f"{now}\n"}]


async def tell_time(arguments: Json, _report: Report) -> Json:
    name = arguments.get("zone", "UTC")
    try:
        zone: tzinfo = UTC if name == "UTC" else ZoneInfo(str(name))  # UTC is known without any database
    except (KeyError, ValueError, OSError):  # unknown; no relative path; a directory of the database
        advice = "try Europe/Paris, or leave it out"
        return tool_failure(f"There is no time zone {name!r} on this machine; {advice}.")
    now = datetime.now(zone)
    answer = {"time": now.isoformat(timespec="seconds"), "zone": name, "weekday": now.strftime("%A")}
    return {"content": [text_block(json.dumps(answer))], "structuredContent": answer}


def make_server() -> DemoServer:
    """Return the server; it has no state between requests."""
    return DemoServer("clock", describe("clock"), read, {"now": tell_time})


if __name__ == "__main__":
    run_server(make_server())
