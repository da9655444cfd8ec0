"""Secrets leave the tables, and our configuration still reads the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.hosts.configuration import read_config
from mcpmux.hosts.reference import escape
from mcpmux.hosts.secrecy import Vault, looks_secret, names_secret
from mcpmux.hosts.toml_text import format_table

SECRET = "Zq8-geheim-77"


@pytest.mark.parametrize(
    "name",
    [
        *("API_KEY", "OPENAI_KEY", "githubToken", "GITHUB_PAT", "X-Api-Key", "Authorization", "db_password"),
        *("client-secret", "NPM_TOKEN", "Cookie", "POSTGRES_PWD", "SENTRY_DSN", "api-keys"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert names_secret(name)


@pytest.mark.parametrize("name", ["PATH", "PWD", "HOME", "KEYBOARD", "region", "LOG_LEVEL", "X-Team", "MODE"])
def test_other_names(name: str) -> None:
    assert not names_secret(name)


@pytest.mark.parametrize(
    "text",
    [
        "ghp_" + "a1" * 18,
        "sk-" + "x" * 30,
        "postgres://me:pw@db.example/x",
        "0f" * 20,
        "Authorization: Bearer abcdefghij1",
        "https://x.example/?token=abc",
    ],
)
def test_looks_of_secrets(text: str) -> None:
    assert looks_secret(text)


@pytest.mark.parametrize("text", ["info", "/usr/local/bin", "https://x.example/mcp", "true", "a" * 40])
def test_other_looks(text: str) -> None:
    assert not looks_secret(text)


TABLE: dict[str, Any] = {
    "command": "x",
    "args": [
        *("--token", SECRET, f"--password={SECRET}", "-v", "--region", "eu", f"--header=Cookie: {SECRET}"),
        *("${A}", "ghp_" + "a1" * 18, "-e", f"DB_PASS_KEY={SECRET}", "MODE=fast"),
    ],
    "env": {
        "API_KEY": SECRET,
        "MODE": "fast",
        "OTHER_KEY": "${A}",
        "DB": f"postgres://u:{SECRET}@h/d",
        "DB_URL": f"postgres://u:{SECRET}@${{A}}/d",
        "LAST_KEY": f"${{A}}.{SECRET}",
    },
}
WEB: dict[str, Any] = {
    "url": f"https://u:{SECRET}@x.example/s/{'0f' * 16}/mcp?a=1&api_key={SECRET}&b=2&token=${{A}}",
    "headers": {"Authorization": f"Bearer {SECRET}", "X-Key": escape(SECRET + "${"), "X-Team": "blue"},
}


def read(table: dict[str, Any], environ: dict[str, str]) -> Any:
    text = format_table(("upstreams", "x"), table)
    return read_config("-", environ, text.encode).upstreams


@pytest.mark.parametrize("table", [TABLE, WEB], ids=["command", "url"])
@pytest.mark.parametrize("in_files", [False, True])
def test_the_configuration_reads_the_same_without_them(
    tmp_path: Path, table: dict[str, Any], in_files: bool
) -> None:
    vault = Vault(tmp_path if in_files else None)
    cleared = vault.clear("x", table)
    assert SECRET not in repr(cleared)
    assert SECRET not in repr(vault.moved)
    environ = {"A": "a"}
    for secret in vault.moved:
        if secret.file is None:
            environ[secret.variable] = secret.value.reveal()
        else:
            secret.file.write_text(secret.value.reveal())
    assert read(cleared, environ) == read(table, environ)


def test_what_is_no_secret_stays(tmp_path: Path) -> None:
    cleared = Vault().clear("docs", TABLE)
    assert cleared["args"] == [
        *("--token", "${DOCS_TOKEN}", "--password=${DOCS_PASSWORD}", "-v", "--region", "eu"),
        *("--header=${DOCS_HEADER}", "${A}", "${DOCS_ARGUMENT_9}", "-e", "DB_PASS_KEY=${DOCS_DB_PASS_KEY}"),
        "MODE=fast",
    ]
    assert cleared["env"] == {
        "API_KEY": "${DOCS_API_KEY}",
        "MODE": "fast",
        "OTHER_KEY": "${A}",
        "DB": "${DOCS_DB}",
        "DB_URL": "${DOCS_DB_URL}${A}/d",
        "LAST_KEY": "${A}${DOCS_LAST_KEY}",
    }
    assert Vault().clear("web", WEB) == {
        "url": "https://${WEB_USER}@x.example/s/${WEB_PATH}/mcp?a=1&api_key=${WEB_API_KEY}&b=2&token=${A}",
        "headers": {
            "Authorization": "Bearer ${WEB_AUTHORIZATION}",
            "X-Key": "${WEB_X_KEY}",
            "X-Team": "blue",
        },
    }


@given(st.lists(st.sampled_from(["a-b", "a.b", "c"]), min_size=1, max_size=6))
def test_no_two_secrets_share_a_variable_or_a_file(names: list[str]) -> None:
    vault = Vault(Path("/s"))
    for name in names:
        vault.clear(name, {"env": {"K_KEY": "1", "k-key": "2"}})
    assert len({secret.variable for secret in vault.moved}) == 2 * len(names)
    assert len({secret.file for secret in vault.moved}) == 2 * len(names)
