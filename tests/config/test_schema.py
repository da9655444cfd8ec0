from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from mcpmux.config.reading import parse_jsonc
from mcpmux.config.schema import config_schema
from mcpmux.hosts.configuration import read_config

CONFIGS = Path(__file__).parents[2] / "configs"
EXAMPLES = sorted([*CONFIGS.glob("*.json"), *CONFIGS.glob("*.toml")])
ENVIRON = {
    "HOME": "/home/me",
    "TZ": "UTC",
    "GITHUB_TOKEN": "t",
    "SEARCH_TOKEN": "t",
    "TRACKER_TOKEN": "t",
    "MCPMUX_CURSOR_KEY": "0123456789abcdef",
    "MCPMUX_AUDIT_KEY": "0123456789abcdef",
    "GUARD_KEY": "0123456789abcdef",
    "MCPMUX_ADMIN_TOKEN": "0123456789abcdef",
}
NPX = {"command": "npx"}


@pytest.fixture(scope="module")
def validator():
    schema = config_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(json.loads(json.dumps(schema)))


def no_stdin() -> bytes:
    raise AssertionError("standard input is not asked for")


def test_examples_are_there():
    assert {path.name for path in EXAMPLES} == {
        "claude_desktop_config.json",
        "full.toml",
        "minimal.toml",
        "protected.toml",
        "several-servers.toml",
        "vscode-mcp.json",
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_is_valid_and_loads(validator, path):
    text = path.read_text()
    validator.validate(tomllib.loads(text) if path.suffix == ".toml" else parse_jsonc(text))
    assert read_config(str(path), ENVIRON, no_stdin).upstreams


def test_full_example_has_every_setting(validator):
    """A setting that is not in full.toml is undocumented."""
    document = tomllib.loads((CONFIGS / "full.toml").read_text())
    definitions = validator.schema["$defs"]
    assert {*document, "$schema"} == set(validator.schema["else"]["properties"])
    for section in ("Auth", "Listeners", "Merging", "Limits", "Identity", "Audit", "Tracing", "Logging"):
        assert set(document[section.lower()]) == set(definitions[section]["properties"])
    for kind, name in (("http", "Http"), ("websocket", "WebSocket"), ("tcp", "Tcp"), ("unix", "Unix")):
        assert set(document["listeners"][kind][0]) == set(definitions[f"{name}Listener"]["properties"])
    for section in ("Capture", "Redaction"):
        assert set(document[section.lower()]) == set(definitions[section]["properties"])
    assert set(document["capture"]["rules"][0]) == set(definitions["CaptureRule"]["properties"])
    assert set(document["access"][0]) == set(definitions["AccessRule"]["properties"])
    used = {key for table in document["intercept"] for key in table}
    assert used == set(definitions["Intercept"]["properties"])
    for kind, name in (("tokens", "StaticToken"), ("issuers", "Issuer")):
        used = {key for table in document["auth"][kind].values() for key in table}
        assert used == set(definitions[name]["properties"])
    used = {key for table in document["upstreams"].values() for key in table.get("oauth", {})}
    assert used == set(definitions["OAuth"]["properties"])
    provider = document["upstreams"]["tickets"]["oauth"]["identity_provider"]
    assert set(provider) == set(definitions["IdentityProvider"]["properties"])
    used = {key for table in document["upstreams"].values() for key in table}
    assert used == set(definitions["UpstreamTable"]["properties"])


@pytest.mark.parametrize(
    "document",
    [
        {"upstreams": {"docs": NPX}, "listeners": {"http": ["127.0.0.1:8484", {"port": 0}]}},
        {"upstreams": {"docs": NPX}, "listeners": {"tcp": ["a:1"], "websocket": ["a:1"], "unix": ["a.sock"]}},
        {"upstreams": {"docs": {"url": "unix:/run/a b.sock"}, "more": {"url": "wss://example.com/mcp"}}},
        {"upstreams": {"docs": {"url": "${URL}"}}, "$schema": "x"},
        {"mcpServers": {"My Docs": {**NPX, "autoApprove": [], "isActive": True}}, "theme": "dark"},
        {"context_servers": {"docs": {**NPX, "mcpmux": {"prefix": ""}}}},
        {"servers": {"docs": {"type": "http", "url": "https://example.com"}}, "inputs": []},
        {"mcp": {"servers": {"docs": NPX}}, "mcpmux": {"logging": {"level": "debug"}}},
    ],
)
def test_both_layouts_are_accepted(validator, document):
    validator.validate(document)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"upstreams": {}},
        {"upstreams": {"My Docs": NPX}},
        {"upstreams": {"docs": {**NPX, "comand": "npx"}}},
        {"upstreams": {"docs": {**NPX, "autoApprove": []}}},
        {"upstreams": {"docs": NPX}, "listener": {}},
        {"upstreams": {"docs": NPX}, "listeners": {"http": [{"host": "localhost"}]}},
        {"upstreams": {"docs": NPX}, "listeners": {"http": ["8484"]}},
        {"upstreams": {"docs": NPX}, "listeners": {"tcp": ["/run/a.sock"]}},
        {"upstreams": {"docs": NPX}, "listeners": {"unix": [{"path": "a", "mode": "rw"}]}},
        {"upstreams": {"docs": {"url": "tcp://example.com/path"}}},
        {"upstreams": {"docs": NPX}, "merging": {"page_size": 0}},
        {"mcpServers": {}},
        {"mcpServers": {"docs": {**NPX, "mcpmux": {"prefx": ""}}}},
        {"servers": {"docs": NPX}, "mcpmux": {"listener": {}}},
        {"mcp": {"servers": {"docs": {**NPX, "mcpmux": {"command": "npx"}}}}},
    ],
)
def test_unknown_keys_and_unfit_values_are_rejected(validator, document):
    assert not validator.is_valid(document)


def test_every_key_is_described(validator):
    for name, definition in validator.schema["$defs"].items():
        assert definition["description"], name
        for key, schema in definition["properties"].items():
            assert schema is True or "$ref" in schema or schema["description"], (name, key)
