"""Made-up jobs for clusters of any size and runs of any length. Equal seeds give equal jobs.

That holds for one version of numpy: a newer one may draw other numbers from a seed.

What each figure is from:

- GPUs asked for: the 16,669 jobs of ElasticFlow's traces cluster01, 02, 03, 05, 06 and 10 together.
- Durations: log-normal. Their logarithm spreads by 1.32 around 0.3 times that of the GPUs asked
  for, as in those traces (median 7,667 s, mean 19,426 s, one in a hundred above 181,747 s). The
  median follows from the load wanted. At load 0.9, 50,000 jobs in 15 days on 3,520 GPUs take 20.5
  GPU hours each; those of the traces take 27.2.
- Jobs, if no number is given: as many per GPU and hour as in Pollux's workloads at load 1.0.
- Speed-ups: Amdahl's law with the serial fractions of `simulator.models`. Those were measured at 8
  GPUs; a job that asks for more has a fraction that gives it the same efficiency there.
- Deadlines: submission + U[0.5, 1.5] x duration at the size asked for, as ElasticFlow's traces.
- Made up: the hours people submit at, quiet weekends, tenants, priorities, memory, and who is
  elastic.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Floats, Ints
from simulator.generate import (
    ARRIVAL_DAY,
    JOBS_PER_GPU_HOUR,
    NAME_SHARES,
    NAMES,
    TENANT_SHARES,
    TENANTS,
    arrivals,
)
from simulator.models import MODELS

_ASKED = (1, 2, 4, 8, 16, 32, 64)
_ASKED_SHARES = (0.7326, 0.0183, 0.0304, 0.1976, 0.0118, 0.0055, 0.0038)
_SPREAD = 1.32
_GROWS_WITH_GPUS = 0.3
_MEASURED_AT = 8
_SHORTEST_S = 60.0
_WEEKEND = 0.6
_DAY_S = 86_400.0
#: Sizes that an elastic job may take: as fine as `simulator.options.ladder`, and beyond.
_SIZES = tuple(sorted({one << power for one in (1, 3) for power in range(11)}))
#: GPU memory of a job that fits small GPUs too (16 GiB), and of one that does not.
SMALL_MIB, LARGE_MIB = 12_000.0, 24_000.0


@dataclass(frozen=True, slots=True)
class Mix:
    """What jobs to make."""

    days: float = 1.0  #: Over which they arrive; day 0 is a Monday.
    gpus: int = 64  #: Of the training pool.
    jobs: int | None = None
    #: GPU time that jobs ask for within the days (each runs at once, at the size asked for) over
    #: what the training pool has.
    load: float = 0.9
    #: Share of the jobs that ask for at least `elastic_from` GPUs which are elastic.
    elastic: float = 0.8
    elastic_from: int = 1
    #: Smallest and largest size of an elastic job over what it asked for.
    elastic_range: tuple[float, float] = (0.5, 4.0)
    #: Share of the other jobs that fit the small GPUs of lenders; elastic ones all do.
    fungible: float = 0.66
    deadlines: float = 0.45  #: Share of the jobs with a deadline.
    priority_share: float = 0.0  #: Share of the jobs of priority 1; the others have 0.

    def __post_init__(self) -> None:
        """Refuse what no jobs could be made of."""
        if not 0.01 <= self.days <= 366.0:
            raise ValueError(f"days: {self.days:g} must be 0.01 to 366")
        if self.jobs is not None and not 1 <= self.jobs <= 1_000_000:
            raise ValueError(f"jobs: {self.jobs} must be 1 to 1000000")
        if not 0.0 < self.load <= 100.0:
            raise ValueError(f"load: {self.load:g} must be above 0 and at most 100")
        if not 0.0 <= self.priority_share <= 1.0:
            raise ValueError(f"priority-share: {self.priority_share:g} must be 0 to 1")


@dataclass(frozen=True, slots=True)
class MadeJob:
    """One job: how much it has to do, and how it scales."""

    id: str
    submit_s: float
    work_s: float  #: On one GPU.
    serial: float  #: Amdahl's fraction.
    asked: int
    sizes: tuple[int, ...]  #: That it may run at, ascending; `asked` is one of them.
    deadline_s: float  #: inf: none.
    tenant: str
    memory_mib: float  #: On each GPU.
    checkpoint_mib: float
    priority: int


def make_jobs(seed: int, mix: Mix) -> Iterator[MadeJob]:
    """Make jobs by submission, from 0 on.

    The load is met to a part in a thousand, unless the run is so short that no job may be that
    long: none takes more than half of the days at the size asked for.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    count = mix.jobs or max(1, round(JOBS_PER_GPU_HOUR * mix.gpus * mix.days * 24.0))
    minutes = np.arange(max(1, round(mix.days * 1440)))
    week = np.where(minutes // 1440 % 7 >= 5, _WEEKEND, 1.0)
    submit_s = arrivals(rng, count, np.array(ARRIVAL_DAY)[minutes // 60 % 24] * week)
    asked = np.array(_ASKED)[rng.choice(len(_ASKED), count, p=_ASKED_SHARES)]
    # In a small pool one gang must not be all there is.
    asked = np.minimum(asked, 1 << (max(1, mix.gpus // 4).bit_length() - 1))
    raw = np.exp(rng.normal(0.0, _SPREAD, count)) * asked**_GROWS_WITH_GPUS
    duration_s = _scaled(raw, asked, submit_s, mix)
    models = rng.choice(len(NAMES), count, p=NAME_SHARES)
    serial = np.array([MODELS[name].serial for name in NAMES])[models]
    serial = serial * np.minimum(1.0, _MEASURED_AT / asked)
    work_s = duration_s * asked / (1.0 + serial * (asked - 1))
    elastic = (rng.random(count) < mix.elastic) & (asked >= mix.elastic_from)
    fits = elastic | (rng.random(count) < mix.fungible)
    due = rng.random(count) < mix.deadlines
    slack_s = rng.uniform(0.5, 1.5, count) * duration_s
    deadline_s = np.where(due, submit_s + slack_s, np.inf)
    tenants = rng.choice(len(TENANTS), count, p=TENANT_SHARES)
    priority = (rng.random(count) < mix.priority_share).astype(int)
    grids = {int(size): _grid(int(size), mix) for size in np.unique(asked)}
    digits = max(4, len(str(count)))
    for i in range(count):
        gpus = int(asked[i])
        yield MadeJob(
            id=f"job-{i + 1:0{digits}}",
            submit_s=float(submit_s[i]),
            work_s=float(work_s[i]),
            serial=float(serial[i]),
            asked=gpus,
            sizes=grids[gpus] if elastic[i] else (gpus,),
            deadline_s=float(deadline_s[i]),
            tenant=TENANTS[tenants[i]],
            memory_mib=SMALL_MIB if fits[i] else LARGE_MIB,
            checkpoint_mib=float(MODELS[NAMES[models[i]]].checkpoint_mib),
            priority=int(priority[i]),
        )


def _grid(asked: int, mix: Mix) -> tuple[int, ...]:
    low, high = mix.elastic_range
    most = min(asked * high, mix.gpus)
    return tuple(size for size in _SIZES if asked * low <= size <= most or size == asked)


def _scaled(raw: Floats, asked: Ints, submit_s: Floats, mix: Mix) -> Floats:
    """Scale durations until the jobs ask for the load."""
    span_s = mix.days * _DAY_S
    left_s = np.maximum(span_s - submit_s, 0.0)
    longest_s = span_s / 2
    low, high = 0.0, 1e7
    for _ in range(60):
        middle = (low + high) / 2
        duration_s = np.clip(raw * middle, min(_SHORTEST_S, longest_s), longest_s)
        load = float((np.minimum(duration_s, left_s) * asked).sum()) / (mix.gpus * span_s)
        low, high = (middle, high) if load < mix.load else (low, middle)
    scaled: Floats = np.clip(raw * high, min(_SHORTEST_S, longest_s), longest_s)
    return scaled
