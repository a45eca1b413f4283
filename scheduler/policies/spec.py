"""A policy and its options, as a table of a configuration or as one line of text.

    {name = "tide", patience_s = 7200, loans = {cool_down_s = 300}}
    tide:patience_s=7200:loans.cool_down_s=300

    NAME[:OPTION=VALUE]...      OPTION is a field of the policy, or FIELD.FIELD of its parts
    value                       a number, a word, true or false, none; JSON for lists and tables

The journal records the line, so that a replay decides as the options said. The types of a policy's
fields say what its options may be: pydantic holds what is given to them.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

if TYPE_CHECKING:  # who reads a configuration does without numpy
    from scheduler.policies.interface import Policy

#: Of the policy and of all its parts.
_CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False)
#: What a name in a line may be made of; a table with other names is written as JSON.
_PLAIN = re.compile(r"[\w-]+")


def split(text: str, separator: str) -> list[str]:
    """Split at separators that are not within brackets or quotes."""
    parts, depth, quoted = [""], 0, False
    for sign in text:
        quoted ^= sign == '"'
        depth += 0 if quoted else (sign in "[{") - (sign in "]}")
        if sign == separator and depth <= 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


def line_of(table: Mapping[str, Any]) -> str:
    """Write a table as a line.

    Raises:
        ValueError: it has no name.
    """
    if not isinstance(table.get("name"), str):
        raise ValueError('name: is missing; give the name of the policy, as in name = "tide"')
    return ":".join([table["name"], *_written({**table, "name": None}, "")])


def _written(table: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, dict) and value and all(map(_PLAIN.fullmatch, value)):
            yield from _written(value, f"{path}{name}.")
        elif value is not None:
            text = value if isinstance(value, str) else orjson.dumps(value).decode()
            yield f"{path}{name}={text}"


def with_options(make: "Callable[[], Policy]", options: Sequence[str]) -> "Policy":
    """Make a policy, with options as `OPTION=VALUE`.

    Raises:
        ValueError: an option is not there or cannot have this value; the message names it.
    """
    policy = make()
    if not options:
        return policy
    try:
        made: Policy = _adapter(type(policy)).validate_python(_read(options))
    except ValidationError as error:
        raise ValueError(_sentence(error.errors(include_url=False)[0], policy)) from None
    return made


@cache  # a policy is made anew by each leader and each replay; this takes most of that
def _adapter(kind: Any) -> TypeAdapter[Any]:
    # `| None`, since pydantic refuses a config from outside for a dataclass alone.
    return TypeAdapter(kind | None, config=_CONFIG)


def _read(options: Sequence[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for option in options:
        path, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"{option!r} is no option; write OPTION=VALUE")
        at = given
        *above, last = path.strip().split(".")
        for name in above:
            at = at.setdefault(name, {})
            if not isinstance(at, dict):
                raise ValueError(f"{path}: {name} is given as a whole, too")
        if last in at:
            raise ValueError(f"{path}: is given twice")
        at[last] = _value(path, value.strip())
    if "name" in given:
        raise ValueError("name: is no option; the line begins with it")
    return given


def _value(path: str, value: str) -> object:
    if value[:1] in ("[", "{"):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"{path}: {error}") from None
    return None if value == "none" else value


def _sentence(error: ErrorDetails, policy: Any) -> str:
    path, reason = ".".join(map(str, error["loc"])), error["msg"]
    if error["type"] == "unexpected_keyword_argument":
        part = policy
        for name in error["loc"][:-1]:
            part = getattr(part, str(name), None)
        able = fields(part) if is_dataclass(part) else ()
        names = ", ".join(one.name for one in able if one.name != "name")
        return f"{path}: is no option; there are {names or 'none'}"
    if error["type"] == "value_error":  # of the part as a whole: the message names the field
        return f"{path}.{reason.removeprefix('Value error, ')}".removeprefix(".")
    got = "none" if error["input"] is None else repr(error["input"])
    return f"{path}: {reason[:1].lower()}{reason[1:]}, got {got}"
