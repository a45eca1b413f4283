"""The state as columns: the snapshot that policies see. Built anew each cycle, from state alone."""

from collections.abc import Iterable

import numpy as np

from scheduler.core.state import ClusterState, Job, Lender, Node, slot_s
from scheduler.core.transitions import TERMINAL, JobState, LoanState, NodeState
from scheduler.policies import interface as columns
from scheduler.policies.interface import Floats, Kind, LoanPhase, Phase

_KIND = {"training": Kind.TRAINING, "inference": Kind.INFERENCE, "edge": Kind.EDGE}
_LOAN = {
    None: LoanPhase.OWNED,
    LoanState.LENDING: LoanPhase.LENDING,
    LoanState.LENT: LoanPhase.LENT,
    LoanState.RECLAIMING: LoanPhase.RECLAIMING,
    LoanState.RETURNING: LoanPhase.RECLAIMING,
}
#: A reported rate this far off the declared one is taken for a glitch.
_FACTOR_MIN, _FACTOR_MAX = 0.05, 20.0


class View:
    """Makes snapshots; remembers only what can be made again from a job's own declaration."""

    def __init__(self) -> None:
        """Begin with nothing remembered."""
        self._sizes: tuple[int, ...] = (1,)
        self._rows: dict[str, Floats] = {}

    def snapshot(self, state: ClusterState) -> columns.Snapshot:
        """Give the columns of the state as it is now."""
        nodes = [node for node in state.nodes.values() if node.state is NodeState.ALIVE]
        node_index = {node.id: i for i, node in enumerate(nodes)}
        pool_ids = tuple(sorted(state.pools))
        pool_index = {name: i for i, name in enumerate(pool_ids)}
        jobs = [job for job in state.jobs.values() if job.state not in TERMINAL]
        pools = _pools(state, pool_ids)
        return columns.Snapshot(
            now_s=state.now_s,
            jobs=self._jobs(state, jobs, pool_index, pools),
            pools=pools,
            nodes=_nodes(state, nodes, pool_index),
            holdings=_holdings(jobs, node_index),
            lenders=_lenders(state, node_index),
        )

    def _jobs(
        self,
        state: ClusterState,
        jobs: list[Job],
        pool_index: dict[str, int],
        pools: columns.Pools,
    ) -> columns.Jobs:
        self._grow_sizes(jobs)
        now_s = state.now_s
        floats = np.array(
            [
                (
                    job.submit_s,
                    np.inf if job.deadline_s is None else job.deadline_s,
                    _left(job, now_s),
                    job.attained_gpu_s + job.size * (now_s - job.attained_at_s),
                    job.waiting_since_s,
                    -np.inf if job.changed_s is None else job.changed_s,
                    np.inf if job.rate_at_s is None else now_s - job.rate_at_s,
                    max(0.0, _step_now(job, now_s) - job.checkpoint_step) if job.cells else 0.0,
                    job.checkpoint_cost_s,
                    job.start_cost_s,
                    job.checkpoint_mib,
                    job.memory_mib,
                    -np.inf if job.backoff_until_s is None else job.backoff_until_s,
                    job.held_s + (now_s - job.attained_at_s if job.cells else 0.0),
                    np.inf if job.first_start_s is None else job.first_start_s,
                    *job.note,
                    *(np.nan for _ in range(columns.NOTE - len(job.note))),
                )
                for job in jobs
            ],
            dtype=np.float64,
        ).reshape(len(jobs), 15 + columns.NOTE)
        phases = [_phase(state, job) for job in jobs]
        where = [_going(job) for job in jobs]
        factors = np.array(
            [
                1.0 if job.curve else min(max(job.rate_factor, _FACTOR_MIN), _FACTOR_MAX)
                for job in jobs
            ],
            dtype=np.float64,
        )
        rows = [self._row(job) for job in jobs]
        rate = np.stack(rows) * factors[:, None] if rows else np.zeros((0, len(self._sizes)))
        return columns.Jobs(
            ids=tuple(job.id for job in jobs),
            tenants=tuple(job.tenant for job in jobs),
            phase=_ints(phases),
            submit_s=floats[:, 0],
            deadline_s=floats[:, 1],
            priority=_ints(job.priority for job in jobs),
            remaining_steps=floats[:, 2],
            attained_gpu_s=floats[:, 3],
            held_s=floats[:, 13],
            first_start_s=floats[:, 14],
            restarts=_ints(0 for job in jobs),
            waiting_since_s=floats[:, 4],
            requested=_ints(job.gpus_min if job.gpus is None else job.gpus for job in jobs),
            size=_ints(size for size, _ in where),
            pool=_ints(-1 if pool is None else pool_index[pool] for _, pool in where),
            changed_s=floats[:, 5],
            sizes=_ints(self._sizes),
            rate=rate,
            rate_age_s=floats[:, 6],
            checkpoint_age_steps=floats[:, 7],
            checkpoint_cost_s=floats[:, 8],
            start_cost_s=floats[:, 9],
            checkpoint_mib=floats[:, 10],
            memory_mib=floats[:, 11],
            edge_allowed=np.array([job.edge_allowed for job in jobs], dtype=np.bool_),
            backoff_until_s=floats[:, 12],
            notes=floats[:, 15:],
            affinity=np.array(
                [
                    [
                        (j.curve or {}).get("affinity", {}).get(n, s)
                        for n, s in zip(pools.ids, pools.speed)
                    ]
                    for j in jobs
                ]
            ).reshape(len(jobs), len(pools.ids)),
        )

    def _grow_sizes(self, jobs: list[Job]) -> None:
        """Keep the grid of sizes to what present jobs declare."""
        fresh = [job for job in jobs if job.id not in self._rows]
        if not fresh and len(self._rows) == len(jobs):
            return
        sizes = tuple(sorted({int(size) for job in jobs for size, _ in job.rates})) or (1,)
        if sizes != self._sizes:
            self._sizes, self._rows = sizes, {}
        else:
            present = {job.id for job in jobs}
            self._rows = {name: row for name, row in self._rows.items() if name in present}

    def _row(self, job: Job) -> Floats:
        """Declared steps per second at each size; 0 where the job may not have that size."""
        if job.curve is not None:
            pts = np.array(job.curve["points"])
            return np.interp(np.array(self._sizes, dtype=np.float64), pts[:, 0], pts[:, 1])
        row = self._rows.get(job.id)
        if row is None:
            declared = np.array(job.rates, dtype=np.float64)
            sizes = np.array(self._sizes, dtype=np.float64)
            row = np.interp(sizes, declared[:, 0], declared[:, 1]) / job.samples_per_step
            allowed = (sizes >= max(job.gpus_min, declared[0, 0])) & (
                sizes <= min(job.gpus_max, declared[-1, 0])
            )
            row = np.where(allowed, row, 0.0)
            self._rows[job.id] = row
        return row


