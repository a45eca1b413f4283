"""How much work a job has, as far as is known, and how fast it declared to be."""

from scheduler.core.state import Job

#: A job of unknown length is taken to need so long at least, at the smallest size it declared.
LEAST_S = 600.0


def least_steps(job: Job) -> float:
    """Steps that a job of unknown length is taken to need, at least."""
    return max(1.0, LEAST_S * job.rates[0][1] / job.samples_per_step)


def expected_steps(job: Job) -> float:
    """Steps in all as far as is known; a guess where no total was declared.

    Without one it is what was learned; before that, and for a job that went further, twice the
    steps that it took.
    """
    if job.total_steps is not None:
        return float(job.total_steps)
    if job.length is not None:
        expected = float(job.length_step + job.length["left"])
        if expected > job.step:
            return expected
    return max(2.0 * job.step, least_steps(job))


def declared_rate(job: Job, size: int) -> float:
    """Samples per second declared for a size, between declared sizes by straight lines."""
    below = None
    for gpus, rate in job.rates:
        if gpus == size:
            return rate
        if gpus > size:
            if below is None:
                return 0.0
            share = (size - below[0]) / (gpus - below[0])
            return below[1] + share * (rate - below[1])
        below = (gpus, rate)
    return 0.0
