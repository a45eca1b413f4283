"""How many jobs a reclaim stops, against the fewest possible: `python -m benchmarks.reclaim`.

Random cases: 6 to 40 servers of 8 GPUs, gangs of 1 to 32 GPUs on them, spread at random, side by
side, or packed as a scheduler would after jobs came and went; a third of the jobs could give GPUs
up. Some servers must be emptied. The fewest jobs that can fall is found by an integer program. The
same cases are also weighed: each job then costs what its stop would waste.
"""

import sys
from time import process_time
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from benchmarks.figures import parser_of, write
from scheduler.policies.parts.victims import RULES, Occupant, choose

GPUS = 8
SERVERS = (6, 40)
SIZES, ODDS = (1, 2, 4, 8, 16, 32), (0.2, 0.2, 0.2, 0.25, 0.1, 0.05)
LAYOUTS = ("random", "contiguous", "packed")
#: Part of a job's cost that taking only GPUs above its base has.
SHRINK_COST = 1e-3
#: Servers, jobs that are tried, servers to empty: as many as the largest benchmark lends.
LARGE = (520, 1_000, 100)


def case(
    rng: np.random.Generator, servers: int, jobs: int, layout: str, *, weighed: bool = False
) -> list[Occupant]:
    """Draw jobs on servers; those that find no room are not there."""
    free = np.full(servers, GPUS)
    held: list[dict[int, int]] = []
    for _ in range(jobs):
        size = int(rng.choice(SIZES, p=ODDS))
        if placed := _spread(rng, free, size, layout):
            held.append(placed)
        if layout == "packed" and len(held) > jobs // 2 and rng.random() < 0.4:
            for node, gpus in held.pop(int(rng.integers(len(held)))).items():
                free[node] += gpus
    occupants = []
    for mine in held:
        total = sum(mine.values())
        extra = int(rng.integers(0, total // 2 + 1)) if rng.random() < 1 / 3 else 0
        stop = total * float(rng.lognormal(7.0, 1.0)) if weighed else 1.0
        occupants.append(
            Occupant(total - extra, mine, stop, stop * SHRINK_COST if weighed else 0.0)
        )
    return occupants


def _spread(rng: np.random.Generator, free: np.ndarray, size: int, layout: str) -> dict[int, int]:
    """Find room for a job and take it; empty where there is too little."""
    if free.sum() < size:
        return {}
    if layout == "random":
        order = rng.permutation(len(free))
    elif layout == "contiguous":
        order = (np.arange(len(free)) + int(rng.integers(len(free)))) % len(free)
    else:  # the fullest server that holds all of it, or whole servers, emptiest first
        fits = np.where(free >= size, free, GPUS + 1)
        order = np.argsort(fits if size <= GPUS and fits.min() <= GPUS else -free, kind="stable")
    most = int(rng.integers(1, GPUS + 1)) if layout == "random" else GPUS
    placed: dict[int, int] = {}
    for node in order.tolist():
        take = min(int(free[node]), size - sum(placed.values()), most)
        if take > 0:
            placed[node] = take
    if sum(placed.values()) < size:
        return {}
    for node, gpus in placed.items():
        free[node] -= gpus
    return placed


def optimum(
    occupants: list[Occupant], servers: int, need: int, limit_s: float = 60.0
) -> tuple[float, float]:
    """Return the least cost of emptying `need` of the servers, and a bound that it is not under.

    Equal but where the time ran out. Variables: is a server emptied, does a job fall, does it
    shrink.
    """
    count = len(occupants)
    cost = np.concatenate(
        [
            np.zeros(servers),
            [occupant.stop_cost for occupant in occupants],
            [occupant.shrink_cost for occupant in occupants],
        ]
    )
    limits: list[float] = []
    at: list[tuple[int, int, float]] = []

    def below(terms: list[tuple[int, float]], most: float) -> None:
        at.extend((len(limits), column, factor) for column, factor in terms)
        limits.append(most)

    below([(node, -1.0) for node in range(servers)], -need)
    for job, occupant in enumerate(occupants):
        total = sum(occupant.held.values())
        extra = total - occupant.base
        falls, shrinks = servers + job, servers + count + job
        for node, gpus in occupant.held.items():
            if gpus > extra:
                below([(node, 1.0), (falls, -1.0)], 0.0)
            elif occupant.shrink_cost:
                below([(node, 1.0), (falls, -1.0), (shrinks, -1.0)], 0.0)
        if extra:
            taken = [(node, float(gpus)) for node, gpus in occupant.held.items()]
            below([*taken, (falls, -float(occupant.base))], extra)
    row, column, factor = zip(*at, strict=True)
    matrix = coo_array((factor, (row, column)), shape=(len(limits), len(cost))).tocsr()
    found = milp(
        cost,
        constraints=LinearConstraint(matrix, -np.inf, np.array(limits)),
        integrality=np.ones(len(cost), dtype=np.int64),
        bounds=Bounds(0, 1),
        options={"time_limit": limit_s, "mip_rel_gap": 0.0},
    )
    if found.fun is None:
        raise RuntimeError(f"no answer in {limit_s} s: {found.message}")
    return float(found.fun), float(found.mip_dual_bound or 0.0)


def measure(cases: int, seed: int = 1) -> dict[str, Any]:
    """Compare each rule, the best of the three and the mended answer with the optimum.

    Every other case is weighed. Ratios are of sums over the cases: jobs per job that had to fall,
    and GPU-seconds per GPU-second that had to be wasted.
    """
    rng = np.random.default_rng(seed)
    answers = (*RULES, "best of three", "mended")
    cost = {name: [0.0, 0.0] for name in answers}
    best, proven, hit, times = [0.0, 0.0], 0, 0, []
    for number in range(cases):
        weighed = bool(number % 2)
        servers = int(rng.integers(SERVERS[0], SERVERS[1] + 1))
        jobs = int(servers * rng.uniform(0.5, 2.5))
        occupants = case(rng, servers, jobs, LAYOUTS[number % 3], weighed=weighed)
        need = max(1, int(servers * rng.uniform(0.05, 0.7)))
        least, bound = optimum(occupants, servers, need)
        proven += least <= bound + 1e-6 * max(1.0, bound)
        best[weighed] += least
        alone = [choose(occupants, range(servers), need, (rule,)).cost for rule in RULES]
        begin_s = process_time()
        mended = choose(occupants, range(servers), need).cost
        times.append(process_time() - begin_s)
        hit += mended <= least + 1e-6 * max(1.0, least)
        for name, found in zip(answers, (*alone, min(alone), mended), strict=True):
            cost[name][weighed] += found
    return {
        "cases": cases,
        "proven": proven,
        "optimal": hit,
        "preemptions_least": round(best[0]),
        "ratios": [
            {
                "answer": name,
                "preemptions": round(cost[name][0] / best[0], 4),
                "gpu_s": round(cost[name][1] / best[1], 4),
            }
            for name in answers
        ],
        "mean_ms": round(1e3 * float(np.mean(times)), 2),
        "p99_ms": round(1e3 * float(np.quantile(times, 0.99)), 2),
    }


def large(seed: int = 3) -> list[dict[str, Any]]:
    """Empty 100 of 520 full servers, once in each layout."""
    servers, jobs, need = LARGE
    rng, found = np.random.default_rng(seed), []
    for layout in LAYOUTS:
        occupants = case(rng, servers, jobs, layout)
        least, bound = optimum(occupants, servers, need)
        begin_s = process_time()
        chosen = choose(occupants, range(servers), need)
        row = {"layout": layout, "jobs": len(occupants), "stopped": len(chosen.stopped)}
        row |= {"least": round(least), "bound": round(bound, 2)}
        found.append(row | {"ms": round(1e3 * (process_time() - begin_s), 1)})
    return found


def main() -> int:
    """Measure and print; the figures as JSON where asked."""
    parser = parser_of("reclaim", __doc__)
    parser.add_argument("--cases", type=int, default=1_000, help="random cases (1000)")
    parser.add_argument("--seed", type=int, default=1, help="of the cases (1)")
    options = parser.parse_args()
    figures = measure(options.cases, options.seed)
    figures["large"] = large()
    lines = [
        f"{figures['cases']} cases, optimum proven in {figures['proven']}; against the optimum:",
        f"{'answer':16} {'preemptions':>12} {'GPU-seconds':>12}",
        *(
            f"{row['answer']:16} {row['preemptions']:12.4f} {row['gpu_s']:12.4f}"
            for row in figures["ratios"]
        ),
        f"mended: optimal in {figures['optimal']} cases; "
        f"{figures['mean_ms']} ms of one core on average, p99 {figures['p99_ms']} ms",
        f"{LARGE[2]} of {LARGE[0]} servers:",
        f"{'layout':12} {'jobs':>5} {'stopped':>8} {'least':>6} {'bound':>8} {'ms':>6}",
        *(
            f"{row['layout']:12} {row['jobs']:5} {row['stopped']:8} {row['least']:6} "
            f"{row['bound']:8} {row['ms']:6}"
            for row in figures["large"]
        ),
    ]
    print("\n".join(lines), file=sys.stderr)
    write(options.json, **figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
