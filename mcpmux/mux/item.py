"""Check the items of lists against the protocol's schema, and mend them where that is safe.

The shapes below are those of all revisions together, the strictest where they differ: a revision that does
not know a member allows anything in its place. Members that no revision knows are never looked at.

    an item that fits --> stays unchanged
    an item that can be mended --> is mended, with an ItemProblem
    any other item, or one whose name came before --> is left out, with an ItemProblem

Mends: an optional member that is null or of another type is removed, and so is such an entry of an array.
`[]` where an object belongs is an empty object. A missing `inputSchema`, its missing `type` and the missing
name of a resource are filled in.

Law: an item that is not left out fits.

Source: Tool, Resource, ResourceTemplate, Prompt and what is in them, in every revision's schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import attrgetter
from types import UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from mcpmux.mux.rewrite import NAMED_BY, SCHEME
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import UNREADABLE, decode_fields, decode_items, members_of, raw, text_of
from mcpmux.protocol.raw_json import Fields, Raw

NOTES_LIMIT: Final = 5  # faults of one item that are named; more of them add no information
NOTE_LIMIT: Final = 200  # characters of one fault, which may quote the server
PROBLEMS_LIMIT: Final = 100  # of one page; the others are counted

REPEATED: Final = "the list has another of this name before it"


class ItemProblem(NamedTuple):
    """A fault of an item, or of the whole list.

    `name`: the upstream's own name or URI; None for the list, and for an item that has none. `left_out`:
    whether clients do not get the item.
    """

    name: str | None
    text: str
    left_out: bool


# The shapes. A member without a default is required.

_Text = str | UnsetType
_Flag = bool | UnsetType


class _Object(Struct, gc=False):
    """Any object."""


class _Schema(Struct, gc=False, kw_only=True):
    properties: dict[str, _Object | bool] | UnsetType = UNSET
    required: list[str] | UnsetType = UNSET
    dialect: _Text = field(name="$schema", default=UNSET)


class _InputSchema(_Schema, gc=False, kw_only=True):
    type: Literal["object"]


class _Hints(Struct, gc=False, rename="camel"):
    title: _Text = UNSET
    read_only_hint: _Flag = UNSET
    destructive_hint: _Flag = UNSET
    idempotent_hint: _Flag = UNSET
    open_world_hint: _Flag = UNSET


class _Annotations(Struct, gc=False, rename="camel"):
    audience: list[Literal["user", "assistant"]] | UnsetType = UNSET
    priority: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    last_modified: _Text = UNSET


class _Icon(Struct, gc=False, rename="camel"):
    src: str
    mime_type: _Text = UNSET
    sizes: list[str] | UnsetType = UNSET
    theme: Literal["light", "dark"] | UnsetType = UNSET


class _Execution(Struct, gc=False, rename="camel"):
    task_support: Literal["forbidden", "optional", "required"] | UnsetType = UNSET


class _Links(Struct, gc=False):
    """The `_meta` of a tool, with what links to its app; see `rewrite`."""

    ui: Raw | UnsetType = UNSET
    older: Raw | UnsetType = field(name="ui/resourceUri", default=UNSET)
    oldest: Raw | UnsetType = field(name="openai/outputTemplate", default=UNSET)


class _Argument(Struct, gc=False):
    name: str
    title: _Text = UNSET
    description: _Text = UNSET
    required: _Flag = UNSET


class _Item(Struct, gc=False, kw_only=True, rename="camel"):
    """The members that the items of all lists have."""

    name: str
    title: _Text = UNSET
    description: _Text = UNSET
    icons: list[_Icon] | UnsetType = UNSET


class _Tool(_Item, gc=False, kw_only=True, rename="camel"):
    input_schema: _InputSchema
    output_schema: _Schema | UnsetType = UNSET
    annotations: _Hints | UnsetType = UNSET
    execution: _Execution | UnsetType = UNSET
    meta: _Links | UnsetType = field(name="_meta", default=UNSET)


class _Prompt(_Item, gc=False, kw_only=True, rename="camel"):
    arguments: list[_Argument] | UnsetType = UNSET
    meta: _Object | UnsetType = field(name="_meta", default=UNSET)


class _Contents(_Item, gc=False, kw_only=True, rename="camel"):
    mime_type: _Text = UNSET
    annotations: _Annotations | UnsetType = UNSET
    meta: _Object | UnsetType = field(name="_meta", default=UNSET)


class _ResourceItem(_Contents, gc=False, kw_only=True, rename="camel"):
    uri: str
    size: Annotated[float, Meta(multiple_of=1)] | UnsetType = UNSET  # 12.0 is an integer in JSON Schema


class _TemplateItem(_Contents, gc=False, kw_only=True, rename="camel"):
    uri_template: str


_FILLED_IN: Final[dict[tuple[type, str], Raw]] = {
    (_Tool, "inputSchema"): raw({"type": "object"}),
    (_InputSchema, "type"): raw("object"),
}
"""The values of required members that are missing or null."""

_SCHEMES: Final = re.compile(rf"(?:{SCHEME.pattern}[^\n]*+\n)*+")  # each line is a URI


# Judging.

_decoders: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    m.TOOLS_LIST: msgspec.json.Decoder(list[_Tool]),
    m.RESOURCES_LIST: msgspec.json.Decoder(list[_ResourceItem]),
    m.TEMPLATES_LIST: msgspec.json.Decoder(list[_TemplateItem]),
    m.PROMPTS_LIST: msgspec.json.Decoder(list[_Prompt]),
}
_name_of: Final[dict[str, Callable[[Any], str]]] = {
    m.TOOLS_LIST: attrgetter("name"),
    m.RESOURCES_LIST: attrgetter("uri"),
    m.TEMPLATES_LIST: attrgetter("uri_template"),
    m.PROMPTS_LIST: attrgetter("name"),
}


class Fitting(NamedTuple):
    """A list whose items all fit. `link`: whether any of them links to an app."""

    names: list[str]
    link: bool


def read_fitting(method: str, items: bytes) -> Fitting | None:
    """Return the names of a list if each item fits and has a unique name; None otherwise."""
    try:
        listed = _decoders[method].decode(items)
    except UNREADABLE:
        return None
    names = list(map(_name_of[method], listed))
    if len(set(names)) < len(names):
        return None
    if method == m.RESOURCES_LIST and not _SCHEMES.fullmatch("\n".join((*names, ""))):
        return None
    return Fitting(names, link=method == m.TOOLS_LIST and any(map(_links, listed)))


def _links(tool: _Tool) -> bool:
    meta = tool.meta
    return meta is not UNSET and not meta.ui is meta.older is meta.oldest is UNSET


# Mending.


class _Form:
    """A shape, or the type of a member, analysed once. `members`: by name, with whether each is required."""

    __slots__ = ("decoder", "each", "is_map", "members", "shape")

    def __init__(self, kind: Any) -> None:
        if isinstance(kind, UnionType) and UnsetType in get_args(kind):
            [kind] = [form for form in get_args(kind) if form is not UnsetType]
        self.decoder = msgspec.json.Decoder(kind)
        self.shape = kind
        self.members: dict[str, tuple[_Form, bool]] = {}
        self.each: _Form | None = None
        self.is_map = get_origin(kind) is dict
        if self.is_map or get_origin(kind) is list:
            self.each = _Form(get_args(kind)[-1])
        elif isinstance(kind, type) and issubclass(kind, Struct):
            for member in msgspec.structs.fields(kind):
                self.members[member.encode_name] = _Form(member.type), member.required

    @property
    def is_object(self) -> bool:
        return self.is_map or (isinstance(self.shape, type) and issubclass(self.shape, Struct))


_FORMS: Final = {
    m.TOOLS_LIST: _Form(_Tool),
    m.RESOURCES_LIST: _Form(_ResourceItem),
    m.TEMPLATES_LIST: _Form(_TemplateItem),
    m.PROMPTS_LIST: _Form(_Prompt),
}


def mend_items(method: str, items: Raw) -> tuple[list[str], list[Fields], list[ItemProblem]]:
    """Return the names and members of the items that fit or could be mended, and the problems of all.

    Raises ValueError when `items` is not an array.
    """
    # SDKs read a list as a whole. One tool without an input schema would cost their clients the tools of all
    # servers.
    form, key = _FORMS[method], NAMED_BY[method]
    names: dict[str, None] = {}
    fitting: list[Fields] = []
    problems: list[ItemProblem] = []
    for item in decode_items(items):
        notes: list[str] = []
        mended = _mend(form, item, "", notes)
        fields = members_of(item if mended is None else mended)
        name, fits = text_of(fields.get(key)), mended is not None
        if fits and name in names:
            notes, fits = [REPEATED], False
        elif fits and method == m.RESOURCES_LIST and not SCHEME.match(name or ""):
            notes, fits = [f"`{key}` is no URI: it has no scheme"], False
        if notes:
            problems.append(ItemProblem(name, "; ".join(notes), left_out=not fits))
        if fits and name is not None:
            names[name] = None
            fitting.append(fields)
    return list(names), fitting, some_of(problems)


def some_of(problems: list[ItemProblem], limit: int = PROBLEMS_LIMIT) -> list[ItemProblem]:
    """Return the first of many problems, and one more that counts the others."""
    rest = problems[limit:]
    if not rest:
        return problems
    left_out = any(problem.left_out for problem in rest)
    return [*problems[:limit], ItemProblem(None, f"there are {len(rest)} more of these", left_out)]


def _mend(form: _Form, value: Raw, path: str, notes: list[str]) -> Raw | None:
    """Return the value in a form that fits; None when it cannot be mended. `notes` gets its faults."""
    try:
        form.decoder.decode(value)
        return value
    except UNREADABLE as error:
        fault = str(error)
    noted, mended = len(notes), None
    try:
        if form.is_object:
            mended = _mend_object(form, value, path, notes)
        elif form.each is not None:
            entries = [_mend(form.each, entry, f"{path}[]", notes) for entry in decode_items(value)]
            mended = raw([entry for entry in entries if entry is not None])
    except ValueError:
        pass  # neither an object nor an array
    if mended is None and len(notes) == noted:
        if bytes(value) == b"null":
            _note(notes, f"{_spoken(path)} is null")
        else:
            _note(notes, f"{_spoken(path)}: {fault.partition(' - at ')[0]}"[:NOTE_LIMIT])
    return mended


def _mend_object(form: _Form, value: Raw, path: str, notes: list[str]) -> Raw | None:
    """Mend an object. Raises ValueError when the value is not one."""
    # PHP writes an empty object so.
    if bytes(value).strip() == b"[]":
        _note(notes, f"{_spoken(path)} is an empty array instead of an object")
        value = raw({})
    fields = decode_fields(value)
    if form.each is not None:
        entries = {key: _mend(form.each, entry, f"{path}.*", notes) for key, entry in fields.items()}
        return raw({key: raw({}) if entry is None else entry for key, entry in entries.items()})
    for key, (member, is_required) in form.members.items():
        place = f"{path}.{key}" if path else key
        mended = None
        if key in fields:
            mended = _mend(member, fields[key], place, notes)
            may_fill_in = bytes(fields[key]) == b"null"
        elif is_required:
            _note(notes, f"`{place}` is missing")
            may_fill_in = True
        else:
            continue
        if mended is None and is_required:
            # Only a missing or null value is filled in: one of a wrong type may mean something else.
            if not may_fill_in:
                return None
            if issubclass(form.shape, _Contents) and key == "name":
                mended = fields.get("uri", fields.get("uriTemplate"))
            else:
                mended = _FILLED_IN.get((form.shape, key))
            if mended is None:
                return None
        if mended is None:
            del fields[key]
        else:
            fields[key] = mended
    return raw(fields)


def _note(notes: list[str], text: str) -> None:
    if len(notes) < NOTES_LIMIT:
        notes.append(text)


def _spoken(path: str) -> str:
    return f"`{path}`" if path else "the item"
