"""The canonical form of parts of the state: equal parts, and only they, have equal bytes.

What a later release adds to a record, such as a job, does not change the form of a record that has
nothing of it: a state has the form, and so the hash, that it had before.
"""

from typing import Any

import orjson


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
