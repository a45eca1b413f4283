"""Reads the progress file of a job, which is untrusted input.

A bad line is counted and skipped. Nothing that a job writes can stop the agent, or cost it more
than a bounded amount of memory.
"""

import json
import math
import os
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Literal, TypeGuard

from runtime.core import Pace
from runtime.untrusted_files import open_regular_file
from schemas.values import MAX_METRICS, METRIC_LIMIT, METRIC_NAME

_LINE_MAX = 64 * 1024
#: The most that is read at once, in much less than a second; the rest is read later.
_READ_MAX = 64 * 1024
#: Of what is unread, at most this much is read: the end of it.
_LAST_MAX = 1024**3
_STEP_MAX = 2**53
_RATE_MAX = 1e12
_PAUSE_MAX_S = 86_400.0
#: The rate is learned from this many of the last step intervals.
_MOMENTS = 32
_is_metric = METRIC_NAME.fullmatch

#: What a line may report of a step, with the bounds of `JobProgressed`; means are passed on.
PACE: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "samples_per_step": (1e-6, 1e9),
        "step_s": (1e-7, 1e6),
        "pass_s": (1e-7, 1e6),
        "gradient_noise": (0.0, 1e15),
    }
)

Fault = Literal[
    "not_json",
    "too_long",
    "bad_step",
    "bad_rate",
    "bad_pace",
    "bad_metric",
    "bad_checkpoint",
    "step_back",
    "cut",
    "unread",
]


@dataclass(frozen=True, slots=True)
class AnnouncedCheckpoint:
    """A checkpoint that the job reports as complete on disk."""

    step: int
    path: Path
    #: How long training paused for it, if the job reports that.
    pause_s: float | None

    @property
    def is_there(self) -> bool:
        """Whether its path leads to something, as far as we may see; no name makes this fail."""
        try:
            self.path.stat()
        except (OSError, ValueError):  # also a name that is too long, or that no disk can have
            return False
        return True


