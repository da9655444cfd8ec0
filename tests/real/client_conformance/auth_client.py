"""The suite's client program in the `auth/*` scenarios: mcpmux's commands, as a person runs them.

Usage: auth_client URL. Log in at the suite's server, call its tool, and log in again when mcpmux says that it
is needed, for a server may want more scopes, or another authorization server, in the middle of things. The
person's browser is here, which only follows redirects. Where the scenario is one without a person, only call
the tool. The exit code is that of the last command.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.process.running import COMMAND

CONTEXT = "MCP_CONFORMANCE_CONTEXT"
METADATA_URL = "https://conformance-test.local/client-metadata.json"  # where the suite says that ours is
MOST_LOGINS = 3
TOOL = "test-tool"
LOGIN_SECONDS = 60  # for the browser to be back, on a busy machine
LOGIN_NEEDED = "mcpmux auth login"


def main(url: str) -> int:
    """Go one person's way through a scenario."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ["XDG_STATE_HOME"] = directory
        config = Path(directory) / "mcpmux.json"
        oauth = known_client(url)
        config.write_text(json.dumps({"upstreams": {"up": {"url": url, "prefix": "", "oauth": oauth}}}))
        if "grant" in oauth:
            return call_tool(config)[0]
        for _ in range(MOST_LOGINS):
            if code := log_in(config):
                return code
            code, output = call_tool(config)
            if LOGIN_NEEDED not in output:
                break
        return code


def known_client(url: str) -> dict[str, Any]:
    """Return the client that the suite registered beforehand, if it did."""
    context = json.loads(os.environ.get(CONTEXT) or "{}")
    client = {key: context[key] for key in ("client_id", "client_secret", "issuer") if key in context}
    if "private_key_pem" in context:
        return {**client, "private_key": context["private_key_pem"], "grant": "client_credentials"}
    if "idp_issuer" in context:
        file = Path(os.environ["XDG_STATE_HOME"]) / "id-token"
        file.write_text(context["idp_id_token"])
        provider = {"issuer": context["idp_issuer"], "client_id": context["idp_client_id"]}
        client |= {"issuer": issuer_of(url), "identity_provider": {**provider, "token_file": str(file)}}
        return {**client, "grant": "identity_assertion"}
    if "client_secret" in client and "issuer" not in client:
        return {**client, "issuer": issuer_of(url), "grant": "client_credentials"}
    return client or {"client_metadata_url": METADATA_URL}


def issuer_of(url: str) -> str:
    """Return the authorization server that an administrator knows; the suite does not name it."""
    parts = urlsplit(url)
    place = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource{parts.path}"
    with urllib.request.urlopen(place, timeout=LOGIN_SECONDS) as answer:
        return str(json.load(answer)["authorization_servers"][0])


def log_in(config: Path) -> int:
    """Run `mcpmux auth login` with a browser that goes to the printed URL, and return its exit code."""
    options = ["-c", str(config), "--no-browser", "--timeout", str(LOGIN_SECONDS)]
    command = [*COMMAND, "auth", "login", "up", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if url := process.stdout.readline().strip():
            browse(url)
        return process.wait()
    finally:
        process.kill()  # it is still running only if the suite has given up


def browse(url: str) -> None:
    try:
        with urllib.request.urlopen(url, timeout=LOGIN_SECONDS) as page:
            page.read()
    except OSError as error:  # mcpmux answers 400 to a redirect that it refuses, and prints the reason
        print(f"browser: {error}", file=sys.stderr)


def call_tool(config: Path) -> tuple[int, str]:
    """Run `mcpmux call`, and return its exit code and stderr."""
    command = [*COMMAND, "call", str(config), TOOL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, file=sys.stderr)
    return done.returncode, done.stderr


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main(*sys.argv[1:]))
