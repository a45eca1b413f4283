"""Records of gangs in files: dataclasses as JSON, read back by their own types."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from schemas.parse import first_error

Record = TypeVar("Record")
#: By type, how it is written and read; made once.
_form: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def to_json(record: object) -> dict[str, Any]:
    """Give a record as JSON can hold it."""
    said: dict[str, Any] = _form(type(record)).dump_python(record, mode="json")
    return said


def from_json(kind: type[Record], said: Mapping[str, Any]) -> Record:
    """Read what `to_json` gave; keys that are none of its fields are left out.

    Raises:
        ValueError: it is something else.
    """
    try:
        read: Record = _form(kind).validate_json(json.dumps(said), strict=True)
    except ValidationError as error:
        wrong = first_error(error)
        raise ValueError(f"not one of this release: {wrong.field} {wrong.reason}") from None
    return read
