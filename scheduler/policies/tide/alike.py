"""Sites at which jobs could do the same, and sites at which they are about equally fast."""

import numpy as np

from scheduler.policies.interface import Floats, Ints, Kind, Snapshot

#: A running job moves only if it gains more elsewhere by 1 - STAY of what it is worth at home.
STAY = 0.85
_EDGE = int(Kind.EDGE)


def alike_sites(seen: Snapshot, sites: Ints, gpus: Ints) -> tuple[Ints, Ints]:
    """Find sites at which jobs could do the same, unless they run there already.

    No edge site is like another: what a job could do there is up to its servers.

    Args:
        seen: What is known.
        sites: (S,) of `Market`.
        gpus: (S,) of `Market`.

    Returns:
        (S,) the part of `Market`'s columns that each site has, and (A,) the first site of each.
    """
    found, pools, affinity = np.zeros_like(sites), seen.pools, seen.jobs.affinity
    # Of more GPUs than any gang has it does not matter how many there are.
    figures = list(
        zip(
            pools.kind[sites].tolist(),
            pools.gpu_memory_mib[sites].tolist(),
            pools.transfer_mib_per_s[sites].tolist(),
            np.minimum(gpus, seen.jobs.sizes[-1]).tolist(),
            strict=True,
        )
    )
    first: list[int] = []
    for one, at in enumerate(sites.tolist()):
        for part, other in enumerate(first):
            same = figures[one] == figures[other] and figures[one][0] != _EDGE
            if same and (affinity[:, at] == affinity[:, sites[other]]).all():
                found[one] = part
                break
        else:
            found[one] = len(first)
            first.append(one)
    return found, np.array(first, dtype=np.int64)


def lots_at(kind: Ints, speed: Floats, alike: Ints, rate: Floats) -> tuple[Ints, ...]:
    """Put sites of one kind together at which most jobs are about as fast as at the fastest.

    Nobody would move from one of them to another for the difference, see `STAY`. The lots, and the
    sites of each, are in ascending order.

    Args:
        kind: (S,)
        speed: (S,) of the sites' GPUs.
        alike: (S,) of `Market`.
        rate: (p, r, k) of `Market`.
    """
    found: list[list[int]] = []
    for one in np.argsort(-speed, kind="stable").tolist():
        for lot in found:
            if kind[lot[0]] != kind[one]:
                continue
            if alike[lot[0]] == alike[one] or _alike(rate[alike[lot[0]]], rate[alike[one]]):
                lot.append(one)
                break
        else:
            found.append([one])
    return tuple(np.array(lot) for lot in sorted(map(sorted, found)))


def _alike(one: Floats, other: Floats) -> bool:
    """Say whether most jobs are about as fast at one site as at another, by (r, k) of `rate`."""
    same = np.minimum(one, other) >= STAY * np.maximum(one, other)
    return bool(2 * np.count_nonzero(same.all(axis=1)) > len(same))
