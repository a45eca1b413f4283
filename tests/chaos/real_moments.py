"""Moments in the life of a gang, found from its files alone: what is happening now, and where."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.real_fleet import AGENTS, CLOUD, RealFleet

#: What a gang, or the owner's node, may be in the middle of.
PHASES = (
    "starting",  # workers that have not said a step
    "training",
    "checkpointing",  # a checkpoint half written by the job
    "uploading",  # a checkpoint half in the store
    "resizing",  # workers that leave for another size
    "leaving",  # workers that leave for good: a migration at its source
    "fetching",  # a checkpoint half here: a migration at its target
    "reclaiming",  # the owner is coming back to its node
)


@dataclass(frozen=True, slots=True)
class Moment:
    """Something under way at an agent."""

    phase: str
    agent: str
    job: str = ""
    run: Path | None = None  #: The run folder, of a gang whose supervisor lives or begins.


def moments(fleet: RealFleet) -> Iterator[Moment]:
    """Give what is under way now, each as it is at the look."""
    for agent in AGENTS:
        for folder in sorted(fleet.runs(agent).glob("*")):
            epochs = [int(one.name) for one in folder.glob("*") if one.name.isdecimal()]
            if any((folder / "fetched").glob(".fetching-*")):
                yield Moment("fetching", agent, folder.name)
            if epochs:
                yield from _of_run(fleet, agent, folder / str(max(epochs)))
    pending: dict[str, str] = {}
    for row in effects(fleet, CLOUD):
        if row["effect"] in ("hand_back", "owned"):
            pending[row["node"]] = row["effect"]
    if "hand_back" in pending.values():
        yield Moment("reclaiming", CLOUD)


def effects(fleet: RealFleet, agent: str) -> list[dict[str, Any]]:
    """Read what the agent says that it did; a line torn by a crash is nothing."""
    file = fleet.effects_file(agent)
    found = []
    for line in file.read_bytes().splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def gpus_of(fleet: RealFleet, moment: Moment) -> int:
    """Count the GPUs of the moment's gang."""
    epoch = int(moment.run.name) if moment.run is not None else 0
    return sum(
        len(row["gpus"])
        for row in effects(fleet, moment.agent)
        if row["effect"] in ("start", "scale") and (row["job"], row["epoch"]) == (moment.job, epoch)
    )


def supervisor(run: Path) -> tuple[int, list[int]] | None:
    """Give the pids of a run's supervisor and of its workers; None if it did not say them."""
    said = _read(run / "shim.json")
    return None if said is None else (said["pid"], [row[1] for row in said["workers"]])


def _of_run(fleet: RealFleet, agent: str, run: Path) -> Iterator[Moment]:
    job = run.parent.name
    for stored in (fleet.store / job).glob(f"{run.name}-*"):
        if not (stored / "manifest.json").exists():
            yield Moment("uploading", agent, job, run)
            break
    if (run / "exit.json").exists() or not _may_live(run):
        return
    asked = _read(run / "stop.json")
    if asked is not None:
        yield Moment("resizing" if asked["why"] == "scale" else "leaving", agent, job, run)
    elif not _size(run / "progress.jsonl"):
        yield Moment("starting", agent, job, run)
    elif any((run / "checkpoints").glob(".step-*")):
        yield Moment("checkpointing", agent, job, run)
    else:
        yield Moment("training", agent, job, run)


def _may_live(run: Path) -> bool:
    """Whether the run's supervisor lives, or has not begun: dead, it never says that it ended."""
    said = supervisor(run)
    try:
        return said is None or bytes(run) in Path(f"/proc/{said[0]}/environ").read_bytes()
    except OSError:
        return False


def _size(file: Path) -> int:
    """Give how large a file is; 0 if it is not there, or leaves with its run at this moment."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _read(file: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(file.read_bytes()))
    except (OSError, ValueError):
        return None
