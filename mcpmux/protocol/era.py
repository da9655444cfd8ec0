"""Between the eras: legacy messages in the shape of 2026-07-28 and back.

Each edge uses one half. Upward (what a legacy peer says): `upgrade_*`. Downward (what it is told):
`downgrade_*`. Members that neither era defines pass untouched.

| legacy | modern |
| --- | --- |
| facts of the session (version, client, capabilities, log level) | `_meta` of every request |
| an output schema, always of an object | of any value: left out downward, if of no object |
| a property of a schema, always an object | also `true` and `false`: `{}` and `{"not": {}}` downward |
| a result | `resultType` "complete"; cacheable ones `ttlMs` 0 and `cacheScope` "private" |
| -32002 resource not found | -32602 with `data.uri` |
| a read refused with a code that nobody has reserved | -32602 with `data.uri`, the server's in `data.error` |

What only some legacy revisions cannot say is in the table of `content`.

Source: changelog of 2026-07-28; `server/resources` error handling; `server/utilities/caching`;
`server/tools` (output schema) of 2025-11-25 and of 2026-07-28.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from mcpmux.errors import Refused, RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, MODERN_KEYS, SERVER_INFO, Call, Meta
from mcpmux.protocol.codes import INVALID_PARAMS, MODERN_ONLY, OWN, RESERVED, RESOURCE_NOT_FOUND
from mcpmux.protocol.content import replace_each
from mcpmux.protocol.envelope import decode_fields, error_body, members_of, raw, text_of
from mcpmux.protocol.handshake import ClientFacts
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields, Raw

_NAMES_A_RESOURCE: Final = frozenset({m.RESOURCES_READ, m.RESOURCES_SUBSCRIBE, m.RESOURCES_UNSUBSCRIBE})
_BOOLEAN_SCHEMAS: Final = {b"true": raw({}), b"false": raw({"not": {}})}
KEPT: Final = 64  # values of `_meta` whose rest is kept: a server says the same with every result
KEPT_BYTES: Final = 1024  # of one; of a longer one it is found anew each time


def upgrade_call(
    method: str,
    params: Raw | Fields | None,
    client: ClientFacts,
    identity: object = None,
    principal: Principal = ANYONE,
) -> Call:
    """A legacy client's request as a modern call. Raises RpcError when `_meta` is no object."""
    call = Call.of(method, params, identity, legacy=True, principal=principal)
    return call.with_meta({**call.meta, **client.meta} if call.meta else client.meta)


def downgrade_meta(call: Call) -> Fields:
    """The `_meta` that a legacy server gets: without what only modern requests carry."""
    if isinstance(call.meta, Meta):
        return {}
    return {key: value for key, value in call.meta.items() if key not in MODERN_KEYS}


def downgrade_result(result: Fields) -> Fields:
    """A modern result without what legacy revisions do not know (changed in place)."""
    for key in ("resultType", "ttlMs", "cacheScope"):
        result.pop(key, None)
    meta = result.get(META)
    if meta is not None:
        rest = (_kept_rest if len(meta) <= KEPT_BYTES else _rest_of)(bytes(meta))
        if rest is None:
            del result[META]
        else:
            result[META] = rest
    if "tools" in result:
        replace_each(result, "tools", _with_tight_schemas)
    return result


def _rest_of(meta: bytes) -> Raw | None:
    """The `_meta` of a result without the server's info; None when nothing is left."""
    try:
        members = decode_fields(meta)
    except ValueError:  # no object, so not ours to change
        return Raw(meta)
    if members.pop(SERVER_INFO, None) is None:
        return Raw(meta)
    return raw(members) if members else None


_kept_rest: Final = lru_cache(KEPT)(_rest_of)


def _with_tight_schemas(tool: Fields) -> Fields:
    """A tool with schemas such as the legacy revisions allow; `outputSchema` goes when it cannot be."""
    for key in ("inputSchema", "outputSchema"):
        schema = members_of(tool.get(key))
        if key == "outputSchema" and text_of(schema.get("type")) != "object":
            tool = {name: value for name, value in tool.items() if name != key} if key in tool else tool
            continue
        properties = members_of(schema.get("properties"))
        tightened = {name: _BOOLEAN_SCHEMAS.get(bytes(one), one) for name, one in properties.items()}
        if tightened != properties:
            tool = {**tool, key: raw({**schema, "properties": tightened})}
    return tool


def upgrade_error(method: str, params: Fields, error: RpcError) -> RpcError:
    """A legacy server's error as 2026-07-28 says it; a missing resource is named in `data.uri`."""
    if error.code != RESOURCE_NOT_FOUND:
        return error
    data = error.data
    if method in _NAMES_A_RESOURCE and "uri" in params:
        known = members_of(data)
        if "uri" not in known:
            data = raw({**known, "uri": params["uri"]})
    return RpcError(INVALID_PARAMS, error.message, data)


def upgrade_refusal(params: Fields, error: RpcError) -> RpcError:
    """Why a server lets a resource not be read, in words that clients know.

    A code that neither JSON-RPC nor MCP has reserved (SDKs say 0 for whatever went wrong) tells a client
    nothing: it gets -32602 with `data.uri`, as for a missing resource, and the server's own error in
    `data.error`.
    """
    if error.code in RESERVED or error.code in OWN or "uri" not in params:
        return error
    return RpcError(INVALID_PARAMS, error.message, raw({"uri": params["uri"], "error": error_body(error)}))


def downgrade_error(method: str, error: RpcError) -> RpcError:
    """A modern error as the legacy revisions say it."""
    if error.code == INVALID_PARAMS and method in _NAMES_A_RESOURCE and "uri" in members_of(error.data):
        if isinstance(error, Refused):
            return Refused(RESOURCE_NOT_FOUND, error.message, error.rule, error.data)
        return RpcError(RESOURCE_NOT_FOUND, error.message, error.data)
    if error.code in MODERN_ONLY:
        return RpcError(INVALID_PARAMS, error.message, error.data)
    return error
