"""What became of a demonstration: of the job, of the GPUs, and of the owners' requests."""

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from load import Load, Served

from runtime.executors.environment import machine_environment

TIDEGATE = [sys.executable, "-m", "console.main"]


@dataclass(frozen=True)
class Reclaim:
    """A node on its way back to its owner; moments in seconds since the Unix epoch."""

    node: str
    since_s: float
    due_s: float  #: when the owner was expected to need it.
    until_s: float  #: when the owner had it; infinite if it never came back.

    @property
    def is_late(self) -> bool:
        return self.until_s > self.due_s


def tidegate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TIDEGATE, *arguments], capture_output=True, text=True, check=False)


def reclaims(facts: Iterable[tuple[float, str, dict]]) -> list[Reclaim]:
    """Give all reclaims of a journal's facts, each with its moment."""
    found, begun = [], dict[str, tuple[float, float]]()
    for at_s, kind, fields in facts:
        if kind == "ReclaimStarted":
            begun[fields["node"]] = (at_s, fields["due_s"])
        elif kind in ("LoanReturned", "LoanLost") and fields["node"] in begun:
            until_s = at_s if kind == "LoanReturned" else float("inf")
            found.append(Reclaim(fields["node"], *begun.pop(fields["node"]), until_s))
    return found


def journal(export: Path) -> Iterable[tuple[float, str, dict]]:
    """Give the facts of a log that was exported, each with its moment."""
    for line in export.read_text().splitlines():
        record = json.loads(line)
        if "journal" not in record.get("topic", ""):
            continue
        value = record["value"]
        said = json.loads(value) if isinstance(value, str) else value
        for kind, fields in said["data"].get("decision", {}).get("facts", ()):
            yield said["data"]["at_s"], kind, fields


def late_in(late: Iterable[Served], ended: Sequence[Reclaim]) -> int:
    """Count the late requests that were under way while a node was late for its owner.

    Whichever server they were sent to: those that are there queue for the one that is not. And from
    the reclaim's beginning on, not only from when it was due: rather one too many.
    """
    times = [(one.since_s, one.until_s) for one in ended if one.is_late]
    return sum(
        any(one.began_s <= until_s and one.ended_s >= since_s for since_s, until_s in times)
        for one in late
    )


def effects(folder: Path) -> list[dict]:
    """What both agents did to GPUs, in order of time."""
    found = []
    for name in ("cloud", "edge"):
        file = folder / f"{name}.effects"
        if file.exists():
            found += [json.loads(line) for line in file.read_text().splitlines()]
    return sorted(found, key=lambda one: one["at_s"])


def double_owners(done: list[dict]) -> int:
    """Count the times that a GPU was taken while it was held, or a job ran in two places."""
    held: dict[tuple[str, int], tuple[str, int]] = {}
    found = 0
    for one in done:
        gpus = [(one["node"], gpu) for gpu in one.get("gpus", [])] if "node" in one else []
        if one["effect"] == "start":
            found += sum(gpu in held for gpu in gpus)
            found += any(
                job == one["job"] and epoch != one["epoch"] for job, epoch in held.values()
            )
        if one["effect"] in ("start", "scale"):
            held |= dict.fromkeys(gpus, (one["job"], one["epoch"]))
        elif one["effect"] in ("left", "ended"):
            for gpu in gpus:
                held.pop(gpu, None)
    return found


def weights_apart(folder: Path, command: Sequence[str], steps: int) -> float:
    """Give the largest difference to the weights of a run that nobody disturbs.

    It runs in the environment of workers, not in ours: variables change how libraries compute.
    """
    straight = folder / "straight"
    straight.mkdir()
    subprocess.run(
        [*command, "--steps", str(steps), "--out", "weights.npz"],
        check=True, cwd=straight, env=machine_environment(),
    )  # fmt: skip
    with np.load(straight / "weights.npz") as one, np.load(folder / "weights.npz") as other:
        return max(float(np.abs(one[key] - other[key]).max()) for key in one.files)


def judged(
    folder: Path, log: str, load: Load, command: Sequence[str], steps: int, tolerance: float
) -> dict:
    """Say what became of the job, of the owners' requests, and of the record."""
    picture = folder / "timeline.png"
    told = tidegate(
        "timeline", "train", "--log", log, "--loss", f"{folder}/loss", "--plot", str(picture),
        "--json", f"{folder}/timeline.json",
    )  # fmt: skip
    print(told.stdout, told.stderr)
    stays = json.loads((folder / "timeline.json").read_text())["stays"]
    loans = json.loads(tidegate("loans", "--log", log, "--json", "-").stdout)["totals"]
    replayed = tidegate("replay", log)
    print(replayed.stdout)
    for _ in range(5):  # a busy broker may be too slow for the first
        exported = tidegate("journal", "export", "--log", log, f"{folder}/log.jsonl")
        print(exported.stdout, exported.stderr)
        if exported.returncode == 0:
            break
    ended = reclaims(journal(folder / "log.jsonl"))
    apart = weights_apart(folder, command, steps)
    taken = [int(line.split()[1]) for line in (folder / "loss").read_text().splitlines()]
    pools = [stay["pool"] for stay in stays]
    return {
        "moves": sum(a != b for a, b in pairwise(pools)),
        "sizes": [stay["gpus"] for stay in stays],
        "pools": pools,
        "steps": steps,
        "steps_repeated": len(taken) - len(set(taken)),
        "steps_lost": steps - len(set(taken)),
        "weights_equal": apart <= tolerance,
        "max_weight_difference": apart,
        "tolerance": tolerance,
        "double_owners": double_owners(effects(folder)),
        "loans": loans["loans_granted"],
        "reclaims": len(ended),
        "late_reclaims": loans["reclaims_late"],
        "replay_identical": replayed.returncode == 0,
        "requests": len(load.served),
        "requests_late": len(load.late),
        "requests_late_in_a_late_reclaim": late_in(load.late, ended),
        "requests_lost": load.lost,
        "picture": str(picture),
    }
