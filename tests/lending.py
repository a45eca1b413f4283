"""What tests of owners share: a meter of one figure, and driving them in real time."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from runtime.core import NodeDrained, NodeHandedBack
from runtime.owners import Lender, Outcome, ProtectTimes, Retry, ServedOwner
from runtime.owners.lender import Operation
from runtime.owners.processes import SessionTermination, recorded
from schemas.events import InferenceLoad
from tests.builders import load
from tests.patience import wait_until
from tests.ports import alive

PYTHON = sys.executable


class SetMeter:
    """Says what it is set to."""

    def __init__(self, needed: int = 0, serving: int = 100, node: str | None = None) -> None:
        self.needed, self.serving, self.node = needed, serving, node

    def loads(self, now_s: float) -> list[InferenceLoad]:
        said = load(self.needed, node=self.node)
        return [said.model_copy(update={"gpus_serving": self.serving})]


class ScriptedLender:
    """Notes what it is asked; a test says what comes of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.outcomes: list[Outcome] = []
        self.trouble: list[str] = []

    def begin(self, node: str, operation: Operation, now_s: float) -> None:
        self.asked.append(f"{operation} {node}")

    def poll(self, now_s: float) -> Sequence[Outcome]:
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def next_due_s(self) -> float | None:
        return None

    def problems(self) -> list[str]:
        return self.trouble


class Scene:
    """An owner with a scripted lender, and its file."""

    def __init__(
        self, folder: Path, protect: ProtectTimes | None = None, node: str | None = None
    ) -> None:
        self.file, self.protect = folder / "owner.json", protect or ProtectTimes(multiplier=0.0)
        self.meter = SetMeter(node=node)
        served = {"phase": "served", "gpus": []}
        self.file.write_text(json.dumps({"nodes": {"s1": served, "s2": served}}))
        self.begin()

    def begin(self) -> None:
        """Start, or start again after a crash."""
        self.lender = ScriptedLender()
        self.owner = ServedOwner(
            lambda _: self.meter,
            self.lender,
            {"s1": 2, "s2": 2},
            self.file,
            0.0,
            protect=self.protect,
            retry=Retry(first_s=5.0, max_s=20.0, drains=3),
        )

    def ends(self, operation: str, error: str = "", now_s: float = 0.0) -> object:
        """Let an operation end on s1, and give the only report that follows, if one does."""
        assert operation in ("drain", "hand_back")
        self.lender.outcomes.append(Outcome("s1", operation, error))  # type: ignore[arg-type]
        return self.at(now_s)

    def drain(self, node: str = "s1", now_s: float = 0.0) -> object:
        """Order one to be emptied, and do what is due then."""
        self.owner.drain(node, now_s)
        return self.at(now_s)

    def hand_back(self, node: str = "s1", now_s: float = 0.0) -> object:
        """Order one to be handed back, and do what is due then."""
        self.owner.hand_back(node, now_s)
        return self.at(now_s)

    def at(self, now_s: float) -> object:
        reports = self.owner.advance(now_s)
        assert len(reports) <= 1
        return reports[0] if reports else None

    def asked(self) -> list[str]:
        asked, self.lender.asked = self.lender.asked, []
        return asked


def outcome(lender: Lender) -> Outcome:
    """Poll until an operation has ended."""
    found: list[Outcome] = []

    def ended() -> bool:
        found.extend(lender.poll(time.time()))
        return bool(found)

    wait_until(ended, "no operation ended")
    (only,) = found
    return only


def report(owner: ServedOwner) -> NodeDrained | NodeHandedBack:
    """Advance until there is a report."""
    found: list[NodeDrained | NodeHandedBack] = []

    def said() -> bool:
        found.extend(owner.advance(time.time()))
        return bool(found)

    wait_until(said, "no report came")
    (only,) = found
    return only


def failed(operation: Callable[[float], Outcome], *says: str) -> None:
    """Try an operation with ever longer time limits, until it fails as it should.

    On a machine that others use, a short limit may be over before what fails has begun.
    """
    errors = []
    for limit_s in (0.3, 3.0, 30.0):
        errors.append(operation(limit_s).error)
        if all(part in errors[-1] for part in says):
            return
    raise AssertionError(f"{says} in none of {errors}")


def lines(path: Path) -> list[str]:
    """Give the lines of a file, none if there is no file."""
    return path.read_text().splitlines() if path.exists() else []


def living(file: Path) -> set[int]:
    """Give those that said `up PID` in a file and are there."""
    return {pid for line in lines(file) if alive(pid := int(line.split()[1]))}


def served(lender: Lender, folder: Path, retry: Retry | None = None) -> ServedOwner:
    """Give an owner that never needs its node of two GPUs, and protects nothing."""
    return ServedOwner(
        lambda _: SetMeter(),
        lender,
        {"s1": 2},
        folder / "owner.json",
        time.time(),
        protect=ProtectTimes(multiplier=0.0),
        retry=retry or Retry(),
    )


@contextmanager
def swept(folder: Path) -> Iterator[Path]:
    """Give a folder of identities; at the end kill whoever still lives of them."""
    try:
        yield folder
    finally:
        for record in folder.glob("*.json"):
            lock = record.with_suffix(".lock")
            ending = SessionTermination(recorded(record), 0.0, 0.0, lock if lock.exists() else None)
            wait_until(partial(ending.poll, 1.0), f"{record.stem} cannot be killed")
