"""That nobody takes a gang for ended that runs: by what runs on the GPUs, and by the journal.

A job whose gang was given up too soon comes to no harm if the gang is told to stop before the job
starts again: what runs does not show it. Time does not, either, since little passes in between, so
what comes first is told by how many entries the journal had.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from bus.contract import Record
from tests.chaos.ledger import read_entry
from tests.chaos.owners import NEVER, Effect, tenures

#: A GPU of a node, and a job.
_Place = tuple[str, int, str]


def given_up(journal: Sequence[Record], effects: Iterable[Effect]) -> Iterator[str]:
    """Find gangs that run and that the journal takes for ended.

    It does if it has their GPUs for free, or begins another gang of the job. Those of a lost node
    nobody gets; they are free once it has joined again, unless it is noted with that what runs.

    Args:
        journal: The record of decisions, of which nothing was lost.
        effects: What was done to the GPUs, with how many entries the journal had then.
    """
    known, begun = _read(journal)
    for one in tenures([replace(one, at_s=float(one.entries)) for one in effects], {}):
        who = f"{one.job} epoch {one.epoch} on {one.node} GPU {one.gpu}"
        at = [until for since, until in known[one.node, one.gpu, one.job] if since < one.from_s]
        if (until := max(at, default=-1)) < one.to_s:
            yield f"{who}: given up by entry {until:.0f}, ended before entry {one.to_s:.0f}"
        for number, epoch in begun[one.job]:
            if one.from_s <= number < one.to_s:
                yield f"{who}: epoch {epoch} is begun by entry {number} while it runs"


def _read(
    journal: Sequence[Record],
) -> tuple[dict[_Place, list[tuple[int, float]]], dict[str, list[tuple[int, int]]]]:
    """Give which entries gave GPUs to jobs and took them, and which began gangs, with the epoch."""
    known: dict[_Place, list[tuple[int, float]]] = defaultdict(list)
    begun: dict[str, list[tuple[int, int]]] = defaultdict(list)
    since: dict[_Place, int] = {}
    lost: dict[str, dict[_Place, tuple[int, int]]] = defaultdict(dict)
    for number, record in enumerate(journal):
        taken: dict[_Place, int] = {}
        joined: dict[_Place, tuple[int, int]] = {}
        for name, fields in read_entry(record.value or b"").facts:
            if name == "GangStarting":
                begun[fields["job"]].append((number, fields["epoch"]))
            if name in ("GangStarting", "GangScaling"):
                for node, gpus in fields["allocation"].items():
                    for gpu in gpus:
                        since.setdefault((node, gpu, fields["job"]), number)
            elif name == "GpusReleased":
                for place in ((fields["node"], gpu, fields["job"]) for gpu in fields["gpus"]):
                    taken[place] = since.pop(place, number)
            elif name == "StrayFound":
                for place in ((fields["node"], gpu, fields["job"]) for gpu in fields["gpus"]):
                    was, _ = joined.pop(place, (number, number))
                    since[place] = taken.pop(place, was)  # the same decision took it
            elif name == "NodeLost":
                for place in [one for one in taken if one[0] == fields["node"]]:
                    lost[place[0]][place] = taken.pop(place), number
            elif name == "NodeJoined":
                joined |= lost.pop(fields["node"], {})
        for place, first in taken.items():
            known[place].append((first, number))
        for place, (first, last) in joined.items():
            known[place].append((first, last))
    for places in lost.values():
        for place, (first, last) in places.items():
            known[place].append((first, last))
    for place, first in since.items():
        known[place].append((first, NEVER))
    return known, begun
