"""How fast each job runs at each size, in the form that the other parts use."""

from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints, Jobs

#: A job's remaining work is taken as at least this long on one GPU, so that none is ever free.
SHORTEST_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Speed against size. n jobs, k sizes; a *level* is an index into `sizes`."""

    sizes: Ints  #: (k,) GPUs, ascending.
    allowed: Bools  #: (n, k)
    #: (n, k) steps per second on a training pool's GPUs; never falls with size, because measured
    #: curves do and more GPUs can always be left idle.
    rate: Floats
    runnable: Bools  #: (n,) some size is allowed.
    base: Ints  #: (n,) level of the smallest allowed size.
    top: Ints  #: (n,) level of the largest allowed size.
    present: Ints  #: (n,) level of the size now held, -1 if none, or none that is allowed.
    work_s: Floats  #: (n,) GPU-seconds that the remaining steps take at the base size.
    change_s: Floats  #: (n,) pause of a change of size: checkpoint and start.


def curves(jobs: Jobs) -> Curves:
    """Read the curves of all jobs, running or not."""
    sizes, own = jobs.sizes, jobs.rate
    if not len(sizes):  # nobody is there, but lenders are
        sizes, own = np.ones(1, dtype=np.int64), np.zeros((len(jobs.ids), 1))
    allowed = own > 0
    n, k = allowed.shape
    rate = np.maximum.accumulate(own, axis=1)
    runnable: Bools = np.any(allowed, axis=1)
    rows = np.arange(n)
    base = allowed.argmax(axis=1)
    top = k - 1 - allowed[:, ::-1].argmax(axis=1)
    present = np.minimum(np.searchsorted(sizes, jobs.size), k - 1)
    known = (sizes[present] == jobs.size) & allowed[rows, present]
    unit = np.where(runnable, rate[rows, base] / sizes[base], 1.0)
    return Curves(
        sizes=sizes,
        allowed=allowed,
        rate=rate,
        runnable=runnable,
        base=base,
        top=top,
        present=np.where(known, present, -1),
        work_s=np.maximum(jobs.remaining_steps / unit, SHORTEST_S),
        change_s=jobs.checkpoint_cost_s + jobs.start_cost_s,
    )
