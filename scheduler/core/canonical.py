"""The canonical form of the state and its parts: equal parts, and only they, have equal bytes.

What a later release adds to a record, such as a job, does not change the form of a record that has
nothing of it: a state has the form, and so the hash, that it had before.
"""

import hashlib
from typing import Any

import orjson

from scheduler.core.standing import standing_document
from scheduler.core.state import ClusterState


def canonical(document: dict[str, Any]) -> bytes:
    """Write a part of the state that was read from JSON in the canonical form."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def recorded(record: Any) -> dict[str, Any]:
    """Give a record of a table as JSON has it in the canonical form."""
    document: dict[str, Any] = orjson.loads(orjson.dumps(record))
    leave_out(document)
    return document


def leave_out(record: dict[str, Any]) -> None:
    """Leave out of a record what its canonical form does not have."""
    for name in ("metrics", "deadline_said_s", "unsure_gpus"):
        if record.get(name, record) is None:
            del record[name]


def state_to_json(state: ClusterState) -> bytes:
    """Write the state in its one canonical form."""
    return canonical(document_of(state))


def document_of(state: ClusterState) -> dict[str, Any]:
    """Give the state as JSON has it; what no request left standing is left out."""
    document: dict[str, Any] = orjson.loads(orjson.dumps(state))
    for job in document["jobs"].values():
        leave_out(job)
    standing = standing_document(state.standing)
    document["standing"] = standing
    if not standing:
        del document["standing"]
    return document


def state_hash(state: ClusterState) -> str:
    """SHA-256 of the canonical form; equal states, and only they, have equal hashes."""
    return hashlib.sha256(state_to_json(state)).hexdigest()
