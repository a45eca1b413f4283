"""Stimuli, facts and decisions as they stand in the journal, and back.

Facts and reasons are written as `[name, fields]`; the bytes of a decision are canonical, so that
two decisions are equal exactly when their bytes are.
"""

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from scheduler.core.facts import FACTS, JobExplained
from scheduler.core.stimuli import INPUTS, Cause, Decision, Stimulus
from schemas.programs import TAKEN
from schemas.values import Strict


def _reader(kind: type[Any]) -> Callable[[dict[str, Any]], Any]:
    if issubclass(kind, Strict):
        read = kind.__pydantic_validator__.validate_python
        return lambda fields: read(fields, context=TAKEN)
    return lambda fields: kind(**fields)


#: By kind of stimulus, what makes it of its fields.
_READERS = {name: _reader(kind) for name, kind in INPUTS.items()}


class UnknownRecord(Exception):
    """The journal holds a kind of stimulus or fact that this version does not know."""


def stimulus_to_dict(stimulus: Stimulus) -> dict[str, Any]:
    """Write a stimulus."""
    data = stimulus.data
    cause = stimulus.cause
    return {
        "kind": type(data).__name__,
        "at_s": stimulus.at_s,
        "cause": [cause.source, cause.bootid, cause.sequence, cause.said_s],
        # orjson writes dataclasses itself.
        "data": data.model_dump() if isinstance(data, Strict) else data,
    }


def stimulus_from_dict(document: Mapping[str, Any]) -> Stimulus:
    """Read a stimulus.

    Raises:
        UnknownRecord: its kind is not known here.
    """
    read = _READERS.get(document["kind"])
    if read is None:
        raise UnknownRecord(
            f"stimulus {document['kind']!r} was written by a newer Tidegate; upgrade to read it"
        )
    return Stimulus(float(document["at_s"]), read(document["data"]), Cause(*document["cause"]))


def decision_to_dict(decision: Decision) -> dict[str, Any]:
    """Write a decision; a command's content is in the fact that it was issued."""
    return {
        # Most are of the one kind, and orjson writes a dict in half the time.
        "facts": [
            ["JobExplained", {"job": fact.job, "reason": fact.reason}]
            if type(fact) is JobExplained
            else [type(fact).__name__, fact]
            for fact in decision.facts
        ],
        "commands": [[command.id, command.agent] for command in decision.commands],
        "reasons": decision.reasons,
        "wake_s": decision.wake_s,
    }


def decision_bytes(document: Mapping[str, Any]) -> bytes:
    """Give the canonical bytes of a written decision, fresh or read back."""
    # Through JSON first: the fields of dataclasses are not sorted, those of objects are.
    plain = orjson.loads(orjson.dumps(document))
    return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)


def facts_from_dict(document: Mapping[str, Any]) -> list[Any]:
    """Read the facts of a written decision.

    Raises:
        UnknownRecord: a fact's kind is not known here.
    """
    found = []
    for name, fields in document["facts"]:
        kind = FACTS.get(name)
        if kind is None:
            raise UnknownRecord(
                f"fact {name!r} was written by a newer Tidegate; upgrade to read it"
            )
        found.append(kind(**fields))
    return found
