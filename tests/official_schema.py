"""The official JSON schemas of MCP, one per revision, as judges of single payloads.

They are not part of this project: the directory `$MCPMUX_SCHEMAS`, or `shared/schema` beside the
checkout, holds them as `<revision>/schema.json`.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator, Draft202012Validator, FormatChecker
from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator

BESIDE_THE_CHECKOUT = Path(__file__).resolve().parents[2] / "shared" / "schema"

formats = FormatChecker(formats=())


@formats.checks("uri")  # type: ignore[untyped-decorator]  # jsonschema has no types
def is_uri(value: object) -> bool:
    """Return whether a text is a URI, as far as it matters here (RFC 3986)."""
    return not isinstance(value, str) or bool(re.match(r'^[A-Za-z][A-Za-z0-9+.-]*:[^\s<>"{}|\\^`]*$', value))


@formats.checks("byte", raises=binascii.Error)  # type: ignore[untyped-decorator]  # see above
def is_base64(value: object) -> bool:
    return not isinstance(value, str) or base64.b64decode(value, validate=True) is not None


def find_schemas() -> Path | None:
    """Return the directory of the official schemas, or None where there is none."""
    directory = Path(os.environ.get("MCPMUX_SCHEMAS") or BESIDE_THE_CHECKOUT)
    return directory if directory.is_dir() else None


@cache
def load_schema(revision: str) -> OfficialSchema:
    """Return the schema of one revision. Call it only where `find_schemas` finds them."""
    directory = find_schemas()
    assert directory is not None
    return OfficialSchema(json.loads((directory / revision / "schema.json").read_text()))


class OfficialSchema:
    """One revision: which methods each side may send, and the definition of everything."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._keyword = "$defs" if "$defs" in document else "definitions"
        self._dialect = Draft202012Validator if self._keyword == "$defs" else Draft7Validator
        self._validators: dict[str, Validator] = {}
        self.definitions: dict[str, Any] = document[self._keyword]
        self._by_method = {
            method: name
            for name, definition in self.definitions.items()
            if (method := _constant(definition, "method")) and not name.startswith(("Client", "Server"))
        }
        self._by_code = {
            code: name
            for name, definition in self.definitions.items()
            if (code := _error_code(definition)) is not None
        }

    def calls(self, union: str) -> dict[str, str]:
        """Return the requests or notifications of a union (`ClientRequest`, …): method → definition."""
        return {method: name for method, name in self._by_method.items() if method in self._methods(union)}

    def result_of(self, method: str) -> str:
        """Return the definition of the usual answer to a request."""
        return self._result_definitions(method, {})[0]

    def check(self, definition: str, value: Any) -> None:
        """Check a value. Raises AssertionError with the place and the reason when it is no `definition`."""
        validator = self._validators.get(definition)
        if validator is None:
            reference = {"$ref": f"#/{self._keyword}/{definition}", self._keyword: self.definitions}
            validator = self._dialect(reference, format_checker=formats)
            self._validators[definition] = validator
        error = best_match(validator.iter_errors(value))
        if error is not None:
            raise AssertionError(f"not a {definition}: {error.json_path}: {error.message}")

    def check_call(self, union: str, message: dict[str, Any]) -> None:
        """Check a request or notification, which must be in `union` (such as `ClientRequest`)."""
        method = message["method"]
        assert method in self._methods(union), f"{method!r} is no {union}"
        self.check(self._by_method[method], message)

    def check_result(self, method: str, result: dict[str, Any]) -> None:
        """Check the result of a request of `method`."""
        for definition in self._result_definitions(method, result):
            self.check(definition, result)

    def check_error(self, message: dict[str, Any]) -> None:
        """Check the shape of an error response, if the revision defines its code."""
        definition = self._by_code.get(message["error"]["code"])
        if definition is not None:
            whole = "error" in self.definitions[definition]["properties"]
            self.check(definition, message if whole else message["error"])

    def _methods(self, union: str) -> set[str | None]:
        definition = self.definitions.get(union, {"anyOf": []})
        members = definition.get("anyOf", [definition])
        return {_constant(self._resolve(member), "method") for member in members}

    def _resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        return self.definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema

    def _result_definitions(self, method: str, result: dict[str, Any]) -> list[str]:
        assert method in self._by_method, f"there is no method {method!r}"
        name = self._by_method[method].removesuffix("Request") + "Result"
        if result.get("resultType") == "input_required" and "InputRequiredResult" in self.definitions:
            alternatives = json.dumps(self.definitions.get(f"{name}Response", {}))
            assert "InputRequiredResult" in alternatives, f"{method} cannot require input"
            return ["InputRequiredResult"]
        if "task" in result and "CreateTaskResult" in self.definitions:
            return ["CreateTaskResult"]
        return [name if name in self.definitions else "EmptyResult"]


def _constant(definition: dict[str, Any], member: str) -> Any:
    return definition.get("properties", {}).get(member, {}).get("const")


def _error_code(definition: dict[str, Any]) -> int | None:
    """Return the code of an error definition, which is either an error object or a whole response."""
    parts = definition.get("properties", {}).get("error", {}).get("allOf", [definition])
    return next((code for part in parts if (code := _constant(part, "code")) is not None), None)
