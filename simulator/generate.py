"""A made-up day of training jobs with published statistics. Equal seeds give equal jobs.

That holds for one version of numpy: a newer one may draw other numbers from a seed.

What each figure is from:

- GPUs asked for: the 195-job ElasticFlow trace (118 x 1, 1 x 2, 45 x 4, 28 x 8, 3 x 16).
- Jobs per GPU and hour: Pollux's workloads at load 1.0, 160 jobs in 8 h on 64 GPUs.
- Durations: log-normal. Spread 1.5 is that of ElasticFlow's cluster02 (deciles 1,011 s, 6,182 s
  and 56,615 s: 1.41 below the median and 1.73 above). The median follows from the load wanted.
- Deadlines: submission + U[0.5, 1.5] x duration at the size asked for, as ElasticFlow's traces.
- Speed-ups and batches: `simulator.models`.
- Made up: the hours people submit at, tenants, priorities, how many jobs are rigid.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Floats, Ints
from schemas.events import JobSubmitted, RatePoint
from simulator.models import MODELS, ModelFacts, speedup
from simulator.workload import JobArrival, Workload

_SIZES = (1, 2, 4, 8, 16)
_SIZE_COUNTS = (118, 1, 45, 28, 3)
JOBS_PER_GPU_HOUR = 160 / (8 * 64)
_JOBS_MIN = 80
_SPREAD = 1.5
_DEADLINE_SHARE = 0.45
_RIGID_SHARE = 0.2
_SIZE_MAX = 32
_DURATION_MIN_S = 120.0
#: Mean jobs per hour of the day over their mean: quiet nights, a dip at lunch.
ARRIVAL_DAY = (
    0.5, 0.4, 0.35, 0.3, 0.3, 0.35, 0.5, 0.8, 1.2, 1.6, 1.7, 1.5,
    1.1, 1.4, 1.7, 1.7, 1.6, 1.4, 1.2, 1.0, 1.0, 0.9, 0.8, 0.7,
)  # fmt: skip
#: Models and tenants, and the share of the jobs that each has.
NAMES = ("resnet50", "bert", "vgg16", "inception3", "gpt2", "deepspeech2")
NAME_SHARES = (0.26, 0.20, 0.14, 0.14, 0.14, 0.12)
TENANTS = ("vision", "language", "speech", "search", "interns")
TENANT_SHARES = (0.32, 0.28, 0.16, 0.14, 0.10)
_PRIORITIES = (-10, 0, 10)
_PRIORITY_SHARES = (0.15, 0.75, 0.10)


@dataclass(frozen=True, slots=True)
class Demand:
    """How much work to make."""

    hours: float = 24.0
    pool_gpus: int = 32  #: GPUs of the training pool.
    #: GPU time asked for within the hours (each job runs at once, at the size asked for) over what
    #: the training pool alone has. Above 1, loans are needed.
    load: float = 1.4
    first_hour: int = 0  #: Of the day, in which the hours begin.

    def __post_init__(self) -> None:
        """Refuse what no day could be made of."""
        if not 0.1 <= self.hours <= 8784.0:
            raise ValueError(f"hours: {self.hours} must be 0.1 to 8784 (a year)")
        if not 1 <= self.pool_gpus <= 65_536:
            raise ValueError(f"pool_gpus: {self.pool_gpus} must be 1 to 65536")
        if not 0.0 < self.load <= 100.0:
            raise ValueError(f"load: {self.load} must be above 0 and at most 100")
        if not 0 <= self.first_hour <= 23:
            raise ValueError(f"first_hour: {self.first_hour} must be 0 to 23")


def generate(seed: int, demand: Demand | None = None) -> Workload:
    """Make a workload.

    The load is met to a few per cent, unless the run is so short that no job may be that long:
    no job takes more than half of the hours at the size asked for.
    """
    demand = Demand() if demand is None else demand
    rng = np.random.Generator(np.random.PCG64(seed))
    count = max(_JOBS_MIN, round(JOBS_PER_GPU_HOUR * demand.pool_gpus * demand.hours))
    minutes = np.arange(max(1, int(demand.hours * 60)))
    at_s = arrivals(rng, count, np.array(ARRIVAL_DAY)[(minutes // 60 + demand.first_hour) % 24])
    shares = np.array(_SIZE_COUNTS) / sum(_SIZE_COUNTS)
    asked = np.array(_SIZES)[rng.choice(len(_SIZES), count, p=shares)]
    models = rng.choice(len(NAMES), count, p=NAME_SHARES)
    # Nobody asks for more GPUs than the model, or the pool, can use.
    pool_size = 1 << (demand.pool_gpus.bit_length() - 1)
    asked = np.minimum(asked, [min(MODELS[NAMES[m]].gpus_max, pool_size) for m in models])
    raw = np.exp(rng.normal(0.0, _SPREAD, count))
    duration_s = _scaled(raw, asked, at_s, demand)
    tenants = rng.choice(len(TENANTS), count, p=TENANT_SHARES)
    priorities = rng.choice(len(_PRIORITIES), count, p=_PRIORITY_SHARES)
    due = rng.random(count) < _DEADLINE_SHARE
    slack = rng.uniform(0.5, 1.5, count)
    rigid = rng.random(count) < _RIGID_SHARE
    jobs = tuple(
        JobArrival(
            at_s=float(at_s[i]),
            submission=_submission(
                f"job-{i + 1:04d}",
                TENANTS[tenants[i]],
                NAMES[models[i]],
                _PRIORITIES[priorities[i]],
                int(asked[i]),
                float(duration_s[i]),
                bool(rigid[i]),
            ),
            deadline_after_s=float(duration_s[i] * slack[i]) if due[i] else None,
            gpus_asked=int(asked[i]),
        )
        for i in range(count)
    )
    note = (
        f"Made up from seed {seed}: {count} jobs ask for about {demand.load:.2g} times the GPU "
        f"time that {demand.pool_gpus} training GPUs have in {demand.hours:g} hours."
    )
    return Workload(jobs=jobs, name=f"generated-{seed}", source_format="generated", notes=(note,))


def arrivals(rng: np.random.Generator, count: int, weights: Floats) -> Floats:
    """Draw (count,) moments by the weight of each minute, ascending, from 0."""
    drawn = rng.choice(len(weights), count, p=weights / weights.sum())
    at_s = np.sort((drawn + rng.random(count)) * 60.0)
    moments: Floats = np.round(at_s - at_s[0], 3)
    return moments


def _scaled(raw: Floats, asked: Ints, at_s: Floats, demand: Demand) -> Floats:
    """Scale durations until the jobs ask for the load, none longer than half of the hours."""
    wanted_gpu_s = demand.load * demand.pool_gpus * demand.hours * 3600.0
    left_s = np.maximum(0.0, demand.hours * 3600.0 - at_s)
    longest_s = demand.hours * 1800.0
    shortest_s = min(_DURATION_MIN_S, longest_s)
    low, high = 0.0, 1e7
    for _ in range(60):
        middle = (low + high) / 2.0
        duration_s = np.minimum(np.clip(raw * middle, shortest_s, longest_s), left_s)
        asked_gpu_s = float((duration_s * asked).sum())
        low, high = (middle, high) if asked_gpu_s < wanted_gpu_s else (low, middle)
    scaled: Floats = np.clip(raw * high, shortest_s, longest_s)
    return scaled


def _submission(
    job: str,
    tenant: str,
    model: str,
    priority: int,
    asked: int,
    duration_s: float,
    is_rigid: bool,
) -> JobSubmitted:
    facts = MODELS[model]
    rates = _rates(facts)
    at_asked = facts.samples_per_s * speedup(asked, facts.serial)
    return JobSubmitted(
        job=job,
        tenant=tenant,
        model=model,
        gpus_min=asked if is_rigid else max(1, asked // 2),
        gpus_max=asked if is_rigid else max(asked, min(4 * asked, rates[-1].gpus)),
        total_steps=max(1, round(duration_s * at_asked / facts.batch)),
        samples_per_step=float(facts.batch),
        rates=rates,
        memory_mib=facts.memory_mib,
        checkpoint_mib=facts.checkpoint_mib,
        priority=priority,
    )


def _rates(facts: ModelFacts) -> list[RatePoint]:
    sizes = [1 << power for power in range(6) if 1 << power <= min(facts.gpus_max, _SIZE_MAX)]
    return [
        RatePoint(gpus=n, samples_per_s=facts.samples_per_s * speedup(n, facts.serial))
        for n in sizes
    ]
