"""A policy and its options as one line of text: `tide:patience_s=7200:loans.cool_down_s=300`.

    NAME[:OPTION=VALUE]...      OPTION is a field of the policy, or FIELD.FIELD of its parts
    value                       a number, a word, true or false, none; JSON for lists and tables

The journal records this line, so that a replay decides as the options said.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import orjson
from pydantic import TypeAdapter, ValidationError

from scheduler.policies.interface import Policy
from scheduler.policies.ranges import LEAST, MOST, out_of_range


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


def with_options(make: Callable[[], Policy], options: Sequence[str]) -> Policy:
    """Make a policy, with options as `OPTION=VALUE`.

    Raises:
        ValueError: an option is not there or cannot have this value; the message names it.
    """
    policy = make()
    if not options:
        return policy
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
        at[last] = _read(path, value.strip())
    made: Policy = _changed(policy, given, "")
    return made


def _read(path: str, value: str) -> object:
    if value[:1] in ("[", "{"):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"{path}: {error}") from None
    return None if value == "none" else value


def _changed(before: Any, given: dict[str, Any], path: str) -> Any:
    """Give a dataclass with these fields changed; tables change the fields of its parts."""
    kinds = get_type_hints(type(before), include_extras=True)
    able = [one.name for one in dataclasses.fields(before) if one.name != "name" and one.init]
    new: dict[str, Any] = {}
    renamed: Mapping[str, str] = getattr(before, "RENAMED", {})
    for said, value in given.items():
        name = renamed.get(said, said)
        if name != said and name in given:
            raise ValueError(f"{path}{said}: is now called {name}, which is given, too")
        full = f"{path}{name}"
        if name not in able:
            raise ValueError(f"{full}: is no option; there are {', '.join(able) or 'none'}")
        present = getattr(before, name)
        if isinstance(value, dict) and (part := _part(present, kinds[name])) is not None:
            new[name] = _changed(part, value, f"{full}.")
            continue
        try:
            new[name] = TypeAdapter(kinds[name]).validate_python(value)
            if (
                isinstance(new[name], float)
                and not math.isfinite(new[name])
                and new[name] != present
            ):
                raise ValueError(f"{full}: must be a finite number, got {value!r}")
            no_range = get_origin(kinds[name]) is not Annotated
            if no_range and new[name] != present and out_of_range(new[name]):
                raise ValueError(f"{full}: must be from {LEAST:g} to {MOST:g}, got {value!r}")
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ValueError(f"{full}: {reason[:1].lower()}{reason[1:]}, got {value!r}") from None
    try:
        return dataclasses.replace(before, **new)
    except ValueError as error:
        raise ValueError(f"{path}{error}") from None


def _part(present: object, kind: Any) -> object | None:
    """Give the part whose fields are meant; one that is switched off begins with its defaults."""
    if dataclasses.is_dataclass(present) and not isinstance(present, type):
        return present
    choices = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    for one in choices:
        if dataclasses.is_dataclass(one) and isinstance(one, type):
            made: object = one()
            return made
    return None
