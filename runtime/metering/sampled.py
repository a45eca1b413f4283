"""The GPU meter: means over a window, of samples that a thread takes from a source."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from runtime.periodic import PeriodicThread, monotonic_s
from schemas.events import NodeMeasured

_KEPT_MAX = 3600
#: So many GPUs are named in a sentence.
_NAMED_MAX = 8
#: Without a word of the source for this long, it is said to hang.
_SILENT_S = 60.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU at one moment; None is "not measured"."""

    utilisation: float | None = None
    memory_used_mib: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


#: The reading of a GPU of which nothing is known.
UNKNOWN = Reading()


class Unreadable(Exception):
    """The source gives nothing now; it may later. The message says what to do."""


class GpuSource(Protocol):
    """Reads GPUs. It may block: only a thread calls it."""

    @property
    def gpus(self) -> Mapping[str, int]:
        """How many GPUs each node has."""
        ...

    def read(self) -> Mapping[str, Sequence[Reading]]:
        """Give one reading per GPU of each node, in the order of their indices.

        Raises:
            Unreadable: nothing can be read now.
        """
        ...


@dataclass(slots=True)
class SampleCounters:
    """Counts of samples since the start."""

    samples: int = 0
    failures: int = 0
    #: Values left out because no GPU can have them.
    absurd: int = 0


@dataclass(slots=True)
class _Sample:
    taken_s: float
    nodes: Mapping[str, Sequence[Reading]]


class SampledMeter:
    """A `GpuMeter` whose `measure` never waits: it averages what its thread has sampled.

    A thread, because a driver that hangs would otherwise hang the agent; and because the means
    of a minute need more than one reading. A window that holds no sample gives None throughout.
    """

    def __init__(
        self,
        source: GpuSource,
        *,
        every_s: float = 1.0,
        steady: Callable[[], float] = monotonic_s,
    ) -> None:
        """Sample the source from now on.

        Args:
            source: Where readings come from.
            every_s: Seconds between samples.
            steady: What the age of a sample is read from.
        """
        #: Where readings come from.
        self.source = source
        self._every_s = every_s
        self._steady = steady
        self._samples: deque[_Sample] = deque(maxlen=_KEPT_MAX)
        self._lock = threading.Lock()
        self._problem: str | None = None
        self._heard_s = steady()
        self.counters = SampleCounters()
        self._thread = PeriodicThread(self._sample, every_s, "gpu-meter")

    def measure(self, now_s: float, window_s: float) -> list[NodeMeasured]:
        # A window shorter than the sampling would be empty most of the time.
        since_s = self._steady() - max(window_s, 2 * self._every_s)
        with self._lock:
            while self._samples and self._samples[0].taken_s < since_s:
                self._samples.popleft()
            samples = [one.nodes for one in self._samples]
        return [
            self._node(node, count, samples, window_s)
            for node, count in sorted(self.source.gpus.items())
        ]

    def problems(self) -> list[str]:
        """Give, in sentences, why GPUs are not measured now."""
        with self._lock:
            silent_s, problem = self._steady() - self._heard_s, self._problem
        if silent_s > max(_SILENT_S, 3 * self._every_s):
            return [
                f"the GPUs were not read for {silent_s:.0f} s: the driver hangs, or the agent's log"
                " says what failed; see `nvidia-smi` and `dmesg`"
            ]
        return [] if problem is None else [problem]

    def close(self) -> None:
        """Sample no more."""
        self._thread.stop()

    def _sample(self) -> None:
        try:
            nodes = self.source.read()
        except Unreadable as error:
            with self._lock:
                self._heard_s = self._steady()
                self.counters.failures += 1
                self._problem = str(error)
            return
        with self._lock:
            self._heard_s = self._steady()
            self.counters.samples += 1
            self._problem = _unread(nodes)
            self._samples.append(_Sample(self._heard_s, self._plausible(nodes)))

    def _plausible(self, nodes: Mapping[str, Sequence[Reading]]) -> Mapping[str, Sequence[Reading]]:
        return {
            node: tuple(
                Reading(
                    self._within(one.utilisation, 0.0, 1.0),
                    self._within(one.memory_used_mib, 0.0, 2.0**30),
                    self._within(one.temperature_c, -50.0, 150.0),
                    self._within(one.power_w, 0.0, 10_000.0),
                )
                for one in readings
            )
            for node, readings in nodes.items()
        }

    def _within(self, value: float | None, least: float, most: float) -> float | None:
        if value is None or least <= value <= most:  # false for NaN too
            return value
        self.counters.absurd += 1
        return None

    @staticmethod
    def _node(
        node: str, count: int, samples: Sequence[Mapping[str, Sequence[Reading]]], window_s: float
    ) -> NodeMeasured:
        columns = [_Column() for _ in range(count)]
        for sample in samples:
            for column, reading in zip(columns, sample.get(node, ()), strict=False):
                column.add(reading)
        return NodeMeasured(
            node=node,
            window_s=window_s,
            gpu_utilisation=[column.utilisation.mean() for column in columns],
            gpu_memory_used_mib=[_whole(column.memory_used_mib.mean()) for column in columns],
            gpu_temperature_c=[column.temperature_c.mean() for column in columns],
            gpu_power_w=[column.power_w.mean() for column in columns],
        )


def _unread(nodes: Mapping[str, Sequence[Reading]]) -> str | None:
    """Name the GPUs of which nothing is known while others are read; None: there are none."""
    unread = [
        f"{index} of {node}"
        for node, readings in sorted(nodes.items())
        for index, one in enumerate(readings)
        if one == UNKNOWN
    ]
    if not unread:
        return None
    more = f" and {len(unread) - _NAMED_MAX} more" if len(unread) > _NAMED_MAX else ""
    return (
        f"nothing is known of GPU {', '.join(unread[:_NAMED_MAX])}{more}: the driver has lost it, "
        "or it is not on the exporter's page under that name; see `nvidia-smi` and `dmesg`"
    )


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.total += value
            self.count += 1

    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass(slots=True)
class _Column:
    """The means of one GPU."""

    utilisation: _Mean = field(default_factory=_Mean)
    memory_used_mib: _Mean = field(default_factory=_Mean)
    temperature_c: _Mean = field(default_factory=_Mean)
    power_w: _Mean = field(default_factory=_Mean)

    def add(self, reading: Reading) -> None:
        self.utilisation.add(reading.utilisation)
        self.memory_used_mib.add(reading.memory_used_mib)
        self.temperature_c.add(reading.temperature_c)
        self.power_w.add(reading.power_w)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