def _ints(values: Iterable[int]) -> columns.Ints:
    return np.array(list(values), dtype=np.int64)


def _left(job: Job, now_s: float) -> float:
    now = _step_now(job, now_s)
    if job.curve is None:
        return max(0.0, job.total_steps - now)
    return max(1e-9, job.curve["left"] - (now - job.curve_step) * job.curve["per_step"])


def _step_now(job: Job, now_s: float) -> float:
    """Extrapolate the last report by the reported rate."""
    rate = job.samples_per_s / job.samples_per_step
    return min(float(job.total_steps), job.step + rate * max(0.0, now_s - job.step_at_s))


def _phase(state: ClusterState, job: Job) -> int:
    if job.target is not None or job.leaving:
        return Phase.MOVING
    if job.state is JobState.QUEUED:
        return Phase.WAITING
    if job.state is not JobState.RUNNING:
        return Phase.MOVING
    out_of_contact = any(state.nodes[n].state is not NodeState.ALIVE for n in job.cells)
    return Phase.MOVING if out_of_contact else Phase.RUNNING


def _going(job: Job) -> tuple[int, str | None]:
    """Size and pool that the job has, or is going to."""
    if job.target is not None:
        return sum(map(len, job.target.values())), job.target_pool
    return job.size, job.pool


