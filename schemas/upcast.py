"""What the journal and snapshots held before, brought to the form of now, before validation.

What was once written stays readable for good.
"""

from typing import Any

#: In entries of the journal before version 2: facts whose GPUs by node were called `cells`.
_WITH_CELLS = ("GangScaling", "GangStarting", "TargetSet")


class CannotUpcast(ValueError):
    """Old data lacks what the step to the next version needs."""


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
