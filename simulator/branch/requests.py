"""Requests that operators make at the entry of a branch, from verbs as JSON."""

from typing import Annotated

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from scheduler.core.rights import MAY
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Cause, Requested
from schemas.codec import encode, request as enveloped
from schemas.parse import first_error, shown
from schemas.requests import VERB_NAMES, ReadLog, Request, SubmitJob, VerbData
from simulator.branch.origin import BranchError

_VERB: TypeAdapter[VerbData] = TypeAdapter(Annotated[VerbData, Field(discriminator="verb")])
#: Arguments of verbs that are moments. In a branch they count from the entry.
_MOMENTS = ("by_s", "until_s")
_LIFE_S = 60.0


def verb_of(text: str) -> VerbData:
    """Read a verb of `schemas.requests`, whose moments count from the entry.

    Args:
        text: JSON, such as `{"verb": "node.drain", "node": "node-000", "by_s": 1800}`.

    Raises:
        BranchError: it is no verb, or none that a branch can take.
    """
    try:
        verb = _VERB.validate_json(text)
    except ValidationError as error:
        wrong = first_error(error)
        if named := _unknown_verb(text):
            raise BranchError("requests", named) from error
        where = f"{wrong.field}: " if wrong.field else ""
        raise BranchError("requests", f"{where}{wrong.reason}") from error
    if isinstance(verb, (SubmitJob, ReadLog)):
        raise BranchError("requests", f"{verb.verb} is not for a branch; name another verb")
    return verb


def _unknown_verb(text: str) -> str | None:
    """Say which verbs there are, if what is asked for is none: the check would name one of them."""
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    verb = said.get("verb") if isinstance(said, dict) else said
    if isinstance(verb, str) and verb in VERB_NAMES:
        return None
    there = ", ".join(VERB_NAMES)
    return f'{shown(verb)} is no verb; write {{"verb": "node.drain", ...}}; there are {there}'


def relative(verb: VerbData, now_s: float) -> VerbData:
    """Give a verb whose moments count from now, of one that has them since the Unix epoch."""
    moments = {name: getattr(verb, name, None) for name in _MOMENTS}
    return verb.model_copy(
        update={name: at_s - now_s for name, at_s in moments.items() if at_s is not None}
    )


def requested(verb: VerbData, number: int, state: ClusterState) -> tuple[Requested, Cause]:
    """Make the request of a verb, asked now in the least role that may ask for it.

    Args:
        verb: What is asked for.
        number: Tells it from others that are asked in one branch.
        state: Of the engine.
    """
    now_s = state.now_s
    moments = {name: getattr(verb, name, None) for name in _MOMENTS}
    known = {name: now_s + at_s for name, at_s in moments.items() if at_s is not None}
    said = Request(
        id=f"branch-{state.number}-{number}",
        args=verb.model_copy(update=known),
        subject="branch",
        role="operator" if "operator" in MAY[verb.verb] else "admin",
        asked_s=now_s,
        expires_s=now_s + _LIFE_S,
        cell=state.cell,
    )
    source = f"/operators/{said.id}"
    raw = encode(enveloped(said, source=source)).decode()
    return Requested(raw=raw, request=said), Cause(source, 0, 0, now_s)
