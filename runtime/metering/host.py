"""A machine without GPUs: its CPU and memory, shared out to slots that count as GPUs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import psutil

from runtime.metering.sampled import Reading
from runtime.periodic import monotonic_s

_MIB = 1024 * 1024
#: Sensors that are a processor's, as Linux names them.
_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "acpitz")

#: Gives the processes of the gangs on a node, by slot; a process may be on several.
Pids = Callable[[str], Mapping[int, Collection[int]]]


@dataclass(frozen=True, slots=True)
class _Use:
    """CPU seconds used since the start, and memory used now."""

    cpu_s: float
    memory_mib: float


class HostSlots:
    """A `GpuSource`: the slots of this machine.

    A slot is an equal share of the machine's CPUs. One that holds a gang shows what the gang's
    processes use of that share, at most all of it; a process on several slots counts in equal
    parts. The others show what the rest of the machine uses, in equal parts. Memory likewise. No
    power; the temperature is the processor's, if the machine knows it.
    """

    def __init__(self, slots: Mapping[str, int], pids: Pids | None = None) -> None:
        """Begin to count.

        Args:
            slots: How many slots each node has; nodes share the machine.
            pids: Asked from a thread, at each reading.

        Raises:
            ValueError: a node without slots.
        """
        for node, count in slots.items():
            if count < 1:
                raise ValueError(f"slots: {node} has {count}; give at least one")
        self._slots = dict(slots)
        self._pids = pids
        self._cpus = psutil.cpu_count() or 1
        self._machine_s = _machine()
        self._read_s = monotonic_s()
        #: CPU seconds of each process at the last reading, with its birth: numbers come again.
        self._seen: dict[tuple[int, float], float] = {}

    @property
    def gpus(self) -> Mapping[str, int]:
        return self._slots

    def read(self) -> Mapping[str, Sequence[Reading]]:
        now_s, (busy_s, idle_s) = monotonic_s(), _machine()
        passed_s = max(1e-9, now_s - self._read_s)
        busy = busy_s - self._machine_s[0]
        whole = busy + idle_s - self._machine_s[1]
        cpus = self._cpus * (busy / whole if whole > 0 else 0.0)
        self._machine_s, self._read_s = (busy_s, idle_s), now_s
        held = self._held(passed_s)
        free = sum(self._slots.values()) - len(held)
        rest_cpus = max(0.0, cpus - sum(use.cpu_s for use in held.values()))
        rest_mib = max(
            0.0,
            psutil.virtual_memory().used / _MIB - sum(use.memory_mib for use in held.values()),
        )
        rest = _Use(rest_cpus / free, rest_mib / free) if free else _Use(0.0, 0.0)
        share = self._cpus / sum(self._slots.values())
        temperature_c = _temperature_c()
        return {
            node: [
                Reading(
                    min(1.0, (use := held.get((node, slot), rest)).cpu_s / share),
                    use.memory_mib,
                    temperature_c,
                )
                for slot in range(count)
            ]
            for node, count in self._slots.items()
        }

    def _held(self, passed_s: float) -> dict[tuple[str, int], _Use]:
        """Give what gangs use, by slot: CPUs (seconds a second) and memory."""
        places: dict[int, list[tuple[str, int]]] = {}
        held: dict[tuple[str, int], _Use] = {}
        for node, count in self._slots.items():
            for slot, pids in (self._pids(node) if self._pids is not None else {}).items():
                if 0 <= slot < count and pids:
                    held[node, slot] = _Use(0.0, 0.0)
                    for pid in pids:
                        places.setdefault(pid, []).append((node, slot))
        seen: dict[tuple[int, float], float] = {}
        for pid, slots in places.items():
            try:
                process = psutil.Process(pid)
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info()
                    key = (pid, process.create_time())
            except psutil.Error:
                continue  # it has ended, or is not ours to look at
            seen[key] = times.user + times.system
            # What one used before it was first seen may be days of work.
            cpus = max(0.0, seen[key] - self._seen.get(key, seen[key])) / passed_s
            for place in slots:
                use = held[place]
                held[place] = _Use(
                    use.cpu_s + cpus / len(slots),
                    use.memory_mib + memory.rss / _MIB / len(slots),
                )
        self._seen = seen
        return held


def _machine() -> tuple[float, float]:
    """Give the machine's busy and idle CPU seconds since it booted."""
    times = psutil.cpu_times()
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    # A guest's time is within its host's user time already.
    guests_s = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return float(sum(times) - idle_s - guests_s), float(idle_s)


def _temperature_c() -> float | None:
    try:
        sensors = psutil.sensors_temperatures()
    except (AttributeError, OSError):  # not every system has them
        return None
    for name in _SENSORS:
        if sensors.get(name):
            return max(sensor.current for sensor in sensors[name])
    return None
