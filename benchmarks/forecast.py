"""How much a lender lends that must guess, against one that knows: `python -m benchmarks.forecast`.

Tides with bursts over days and weekends (`simulator.tides`) on servers of 8 GPUs. Every 5 minutes
`scheduler.policies.parts.loans` decides from the peaks it has seen. A server that is lent is of use
to training a minute later; one that is taken back serves again after three. The owner is short
where it needs more GPUs than it then has.

The clairvoyant lender has the same whole servers, decisions and delays, and knows all demand. It
is never short; or, second column, short for as much of the GPU-time as it may be, where that pays
most. Rows: how much history there is at the start, and how much of it is kept: two days is what the
live engine keeps.
"""

import sys
from dataclasses import dataclass, replace
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import parser_of, write
from scheduler.policies.interface import Kind, Lender, LoanPhase
from scheduler.policies.parts.loans import LoanOptions, Outlook
from simulator.tides import pool_tide
from tests.snapshots import Pool, snapshot

GPUS = 8
MINUTE_S, SLOT_S = 60.0, 300.0
#: In minutes: between decisions, until a lent server is of use, until a reclaimed one serves.
EVERY, LEND, RECLAIM = 5, 1, 3
DAY = 1440
MAY_BE_SHORT = 1e-3
SEEDS = (101, 102, 103, 104, 105)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a lender has to go by."""

    servers: int = 520
    days: int = 15
    before: int = 14  #: days of history at the start.
    kept: int = 15  #: days of history that are kept.


def peaks(need: Floats) -> Floats:
    """Most GPUs needed in each slot of five minutes, from GPUs needed in each minute."""
    found: Floats = need.reshape(-1, EVERY).max(axis=1)
    return found


def clairvoyant_gpu_h(need: Floats, servers: int, may_be_short: float) -> float:
    """Return the GPU-hours of use to training that a lender with foresight lends.

    Whole servers one above the other: the k-th can be away while the others cover the need. Where
    the owner may be short, the cheapest interruptions per minute won are lent through.
    """
    spare = np.floor((servers * GPUS - need) / GPUS).astype(np.int64)
    budget = may_be_short * float(need.sum())
    total, gains = 0, []
    for level in range(1, servers + 1):
        edge = np.diff(np.concatenate([[0], (spare >= level).astype(np.int64), [0]]))
        start, end = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1)
        total += int(_useful(start, end, len(need)).sum())
        if may_be_short and len(start) > 1:
            lacking = np.clip(need - (servers - level) * GPUS, 0.0, GPUS)
            cost = np.add.reduceat(lacking, np.column_stack([end[:-1], start[1:]]).ravel())[::2]
            parts = _useful(start[:-1], end[:-1], len(need)) + _useful(
                start[1:], end[1:], len(need)
            )
            gains.append(np.stack([_useful(start[:-1], end[1:], len(need)) - parts, cost]))
    if gains:
        gain, cost = np.concatenate(gains, axis=1)
        order = np.argsort(-gain / cost, kind="stable")
        total += int(gain[order][np.cumsum(cost[order]) <= budget].sum())
    return total * GPUS / 60.0


def _useful(start: NDArray[np.int64], end: NDArray[np.int64], minutes: int) -> NDArray[np.int64]:
    """Minutes of use in loans that may last from `start` to `end`, decided every `EVERY`."""
    first = -(-start // EVERY) * EVERY
    last = np.where(end >= minutes, minutes, (end - RECLAIM) // EVERY * EVERY)
    return np.maximum(last - first - LEND, 0)


def lend(need: Floats, setting: Setting, options: LoanOptions) -> dict[str, float]:
    """Let the lender decide over all days but those before the start; returns what came of it."""
    servers, begin = setting.servers, setting.before * DAY
    seen = snapshot([Pool("serve", Kind.INFERENCE, nodes=servers, history=[0.0])], [])
    slots = peaks(need)
    away_until = np.zeros(servers)  # minute from which it serves; inf while it is lent
    useful = short = reclaimed = 0.0
    times = []
    for minute in range(begin, len(need), EVERY):
        now_s = minute * MINUTE_S
        slot = minute // EVERY
        kept = slots[max(0, slot + 1 - setting.kept * DAY // EVERY) : slot + 1].copy()
        kept[-1] = need[minute]  # of the present slot, only this minute is known
        phase = np.where(
            np.isinf(away_until),
            LoanPhase.LENT,
            np.where(away_until > minute, LoanPhase.RECLAIMING, LoanPhase.OWNED),
        )
        nodes = replace(seen.nodes, loan=phase.astype(np.int64))
        lender = Lender("serve", seen.lenders[0].nodes, float(need[minute]), 0.0, kept, SLOT_S)
        shown = replace(seen, now_s=now_s, nodes=nodes, lenders=(lender,))
        began_s = process_time()
        outlook = Outlook(shown, options, np.zeros(1))
        taken = outlook.reclaims(0) if outlook.takes[0] else None
        new = outlook.offers().get(0, [])
        times.append(process_time() - began_s)
        lent = np.isinf(away_until)
        back = list(taken.reclaim_from[: taken.reclaim]) if taken else []
        away_until[back] = minute + RECLAIM
        away_until[new] = np.inf
        nodes.lent_since_s[new] = now_s + LEND * MINUTE_S
        nodes.returned_s[back] = now_s + RECLAIM * MINUTE_S
        reclaimed += len(back)
        useful += EVERY * (lent.sum() - len(back)) + (EVERY - LEND) * len(new)
        for step in range(minute, min(minute + EVERY, len(need))):
            has = GPUS * float((away_until <= step).sum())
            short += max(0.0, float(need[step]) - has)
    return {
        "lent_gpu_h": useful * GPUS / 60.0,
        "short": short / float(need[begin:].sum()),
        "reclaimed": reclaimed,
        "mean_ms": 1e3 * float(np.mean(times)),
        "p99_ms": 1e3 * float(np.quantile(times, 0.99)),
    }


def measure(setting: Setting, seed: int, options: LoanOptions | None = None) -> dict[str, Any]:
    """Run one tide; returns the row."""
    hours = 24.0 * (setting.before + setting.days)
    tide = pool_tide(np.random.default_rng(seed), setting.servers * GPUS, hours)
    need = tide.needed.astype(np.float64)
    row = lend(need, setting, options or LoanOptions())
    after = need[setting.before * DAY :]
    knows = clairvoyant_gpu_h(after, setting.servers, 0.0)
    dares = clairvoyant_gpu_h(after, setting.servers, MAY_BE_SHORT)
    return {
        "servers": setting.servers,
        "seed": seed,
        "before": setting.before,
        "kept": setting.kept,
        **row,
        "captured": row["lent_gpu_h"] / knows,
        "captured_if_short": row["lent_gpu_h"] / dares,
    }


HEADER = (
    f"{'servers':>7} {'seed':>5} {'before':>7} {'kept':>5} {'lent GPU-h':>11} {'captured':>9} "
    f"{'of daring':>9} {'short':>9} {'reclaimed':>9} {'mean ms':>8} {'p99 ms':>7}"
)


def line(row: dict[str, Any]) -> str:
    """Write a row for people."""
    return (
        f"{row['servers']:7} {row['seed']:5} {row['before']:6}d {row['kept']:4}d "
        f"{row['lent_gpu_h']:11,.0f} {row['captured']:9.2%} {row['captured_if_short']:9.2%} "
        f"{row['short']:9.4%} {row['reclaimed']:9,.0f} {row['mean_ms']:8.2f} {row['p99_ms']:7.2f}"
    )


def main() -> int:
    """Measure and print; the rows as JSON where asked."""
    parser = parser_of("forecast", __doc__)
    parser.add_argument("--days", type=int, default=15, help="that are measured (15)")
    parser.add_argument("--servers", type=int, default=520, help="of 8 GPUs (520)")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="by commas")
    given = parser.parse_args()
    settings = [
        Setting(given.servers, given.days, before=14, kept=15),
        Setting(given.servers, given.days, before=2, kept=2),
        Setting(given.servers, given.days, before=0, kept=15),
    ]
    print(HEADER, file=sys.stderr)
    rows = []
    for setting in settings:
        for seed in map(int, given.seeds.split(",")):
            rows.append(measure(setting, seed))
            print(line(rows[-1]), file=sys.stderr, flush=True)
    write(given.json, rows=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