def _pools(state: ClusterState, ids: tuple[str, ...]) -> columns.Pools:
    first = [state.nodes[state.pools[name].nodes[0]] for name in ids]
    return columns.Pools(
        ids=ids,
        kind=_ints(_KIND[state.pools[name].kind] for name in ids),
        speed=np.array([node.speed_factor for node in first], dtype=np.float64),
        gpu_memory_mib=np.array([node.gpu_memory_mib for node in first], dtype=np.float64),
        transfer_mib_per_s=np.array([node.transfer_mib_per_s for node in first], dtype=np.float64),
    )


def _nodes(state: ClusterState, nodes: list[Node], pool_index: dict[str, int]) -> columns.Nodes:
    usable = [
        state.pools[node.pool].kind == "training" or node.loan_state is LoanState.LENT
        for node in nodes
    ]
    free = [
        sum(
            holder is None and claim is None
            for holder, claim in zip(node.holder, node.claim, strict=True)
        )
        if able
        else 0
        for node, able in zip(nodes, usable, strict=True)
    ]
    lent = [node.loan_since_s if node.loan_state is LoanState.LENT else -np.inf for node in nodes]
    back = [-np.inf if node.returned_s is None else node.returned_s for node in nodes]
    return columns.Nodes(
        ids=tuple(node.id for node in nodes),
        pool=_ints(pool_index[node.pool] for node in nodes),
        gpus=_ints(node.gpu_count for node in nodes),
        free=_ints(free),
        usable=np.array(usable, dtype=np.bool_),
        loan=_ints(_LOAN[node.loan_state] for node in nodes),
        lent_since_s=np.array(lent, dtype=np.float64),
        returned_s=np.array(back, dtype=np.float64),
    )


def _holdings(jobs: list[Job], node_index: dict[str, int]) -> columns.Holdings:
    triples = [
        (j, node_index[name], len(gpus))
        for j, job in enumerate(jobs)
        for name, gpus in sorted(job.cells.items())
        if name in node_index
    ]
    table = np.array(triples, dtype=np.int64).reshape(len(triples), 3)
    return columns.Holdings(job=table[:, 0], node=table[:, 1], gpus=table[:, 2])


def _lenders(state: ClusterState, node_index: dict[str, int]) -> tuple[columns.Lender, ...]:
    owners: dict[str, list[int]] = {}
    for name, pool in state.pools.items():
        if pool.kind == "inference":
            owners[name] = [node_index[node] for node in pool.nodes if node in node_index]
        elif pool.kind == "edge":
            for node in pool.nodes:
                if node in node_index:
                    owners[node] = [node_index[node]]
    return tuple(_lender(state, name, sorted(owners[name])) for name in sorted(owners))


def _lender(state: ClusterState, name: str, nodes: list[int]) -> columns.Lender:
    lender = state.lenders.get(name) or Lender(name)
    now_slot = int(state.now_s // slot_s(state))
    missing = max(0, now_slot - lender.slot) if lender.slot >= 0 else 0
    history = np.array(
        [np.nan if peak is None else peak for peak in lender.history]
        + [lender.gpus_needed] * missing,
        dtype=np.float64,
    )
    return columns.Lender(
        id=name,
        nodes=_ints(nodes),
        gpus_needed=lender.gpus_needed,
        load_age_s=np.inf if lender.at_s is None else state.now_s - lender.at_s,
        history=history,
        slot_s=slot_s(state),
    )
