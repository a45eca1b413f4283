"""What options are made of: bounded numbers, names, paths, and a base that knows its keys."""

import dataclasses
from pathlib import Path
from typing import Annotated, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

from schemas.values import Name

Seconds = Annotated[float, Field(gt=0.0, lt=1e9)]
#: Seconds, perhaps none.
Delay = Annotated[float, Field(ge=0.0, lt=1e9)]
Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0.0)]
#: A share of one, below all of it.
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
#: The most that a log file may hold.
LogBytes = Annotated[int, Field(ge=1024)]


def listed(value: object) -> object:
    """Split a text at its commas; give anything else as it is."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError(f"{path} is not an absolute path")
    return path


#: A list of names; in flags and in the environment also `a,b,c`.
Names = Annotated[tuple[Name, ...], BeforeValidator(listed)]
AbsolutePath = Annotated[Path, AfterValidator(_absolute)]


#: The configuration of a pydantic dataclass of options: as of a `Section`.
CHECKED = ConfigDict(extra="forbid", allow_inf_nan=False)


class Section(BaseModel):
    """Base of all sections of a configuration, and of options: an unknown key is an error."""

    model_config = CHECKED | ConfigDict(frozen=True, arbitrary_types_allowed=True)

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth(cls, value: object, info: ValidationInfo) -> object:
        """Refuse `true` where a number is meant: pydantic takes it for 1."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and not _may_be_true(kind):
            raise ValueError(f"is {str(value).lower()}, which is none of its values")
        if isinstance(value, dict):
            for name, part in _parts(kind).items():
                said = value.get(name)
                if isinstance(said, bool) and not _may_be_true(part):
                    what = f"{name}: is {str(said).lower()}"
                    raise ValueError(f"{what}, which is none of its values")
        return value


def _parts(kind: object) -> dict[str, object]:
    """Give the types of the fields of a dataclass of options, which sees to no `true` itself."""
    for one in (kind, *get_args(kind)):
        if isinstance(one, type) and dataclasses.is_dataclass(one):
            return {field.name: field.type for field in dataclasses.fields(one)}
    return {}


def _may_be_true(kind: object) -> bool:
    return bool in (kind, *get_args(kind))
