"""What was written before, brought up to date: one table of pure steps, applied before validation.

A step takes the data of one old type and gives the next type with its data. Steps chain, so each
version needs only the step to the next. What was once written stays readable for good.
"""

from collections.abc import Callable, Mapping
from typing import Any

#: One step: the old data (not yet validated) to the newer type and its data.
Step = Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]

#: By old type, the step to its successor. Empty while every type is at its first version.
UPCASTERS: Mapping[str, Step] = {}

#: In entries of the journal before version 2: facts whose GPUs by node were called `cells`.
_WITH_CELLS = ("GangScaling", "GangStarting", "TargetSet")


class CannotUpcast(ValueError):
    """Old data lacks what the step to the next version needs."""


def upcast(
    type_name: str, data: dict[str, Any], table: Mapping[str, Step] = UPCASTERS
) -> tuple[str, dict[str, Any]]:
    """Bring data to the newest type that the table leads to; a type not in it stays as it is.

    Args:
        type_name: Wire type of the data, such as `tidegate.node.died.v0`.
        data: The payload as read; it is not changed.
        table: The steps.

    Returns:
        The newest type, and the data in its form (still to be validated).

    Raises:
        CannotUpcast: A step failed on this data, or the table goes in a circle.
    """
    for _ in range(len(table) + 1):
        step = table.get(type_name)
        if step is None:
            return type_name, data
        try:
            type_name, data = step(dict(data))
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise CannotUpcast(
                f"{type_name} could not be brought up to date: {type(error).__name__} {error}"
            ) from error
    raise CannotUpcast(f"{type_name}: the upcasters go in a circle; correct the table")


def upcast_decision(version: int, decision: dict[str, Any]) -> dict[str, Any]:
    """Bring a decision that an entry of the journal holds to the newest version.

    Args:
        version: That of the entry.
        decision: As read; it is not changed.

    Raises:
        CannotUpcast: it is not what a release of that version wrote.
    """
    if version > 1:
        return decision
    try:
        facts = [
            [kind, renamed(fields, "cells", "allocation") if kind in _WITH_CELLS else fields]
            for kind, fields in decision["facts"]
        ]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CannotUpcast(
            f"its decision cannot be brought up to date: {type(error).__name__} {error}"
        ) from error
    return {**decision, "facts": facts}


def renamed(fields: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """Give the same fields in the same order, one of them under its new name."""
    return {new if name == old else name: value for name, value in fields.items()}
