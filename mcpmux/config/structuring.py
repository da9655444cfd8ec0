"""From parsed tables to attrs values with cattrs, and from its exception groups to mistakes with key paths.

It is stricter than cattrs: nothing is coerced, text is not a list, and an unknown key is a mistake.
Environment variables are expanded in the values that are read, and nowhere else.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import attrs
from cattrs import (
    AttributeValidationNote,
    BaseValidationError,
    Converter,
    ForbiddenExtraKeysError,
    IterableValidationError,
    IterableValidationNote,
)
from cattrs.gen import make_dict_structure_fn

from mcpmux.config.expansion import expand
from mcpmux.config.listener import SHORT_FORMS
from mcpmux.config.report import KeyPath, Report, Unfit, suggest, unfit
from mcpmux.config.scalars import Scalar

T = TypeVar("T")
Hook = Callable[[Any, Any], Any]


def _is_list(type_: Any) -> bool:
    return get_origin(type_) is tuple


def _is_mapping(type_: Any) -> bool:
    return get_origin(type_) is collections.abc.Mapping


def find_scalar(type_: Any) -> Scalar | None:
    """The scalar in an `Annotated` type, or None."""
    metadata = type_.__metadata__ if get_origin(type_) is Annotated else ()
    return next((item for item in metadata if isinstance(item, Scalar)), None)


def find_optional(type_: Any) -> Any:
    """`X` for the type `X | None`, else None."""
    if get_origin(type_) not in (Union, UnionType) or NoneType not in get_args(type_):
        return None
    (inner,) = (arg for arg in get_args(type_) if arg is not NoneType)
    return inner


def make_converter(environ: Mapping[str, str]) -> Converter:
    """The converter for all classes of the configuration. `environ` has the variables for `${VAR}`."""
    converter = Converter(detailed_validation=True)
    register = converter.register_structure_hook_factory
    register(attrs.has, lambda cls: _table_hook(cls, converter))
    register(lambda type_: type_ in SHORT_FORMS, lambda cls: _listener_hook(cls, converter, environ))
    register(_is_list, lambda type_: _list_hook(type_, converter))
    register(_is_mapping, lambda type_: _mapping_hook(type_, converter))
    # Optional means that the key may be absent. null is not a value of any key.
    register(
        lambda type_: find_optional(type_) is not None,
        lambda type_: converter.get_structure_hook(find_optional(type_)),
    )
    register(lambda type_: find_scalar(type_) is not None, lambda type_: _scalar_hook(type_, environ))
    return converter


def _scalar_hook(type_: Any, environ: Mapping[str, str]) -> Hook:
    scalar = find_scalar(type_)
    assert scalar is not None

    def hook(value: Any, _: Any) -> Any:
        return scalar.read(expand(value, environ) if isinstance(value, str) else value)

    return hook


def _table_hook(cls: type, converter: Converter) -> Hook:
    ignored: Collection[str] = getattr(cls, "ignored_keys", ())
    structure_known: Hook | None = None  # made at the first such table, as most files have few kinds

    def hook(value: Any, _: Any) -> Any:
        nonlocal structure_known
        if not isinstance(value, Mapping):
            raise unfit("a table", value)
        if structure_known is None:
            structure_known = make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=True)
        return structure_known({key: value[key] for key in value if key not in ignored}, cls)

    return hook


def _listener_hook(cls: type, converter: Converter, environ: Mapping[str, str]) -> Hook:
    structure_table = _table_hook(cls, converter)
    _, parse = SHORT_FORMS[cls]

    def hook(value: Any, type_: Any) -> Any:
        if isinstance(value, str):
            return parse(expand(value, environ))
        return structure_table(value, type_)

    return hook


def _list_hook(type_: Any, converter: Converter) -> Hook:
    item_type = get_args(type_)[0]
    structure_item = converter.get_structure_hook(item_type)

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, list):
            raise unfit("a list", value)
        return tuple(_gather(enumerate(value), lambda _, item: structure_item(item, item_type), type_))

    return hook


def _mapping_hook(type_: Any, converter: Converter) -> Hook:
    key_type, value_type = get_args(type_)
    structure_key = converter.get_structure_hook(key_type)
    structure_value = converter.get_structure_hook(value_type)

    def structure_pair(key: Any, value: Any) -> tuple[Any, Any]:
        return structure_key(key, key_type), structure_value(value, value_type)

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, Mapping):
            raise unfit("a table", value)
        return dict(_gather(value.items(), structure_pair, type_))

    return hook


def _gather(items: Iterable[tuple[Any, Any]], structure_item: Callable[[Any, Any], T], type_: Any) -> list[T]:
    """Structure every item. Raises one group with all exceptions, each noted with its index or key."""
    done: list[T] = []
    errors: list[Exception] = []
    for index, item in items:
        try:
            done.append(structure_item(index, item))
        except (Unfit, BaseValidationError) as error:
            error.add_note(IterableValidationNote("", index, type_))
            errors.append(error)
    if errors:
        raise IterableValidationError("", errors, type_)
    return done


def structure(
    converter: Converter,
    raw: object,
    cls: type[T],
    path: KeyPath,
    report: Report,
    also_known: Collection[str] = (),
) -> T | None:
    """The value of class `cls` for `raw`, which is at `path`. Returns None if `report` got mistakes.

    `also_known`: keys that are read elsewhere, for suggestions.
    """
    try:
        return converter.structure(raw, cls)
    except (Unfit, BaseValidationError) as error:
        for inner_path, text in _find_mistakes(error, also_known):
            report.add(path + inner_path, text)
    return None


def _find_mistakes(error: BaseException, also_known: Collection[str]) -> Iterator[tuple[KeyPath, str]]:
    """Yields every mistake in a tree of cattrs errors, with its path below the structured value."""
    step = _step_of(error)
    if isinstance(error, BaseValidationError):
        for inner in error.exceptions:
            for path, text in _find_mistakes(inner, also_known if not step else ()):
                yield step + path, text
    elif isinstance(error, ForbiddenExtraKeysError):
        known = {attribute.name for attribute in attrs.fields(error.cl)} | set(also_known)
        for key in sorted(error.extra_fields):
            yield (*step, key), suggest(key, known)
    elif isinstance(error, KeyError):
        yield step, "expected a value, the key is missing"
    elif isinstance(error, Unfit):
        yield step, str(error)
    else:
        raise error


def _step_of(error: BaseException) -> KeyPath:
    """The key or index of the value that `error` is about, from the notes of cattrs."""
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, AttributeValidationNote):
            return (note.name,)
        if isinstance(note, IterableValidationNote):
            return (note.index,)
    return ()