class ProgressFile:
    """Follows one `progress.jsonl`."""

    def __init__(self, path: Path, checkpoints: Path) -> None:
        """Follow `path`; checkpoints are names below `checkpoints`."""
        self._path, self._checkpoints = path, checkpoints
        self._offset = 0
        self._beginning: int | None = None  # the size at the first reading
        self._end: int | None = None  # what is written beyond is ignored
        self._rest = b""
        self._skipping = False
        self._rate: float | None = None
        #: The mean step time, as of the last call of `pace`.
        self._step_s: float | None = None
        self._moments: deque[tuple[float, int]] = deque(maxlen=_MOMENTS)
        self._pace: dict[str, _Mean] = {}
        #: The newest values of what the job names itself.
        self.metrics: dict[str, float] = {}
        #: The last step reported; None before the first.
        self.step: int | None = None
        #: The last generation that all workers joined, as the job reports; None: none.
        self.generation: int | None = None
        #: When the last new step was read.
        self.moved_s: float | None = None
        #: How many more readings the file needed at the last one.
        self.pieces_left = 0
        #: What was wrong with lines.
        self.faults: Counter[Fault] = Counter()

    def read(self, now_s: float) -> list[AnnouncedCheckpoint]:
        """Take one piece of what is new; give the checkpoints announced in it, in order."""
        found: list[AnnouncedCheckpoint] = []
        before = self.step
        # Earlier lines were reported by an earlier agent, or are of a warm-up.
        is_old = self._beginning is None or not self.caught_up
        for line in self._lines():
            said = self._take(line)
            if said is not None:
                found.append(said)
        if is_old:
            self._pace.clear()
        if self.step is not None and self.step != before:
            self.moved_s = now_s
            if not self.behind:  # otherwise the time of the step is unknown
                self._moments.append((now_s, self.step))
        return found

    @property
    def behind(self) -> bool:
        """Whether the last reading left something unread."""
        return self.pieces_left > 0

    @property
    def caught_up(self) -> bool:
        """Whether all is read that was there at the first reading."""
        return self._beginning is None or self._offset >= self._beginning

    def is_over(self) -> bool:
        """Treat the present content as final; say whether all of it is read."""
        if self._end is None:
            try:
                with open_regular_file(self._path) as file:
                    self._end = os.fstat(file.fileno()).st_size
            except OSError:
                self._end = 0
            self._skip_to_last(self._end)
            self._count_left(self._end)
        return not self.behind

    def _skip_to_last(self, size: int) -> None:
        """Leave out what no reader could catch up with: a file may have holes of any size."""
        if size - self._offset > _LAST_MAX:
            self.faults["unread"] += 1
            self._offset, self._rest, self._skipping = size - _LAST_MAX, b"", True

    def _count_left(self, size: int) -> None:
        self.pieces_left = math.ceil(abs(size - self._offset) / _READ_MAX)

    def samples_per_s(self, samples_per_step: float) -> float | None:
        """The rate as the job reports it, else by its steps; None while neither is known.

        A job ends after a number of steps, so a reported step time counts first: a step may have
        another number of samples than declared. Never more than a report can carry.
        """
        taken_s = self._step_s
        if taken_s is None and self._rate is not None:
            return self._rate
        taken_s = taken_s or self.step_interval_s
        return None if taken_s is None else min(samples_per_step / taken_s, _RATE_MAX)

    def pace(self, samples_per_step: float) -> Pace:
        """Give means of what was reported of steps since the last call.

        If a job reports only its rate, a step counts as `samples_per_step` samples.
        """
        said = {name: mean.value for name, mean in self._pace.items()}
        self._pace.clear()
        batch = said.get("samples_per_step")
        step_s = said.get("step_s")
        if step_s is None and "sample_s" in said:
            step_s = said["sample_s"] * (batch or samples_per_step)
        if step_s is not None and not _is_within(step_s, PACE["step_s"]):
            step_s = None
        self._step_s = step_s or self._step_s
        return Pace(batch, step_s, said.get("pass_s"), said.get("gradient_noise"))

    @property
    def step_interval_s(self) -> float | None:
        """Seconds a step takes at present; None while unknown."""
        if len(self._moments) < 2:
            return None
        (first_s, first), (last_s, last) = self._moments[0], self._moments[-1]
        return (last_s - first_s) / (last - first) if last_s > first_s else None

    def _lines(self) -> list[bytes]:
        """Give the complete new lines; an incomplete last one waits."""
        try:
            with open_regular_file(self._path) as file:
                size = os.fstat(file.fileno()).st_size
            if self._end is not None:
                size = self._end = min(size, self._end)
            if size < self._offset:  # it was rewritten
                self.faults["cut"] += 1
                self._offset, self._rest, self._skipping = 0, b"", False
            if self._beginning is None or size < self._beginning:
                self._beginning = size
            self._skip_to_last(size)
            if size == self._offset:
                self.pieces_left = 0
                return []
            with open_regular_file(self._path) as file:
                file.seek(self._offset)
                data = file.read(min(_READ_MAX, size - self._offset))
        except OSError:
            self.pieces_left = 0
            return []
        self._offset += len(data)
        self._count_left(size)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines and self._skipping:
            del lines[0]
            self._skipping = False
        if len(self._rest) > _LINE_MAX:
            if not self._skipping:
                self.faults["too_long"] += 1
            self._rest, self._skipping = b"", True
        return lines

    def _take(self, line: bytes) -> AnnouncedCheckpoint | None:
        if not line.strip():
            return None
        if len(line) > _LINE_MAX:
            self.faults["too_long"] += 1
            return None
        try:
            # NaN is not JSON, but Python writes it, for instance as a loss, which we ignore.
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            self.faults["not_json"] += 1
            return None
        return self._understand(said)

    def _understand(self, said: dict[str, Any]) -> AnnouncedCheckpoint | None:
        rate = said.get("samples_per_s")
        if rate is not None:
            if _is_number(rate) and 0 <= rate <= _RATE_MAX:
                self._rate = float(rate)
                if rate > 0:
                    self._pace.setdefault("sample_s", _Mean()).add(1.0 / rate)
            else:
                self.faults["bad_rate"] += 1
        for name in PACE.keys() & said.keys():
            if _is_number(said[name]) and _is_within(said[name], PACE[name]):
                self._pace.setdefault(name, _Mean()).add(float(said[name]))
            else:
                self.faults["bad_pace"] += 1
        if "metrics" in said:
            self._take_metrics(said["metrics"])
        if type(said.get("generation")) is int:  # of another type it is a key of the job's own
            self.generation = said["generation"]
            self._pace.clear()  # it was measured at another size
        step = said.get("step")
        if step is None:
            if "checkpoint" in said:
                self.faults["bad_checkpoint"] += 1
            return None
        if not _is_number(step) or step != math.floor(step) or not 0 <= step <= _STEP_MAX:
            self.faults["bad_step"] += 1
            return None
        step = int(step)
        if self.step is not None and step < self.step:
            self.faults["step_back"] += 1
        else:
            self.step = step
        return self._announced(said, step) if "checkpoint" in said else None

    def _take_metrics(self, said: Any) -> None:
        """Take what can be reported of a job's own figures; the rest is counted."""
        if not isinstance(said, dict):
            self.faults["bad_metric"] += 1
            return
        for name, value in said.items():
            known = _is_metric(name) and (name in self.metrics or len(self.metrics) < MAX_METRICS)
            if known and _is_number(value) and abs(value) <= METRIC_LIMIT:
                self.metrics[name] = float(value)
            else:
                # A loss that is no number any more is not reported as the last one that was.
                self.metrics.pop(name, None)
                self.faults["bad_metric"] += 1

    def _announced(self, said: dict[str, Any], step: int) -> AnnouncedCheckpoint | None:
        name, pause_s = said["checkpoint"], said.get("pause_s")
        if not isinstance(name, str) or not _is_below(name):
            self.faults["bad_checkpoint"] += 1
            return None
        if not _is_number(pause_s) or not 0 <= pause_s <= _PAUSE_MAX_S:
            pause_s = None
        return AnnouncedCheckpoint(step, self._checkpoints / name, pause_s)


@dataclass(slots=True)
class _Mean:
    """A running mean."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) / self.count


def _is_within(value: float, bounds: tuple[float, float]) -> bool:
    return bounds[0] <= value <= bounds[1]


def _is_number(value: Any) -> TypeGuard[float]:
    # An int may be too large for a float; it can still be compared.
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


def _is_below(name: str) -> bool:
    """Whether the name stays below the folder it is relative to."""
    path = PurePosixPath(name)
    whole = bool(name) and "\0" not in name and len(name) <= 1024
    return whole and not path.is_absolute() and path.parts != () and ".." not in path.parts
