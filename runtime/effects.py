"""An agent's record of what it did to GPUs, for checking the scheduler from outside.

One JSON object a line, flushed as it happens, numbered for good: `n`, `at_s`, `agent`, `effect`,
`node`, `gpus`, and of workers `job` and `epoch`. An effect on several nodes has a line for each.

    began              the agent is up; of earlier workers only those of `running` are alive
    start, scale       workers take these GPUs under this epoch; after `ended` under the same epoch,
                       the agent resumed a gang that was lost with its machine
    checkpoint, stop   the workers were asked for it
    left               the GPUs that a change of size gave up are free
    ended              the gang is gone and its GPUs are free; `how` says by what
    drain, lent        the owner was asked to leave the node; it has left
    hand_back, owned   the owner was told to take it back; it has it

An order that changes nothing has no effect and no line: the same start again, or a stop that an
agent repeats after its own restart, with what is left of the time.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import orjson

from runtime.build import MachineMaker
from runtime.core import (
    CheckpointWorkers,
    GangCompleted,
    GangFailed,
    GangProgress,
    GangStopped,
    KeepLease,
    NodeDrained,
    NodeHandedBack,
    NodeSpec,
    Placement,
    Report,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
    WorkersLeft,
)
from runtime.core.state import without
from runtime.executor import Executor, Machine
from runtime.meters import Owner
from schemas.events import InferenceLoad

#: A moment that is told as a time that is left, and worked out again, may differ by so much.
_ROUNDING_S = 1e-3
_HOW = {GangStopped: "stopped", GangCompleted: "completed", GangFailed: "failed"}


class EffectsFile:
    """Appends lines. Numbers go on from what is there."""

    def __init__(self, path: Path | str, agent: str) -> None:
        """Find the file, making it if there is none.

        Raises:
            OSError: it cannot be written.
        """
        self._path, self._agent = Path(path), agent
        self._next, torn = _go_on(self._path)
        if torn:
            self._append(b"\n")

    def write(self, effect: str, at_s: float, **fields: Any) -> None:
        """Append one effect; it outlives the process when this returns."""
        line = {"n": self._next, "at_s": at_s, "agent": self._agent, "effect": effect, **fields}
        self._append(orjson.dumps(line) + b"\n")
        self._next += 1

    def _append(self, data: bytes) -> None:
        # Opened for each: effects are rare, and the file may be moved away at any time.
        with self._path.open("ab") as file:
            file.write(data)


def _go_on(path: Path) -> tuple[int, bool]:
    """Find the next number, and whether the last line was torn by a crash."""
    with path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 64 * 1024))
        tail = file.read()
    torn = bool(tail) and not tail.endswith(b"\n")
    for line in reversed(tail.split(b"\n")):
        try:
            return int(orjson.loads(line)["n"]) + 1, torn
        except (orjson.JSONDecodeError, KeyError, TypeError):
            continue
    return 0, torn


@dataclass(slots=True)
class _RunningGang:
    epoch: int
    placement: Placement
    leaving: list[tuple[int, Placement]] = field(default_factory=list)
    stop_by_s: float | None = None  #: None: it was not asked to stop.
    stop_saves: bool = True

    def hurry(self, order: StopWorkers, now_s: float) -> bool:
        """Take note of a stop; say whether it is the first, or is to be sooner or unsaved."""
        by_s = now_s + order.grace_s
        sooner = self.stop_by_s is None or by_s < self.stop_by_s - _ROUNDING_S
        if sooner:
            self.stop_by_s = by_s
        unsaved = self.stop_saves and not order.checkpoint
        self.stop_saves = self.stop_saves and order.checkpoint
        return sooner or unsaved


class RecordedExecutor:
    """An executor whose effects are recorded before they are carried out."""

    def __init__(self, executor: Executor, file: EffectsFile, now_s: float) -> None:
        self._executor, self._file = executor, file
        self._gangs: dict[str, _RunningGang] = {}
        file.write("began", now_s, running=list(executor.running()))

    def start(self, order: StartWorkers, now_s: float) -> None:
        if order.job not in self._gangs:
            self._gangs[order.job] = _RunningGang(order.epoch, order.placement)
            self._say("start", order.job, order.epoch, order.placement, now_s, step=order.step)
        self._executor.start(order, now_s)

    def scale(self, order: ScaleWorkers, now_s: float) -> None:
        gang = self._gangs.get(order.job)
        if gang is not None and gang.epoch != order.epoch:
            if left := without(gang.placement, order.placement):
                gang.leaving.append((gang.epoch, left))
            gang.epoch, gang.placement = order.epoch, order.placement
            self._say("scale", order.job, order.epoch, order.placement, now_s)
        self._executor.scale(order, now_s)

    def checkpoint(self, order: CheckpointWorkers, now_s: float) -> None:
        gang = self._gangs.get(order.job)
        if gang is not None:
            self._say("checkpoint", order.job, gang.epoch, gang.placement, now_s)
        self._executor.checkpoint(order, now_s)

    def stop(self, order: StopWorkers, now_s: float) -> None:
        gang = self._gangs.get(order.job)
        if gang is not None and gang.hurry(order, now_s):
            self._say("stop", order.job, gang.epoch, gang.placement, now_s)
        self._executor.stop(order, now_s)

    def keep_lease(self, lease: KeepLease, now_s: float) -> None:
        self._executor.keep_lease(lease, now_s)

    def progress(self, now_s: float) -> Sequence[GangProgress]:
        return self._executor.progress(now_s)

    def advance(self, now_s: float) -> Sequence[Report]:
        reports = self._executor.advance(now_s)
        for report in reports:
            if isinstance(report, WorkersLeft):
                self._left(report, now_s)
            elif isinstance(report, GangStopped | GangCompleted | GangFailed):
                self._ended(report, now_s)
        return reports

    def next_due_s(self) -> float | None:
        return self._executor.next_due_s()

    def running(self) -> tuple[str, ...]:
        return self._executor.running()

    def _left(self, report: WorkersLeft, now_s: float) -> None:
        gang = self._gangs.get(report.job)
        for epoch, placement in gang.leaving if gang is not None else ():
            if epoch == report.epoch:
                self._say("left", report.job, epoch, placement, now_s)
        if gang is not None:
            gang.leaving = [one for one in gang.leaving if one[0] != report.epoch]

    def _ended(self, report: GangStopped | GangCompleted | GangFailed, now_s: float) -> None:
        gang = self._gangs.pop(report.job, None)
        if gang is None:
            return
        for epoch, placement in (*gang.leaving, (gang.epoch, gang.placement)):
            self._say("ended", report.job, epoch, placement, now_s, how=_HOW[type(report)])

    def _say(
        self, effect: str, job: str, epoch: int, placement: Placement, at_s: float, **more: Any
    ) -> None:
        for node, gpus in placement.items():
            self._file.write(effect, at_s, job=job, epoch=epoch, node=node, gpus=list(gpus), **more)


class RecordedOwner:
    """An owner whose drains and hand-backs are recorded."""

    def __init__(self, owner: Owner, file: EffectsFile, gpus: Mapping[str, int]) -> None:
        self._owner, self._file, self._gpus = owner, file, gpus
        self._phase = dict.fromkeys(gpus, "owned")

    def drain(self, node: str, now_s: float) -> None:
        if self._phase[node] in ("owned", "hand_back"):
            self._change(node, "drain", now_s)
        self._owner.drain(node, now_s)

    def hand_back(self, node: str, now_s: float) -> None:
        if self._phase[node] in ("drain", "lent"):
            self._change(node, "hand_back", now_s)
        self._owner.hand_back(node, now_s)

    def advance(self, now_s: float) -> Sequence[NodeDrained | NodeHandedBack]:
        reports = self._owner.advance(now_s)
        for report in reports:
            asked = self._phase[report.node]
            if isinstance(report, NodeDrained) and asked == "drain":
                self._change(report.node, "lent", now_s)
            elif isinstance(report, NodeHandedBack) and asked == "hand_back":
                self._change(report.node, "owned", now_s)
        return reports

    def next_due_s(self) -> float | None:
        return self._owner.next_due_s()

    def loads(self, now_s: float) -> Sequence[InferenceLoad]:
        return self._owner.loads(now_s)

    def _change(
        self, node: str, phase: Literal["drain", "lent", "hand_back", "owned"], at_s: float
    ) -> None:
        self._phase[node] = phase
        self._file.write(phase, at_s, node=node, gpus=list(range(self._gpus[node])))


def recorded(make: MachineMaker, file: EffectsFile) -> MachineMaker:
    """Give a maker of the same machines, whose effects are recorded."""

    def made(specs: Sequence[NodeSpec], now_s: float) -> Machine:
        machine = make(specs, now_s)
        gpus = {spec.node: spec.gpu_count for spec in specs}
        owner = None if machine.owner is None else RecordedOwner(machine.owner, file, gpus)
        executor = RecordedExecutor(machine.executor, file, now_s)
        return replace(machine, executor=executor, owner=owner)

    return made
