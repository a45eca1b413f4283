"""What the keys of all sections are made of."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from schemas.values import Name

Seconds = Annotated[float, Field(gt=0.0, lt=1e9)]
Count = Annotated[int, Field(ge=1)]


def _listed(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


#: A list of names; in flags and in the environment also `a,b,c`.
Names = Annotated[tuple[Name, ...], BeforeValidator(_listed)]


class Section(BaseModel):
    """Base of all sections: a key that is not known is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
