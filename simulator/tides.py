"""Inference demand over days: how many GPUs the owner of a lending pool needs at a moment.

The shapes are made up to agree with what is published: GPU utilisation of an inference cluster is
below 40 % off-peak (Lyra, EuroSys '23), and a production trough can be less than half of the peak
(Runway, "Borrowing the Night: Reclaiming Idle Inference GPUs for Research", 2026). Here the pool's
trough is near 18 % of its GPUs and its evening peak near 85 %, with a bump at lunch; a weekend day
is a fifth lower.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SLOT_S = 60.0
_SLOTS_PER_HOUR = 60
#: (hour of the day, share of the GPUs): a service for many people.
_POOL_DAY = (
    (0.0, 0.42), (1.5, 0.26), (3.0, 0.19), (4.5, 0.17), (6.0, 0.21), (7.5, 0.38), (9.0, 0.58),
    (11.0, 0.66), (12.5, 0.76), (14.0, 0.66), (16.0, 0.63), (18.0, 0.70), (20.0, 0.84),
    (21.5, 0.82), (23.0, 0.58), (24.0, 0.42),
)  # fmt: skip
#: A shop or an office: nothing at night.
_EDGE_DAY = (
    (0.0, 0.0), (6.0, 0.0), (7.0, 0.25), (9.0, 0.55), (12.0, 0.75), (14.0, 0.55), (18.0, 0.80),
    (20.0, 0.60), (22.0, 0.15), (23.0, 0.0), (24.0, 0.0),
)  # fmt: skip
_WEEKEND = 0.8
#: AR(1) noise by the minute: memory, and its spread as a share of the load.
_NOISE_MEMORY = 0.97
_NOISE_SPREAD = 0.03
_BURSTS_PER_DAY = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Tide:
    """Demand of one lender, constant within each slot; before the first and after the last too."""

    capacity: int  #: GPUs that the owner has.
    load: Floats  #: (n,) in GPUs, not rounded.
    needed: Ints  #: (n,) whole GPUs, 0 to `capacity`.
    slot_s: float = SLOT_S

    def gpus_needed(self, t_s: float) -> int:
        """GPUs needed `t_s` seconds after the start."""
        slot = int(t_s // self.slot_s)
        return int(self.needed[min(max(slot, 0), len(self.needed) - 1)])


def pool_tide(
    rng: np.random.Generator, capacity: int, hours: float, start_hour: float = 0.0
) -> Tide:
    """Draw the tide of an inference pool of `capacity` GPUs.

    Args:
        rng: the only chance.
        capacity: GPUs.
        hours: length; hour 0 is a Monday's.
        start_hour: hour of the day (or week) at the start.
    """
    clock = _clock(hours, start_hour)
    share = _day_curve(clock, _POOL_DAY) * np.where(_weekend(clock), _WEEKEND, 1.0)
    return _tide(capacity, share * _noise(rng, len(clock)) + _bursts(rng, len(clock), 0.12))


def edge_tide(
    rng: np.random.Generator, capacity: int, hours: float, start_hour: float = 0.0
) -> Tide:
    """Draw the tide of one edge server: busy by day, each with its own hours, idle at night.

    One server in four is closed at weekends. Arguments as for `pool_tide`.
    """
    shift_h = float(rng.uniform(-1.5, 1.5))
    level = float(rng.uniform(0.7, 1.2))
    closed = bool(rng.random() < 0.25)
    clock = _clock(hours, start_hour)
    share = level * _day_curve(clock - shift_h, _EDGE_DAY)
    share = np.where(_weekend(clock) & closed, 0.0, share)
    share = share * _noise(rng, len(clock))
    # A burst only follows load: at night there is nobody there.
    return _tide(capacity, np.where(share > 0.0, share + _bursts(rng, len(clock), 0.2), 0.0))


def tide_of_services(
    services: tuple[tuple[float, str, float], ...], capacity: int, hours: float
) -> Tide:
    """Tide of inference rows (at_s, application, duration_s), one GPU each, served at once."""
    slots = _slots(hours)
    load = np.zeros(slots + 1)
    for at_s, _, duration_s in services:
        first = int(at_s // SLOT_S)
        last = int(max(at_s, at_s + duration_s - 1e-9) // SLOT_S)
        if last >= 0 and first < slots:
            load[max(first, 0)] += 1.0
            load[min(last + 1, slots)] -= 1.0
    return _tide(capacity, np.cumsum(load)[:slots] / max(1, capacity))


def _slots(hours: float) -> int:
    return max(1, int(np.ceil(hours * _SLOTS_PER_HOUR)))


def _clock(hours: float, start_hour: float) -> Floats:
    return start_hour + np.arange(_slots(hours), dtype=np.float64) / _SLOTS_PER_HOUR


def _weekend(clock: Floats) -> NDArray[np.bool_]:
    return np.asarray((clock // 24.0) % 7.0 >= 5.0)


def _day_curve(clock: Floats, day: tuple[tuple[float, float], ...]) -> Floats:
    return np.interp(clock % 24.0, [hour for hour, _ in day], [share for _, share in day])


def _noise(rng: np.random.Generator, slots: int) -> Floats:
    """Factors around 1 with memory of the minute before."""
    steps = rng.normal(0.0, _NOISE_SPREAD * np.sqrt(1.0 - _NOISE_MEMORY**2), slots)
    noise = np.empty(slots)
    last = float(rng.normal(0.0, _NOISE_SPREAD))
    for slot in range(slots):
        last = _NOISE_MEMORY * last + float(steps[slot])
        noise[slot] = 1.0 + last
    return noise


def _bursts(rng: np.random.Generator, slots: int, height: float) -> Floats:
    """Short extra demand, as a share of the GPUs: up at once, away within minutes."""
    extra = np.zeros(slots)
    count = int(rng.poisson(_BURSTS_PER_DAY * slots / (24 * _SLOTS_PER_HOUR)))
    for start in np.sort(rng.integers(0, slots, count)):
        length = int(rng.integers(3, 11))
        shape = float(rng.uniform(0.5, 1.0)) * height * np.exp(-np.arange(length) / 4.0)
        end = min(slots, int(start) + length)
        extra[start:end] += shape[: end - int(start)]
    return extra


def _tide(capacity: int, share: Floats) -> Tide:
    load = np.clip(share, 0.0, 1.0) * capacity
    # Under a hundredth of a GPU nobody keeps one: without this, rounding up would.
    needed = np.ceil(load - 0.01).astype(np.int64)
    load.setflags(write=False)
    needed.setflags(write=False)
    return Tide(capacity, load, needed)
