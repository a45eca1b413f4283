"""Inference load from a trace of LLM requests, as Azure publishes them.

The file has a header `TIMESTAMP,ContextTokens,GeneratedTokens` and a line per request (Splitwise,
ISCA '24; AzurePublicDataset). A GPU is taken to serve a few requests side by side, each at even
speeds for reading and writing tokens; the load is the mean number of GPUs that are busy so.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from scheduler.policies.interface import Floats
from simulator.csv_rows import WorkloadError, rows_of
from simulator.pools import Load

_COLUMNS = ("timestamp", "contexttokens", "generatedtokens")
_TOKENS_MOST = 10_000_000
#: From the first request to the last; a slip in one date would ask for memory without end.
_DAYS_MOST = 366
#: Seven digits of a second are published, one more than a `datetime` has.
_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?(?:Z|[+]00:00)?"
)


@dataclass(frozen=True, slots=True)
class Serving:
    """What a serving GPU does; made-up round figures of a mid-sized model."""

    context_tokens_per_s: float = 8000.0  #: of one request, while it is read.
    generated_tokens_per_s: float = 30.0  #: of one request, while it is written.
    side_by_side: int = 16  #: requests at once on one GPU.


def load_of_requests(path: Path, serving: Serving | None = None, slot_s: float = 60.0) -> Load:
    """Read a trace into the GPUs that its requests keep busy; the first request is at 0.

    For a larger or longer service use `Load.scaled` and `repeated`.

    Raises:
        WorkloadError: The file cannot be used.
    """
    serving = serving or Serving()
    at_s, busy_s = _requests(path, serving)
    begins: Floats = at_s - at_s[0]
    ends: Floats = np.sort(begins + busy_s)
    edges: Floats = slot_s * np.arange(int(ends[-1] // slot_s) + 2, dtype=np.float64)
    # Busy time until each edge: since they began, but for what was after they ended.
    until: Floats = _area(begins, edges) - _area(ends, edges)
    return Load(np.maximum(np.diff(until), 0.0) / slot_s / serving.side_by_side, slot_s)


def _area(moments: Floats, edges: Floats) -> Floats:
    """Return, at each edge, the sum of the times since those (sorted) moments before it."""
    count = np.searchsorted(moments, edges)
    total = np.concatenate(([0.0], np.cumsum(moments)))
    area: Floats = count * edges - total[count]
    return area


def _requests(path: Path, serving: Serving) -> tuple[Floats, Floats]:
    """Return when each request comes, ascending, and for how long it is served."""
    found = []
    for row in rows_of(path, _COLUMNS):
        begins_s = _moment(row.text("timestamp"))
        if begins_s is None:
            row.bad("timestamp", "is no time like 2023-11-16 18:17:03.9799600")
        read_s = row.integer("contexttokens", 0, _TOKENS_MOST) / serving.context_tokens_per_s
        generated = row.integer("generatedtokens", 0, _TOKENS_MOST)
        busy_s = read_s + generated / serving.generated_tokens_per_s
        found.append((begins_s or 0.0, busy_s, row.line))
    found.sort()
    (first_s, _, first), (last_s, _, last) = found[0], found[-1]
    if last_s - first_s > _DAYS_MOST * 86_400.0:
        raise WorkloadError(
            f"{path}: its requests span more than {_DAYS_MOST} days; the first is on line {first}, "
            f"the last on line {last}."
        )
    ordered = np.array(found)
    return ordered[:, 0], ordered[:, 1]


def _moment(text: str) -> float | None:
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(found[1])
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC).timestamp() + float(found[2] or 0.0)
