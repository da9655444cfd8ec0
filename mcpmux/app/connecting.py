"""Answer the inspector's question of what each host app needs in its file to use this mcpmux.

| path | answer |
| --- | --- |
| `/api/hosts?url=` | `hosts`: each with its `file`, and the `text` for it; null where it takes no URL |
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mcpmux.hosts.host import HOSTS, Machine, find_places
from mcpmux.hosts.installing import describe_entry
from mcpmux.traffic.admin.route import BadRequest, HttpExchange, Route

HOME = Path("~")
SCHEMES = ("http://", "https://")


def hosts_route() -> Route:
    """Return the route for `serve_admin`."""

    async def answer(http: HttpExchange) -> None:
        url = http.query.get("url", "")
        if not url.startswith(SCHEMES):
            raise BadRequest("url has to be that of mcpmux, as host apps reach it")
        machine = Machine(sys.platform, HOME, os.environ)
        hosts = [
            {
                "name": host.name,
                "title": host.title,
                "file": str(next(find_places(machine, [host.name])).path),
                "text": describe_entry(host, url),
            }
            for host in HOSTS.values()
        ]
        await http.send({"hosts": hosts})

    return Route("/api/hosts", answer)
