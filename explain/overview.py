"""A cell at a glance, as plain data. Moments in seconds since the Unix epoch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from explain.answer import Reading
from explain.rows import LoanTotals, loans_table


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs of nodes in contact."""

    alive: int
    held: int  #: That jobs hold.
    loaned: int
    serving: float  #: That owners need and have.


@dataclass(slots=True)
class PoolRow:
    """A pool."""

    pool: str
    kind: str
    nodes: int = 0
    gpus: int = 0
    held: int = 0
    loaned: int = 0


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Deadlines of jobs that have ended."""

    met: int
    total: int


@dataclass(frozen=True, slots=True)
class Glance:
    """A cell at a glance."""

    cell: str
    now_s: float
    origin_s: float  #: When the log began.
    leader: str
    leader_epoch: int
    policy: str
    jobs: Mapping[str, int]  #: By state, how many.
    nodes: Mapping[str, int]  #: By state, how many.
    gpus: Gpus
    pools: Sequence[PoolRow]
    loans: LoanTotals
    deadlines: Deadlines
    totals: Mapping[str, float]  #: Sums since the cell began.


def overview(reading: Reading) -> Glance:
    """Give a cell at a glance."""
    state, totals = reading.state, reading.state.totals
    pools = {pool.id: PoolRow(pool.id, pool.kind) for pool in state.pools.values()}
    for node in state.nodes.values():
        row = pools[node.pool]
        row.nodes += 1
        row.gpus += node.gpu_count
        row.held += node.gpu_count - node.holder.count(None)
        row.loaned += 0 if node.loan_state is None else node.gpu_count
    return Glance(
        cell=reading.cell,
        now_s=state.now_s,
        origin_s=reading.origin_s,
        leader=state.leader.name,
        leader_epoch=state.leader.epoch,
        policy=state.leader.policy,
        jobs=_by_value(Counter(job.state for job in state.jobs.values())),
        nodes=_by_value(Counter(node.state for node in state.nodes.values())),
        gpus=Gpus(state.gpus_alive, state.gpus_held, state.gpus_loaned, state.gpus_serving),
        pools=sorted(pools.values(), key=lambda row: (row.kind, row.pool)),
        loans=loans_table(reading).totals,
        deadlines=Deadlines(totals.deadlines_met, totals.deadlines_total),
        totals=asdict(totals),
    )


def _by_value(counts: Mapping[StrEnum, int]) -> dict[str, int]:
    # Of fifty thousand members to look up the values first takes three times as long.
    return {member.value: count for member, count in counts.items()}
