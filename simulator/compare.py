"""Policies side by side: the same jobs, physics and cluster, on every core.

A case is plain data, so that any process can run it; it yields figures and curves, no objects of
the run. Cases do not share anything, and their order does not matter.

Policies run with their default options, but for `fifo`: elsewhere it gives each job its smallest
size, here the size that the job asks for, as a baseline is understood in the literature.
"""

import math
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from scheduler.policies.interface import Plan, Policy, Snapshot
from scheduler.policies.registry import make_policy, name_of
from scheduler.policies.spec import split
from simulator.at_once import Submit, in_order, in_processes
from simulator.csv_rows import WorkloadError
from simulator.driver import START_S
from simulator.failures import failures
from simulator.generated import Mix
from simulator.layout import Layout
from simulator.metrics import Number, measure
from simulator.neighbours import neighbours
from simulator.options import Agents
from simulator.physics.base import Cluster, Entry, Physics, from_first_day
from simulator.physics.simple import GENERATED, SimplePhysics
from simulator.pools import SimulatedPool
from simulator.run import Options, Outcome, PolicyError, ladder, simulate

PHYSICS = ("pollux", "elasticflow", "simple")
Knowledge = Literal["learned", "unknown", "true"]
Grid = Literal["ladder", "all", "powers"]
#: Whose jobs tune their batch, as in their papers; for others the batch is the row's.
TUNING = ("pollux", "deepboot", "sia", "tide")
#: Who decides in rounds only, as in the simulator published with Pollux; and `afs`, which shares
#: anew whenever it is asked: asked whenever a gang has come to rest, it lets none rest.
IN_ROUNDS = ("tiresias", "gittins", "optimus", "pollux", "deepboot", "sia", "afs")
_SIZES_MOST = 64
#: Demand of other pools, and failures, go on for so long after the last job came.
_AFTER_H = 14 * 24.0


class RunError(Exception):
    """A run was not finished; the message says why, and what to do next."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run to make."""

    policy: str
    workload: str
    physics: str = "pollux"
    profiles: str | None = None
    cluster: Cluster = field(default_factory=Cluster)
    inference_nodes: int = 0  #: Servers that may be lent, each with the cluster's GPUs per node.
    edge_nodes: int = 0  #: Servers of one GPU.
    requests: str | None = None  #: A trace of requests to the inference servers; None: a tide.
    seed: int = 1  #: Of a generated workload, and of the demand of other pools.
    mix: Mix = field(default_factory=Mix)  #: Of a generated workload.
    round_s: float = 60.0
    merge_s: float = 0.0  #: Least time between decisions.
    #: Whether jobs tune their batch; None: as the policy's paper has it.
    tuning: bool | None = None
    on_events: bool | None = None  #: Whether to decide at events too; None: as above.
    knowledge: Knowledge = "learned"
    agents: Agents = "ideal"
    mtbf_h: float = math.inf  #: Mean time that a node is up between two failures; inf: none fail.
    repair_s: float = 1800.0  #: How long a node that failed is gone.
    #: How often gangs save their work where nodes fail, by default in the middle of what agents
    #: do (`runtime.core.state.Limits`); it costs nothing.
    checkpoint_s: float = 750.0
    grid: Grid = "ladder"  #: Which sizes are offered, besides those asked for.
    horizon_s: float = math.inf
    journal: str | None = None  #: File for its records (`simulator.log`).
    cell: str = "default"  #: Of its journal.

    @property
    def tunes(self) -> bool:
        """Whether jobs are to tune their batch; only those of the `pollux` physics can."""
        return name_of(self.policy) in TUNING if self.tuning is None else self.tuning

    @property
    def at_events(self) -> bool:
        """Whether the policy decides at events too."""
        return name_of(self.policy) not in IN_ROUNDS if self.on_events is None else self.on_events


@dataclass(frozen=True, slots=True)
class Finished:
    """What came of a case."""

    case: Case
    figures: dict[str, Number]
    jct_s: tuple[float, ...]  #: Of jobs that ended, ascending.
    #: Moments, and the share of GPUs allocated from each on.
    line: tuple[tuple[float, float], ...]
    #: Moments, and the GPUs on loan from inference servers from each on.
    loans: tuple[tuple[float, float], ...] = ()

    def row(self) -> dict[str, str | Number]:
        """Return it as one flat row.

        How it was run is said as it was, not as it was asked for: jobs of other physics than
        `pollux` never tune their batch, and what they are is known.
        """
        case = self.case
        may_tune, fails = case.physics == "pollux", case.mtbf_h < math.inf
        return {
            "policy": case.policy,
            "workload": case.workload,
            "physics": case.physics,
            "seed": case.seed,
            "nodes": case.cluster.nodes,
            "gpus_per_node": case.cluster.gpus_per_node,
            "training_agents": case.cluster.agents,
            "inference_nodes": case.inference_nodes,
            "edge_nodes": case.edge_nodes,
            "when": "events" if case.at_events else "rounds",
            "round_s": case.round_s,
            "merge_s": case.merge_s,
            "tuning": case.tunes and may_tune,
            "knowledge": case.knowledge if may_tune else "true",
            "agents": case.agents,
            "mtbf_h": case.mtbf_h if fails else None,
            "repair_s": case.repair_s if fails else None,
            "checkpoint_s": case.checkpoint_s if fails else None,
            "sizes": case.grid,
            **self.figures,
        }


def check(case: Case) -> tuple[str, ...]:
    """Find early what cannot be run.

    Returns:
        What will be otherwise than the workload's file has it.

    Raises:
        ValueError: The policy or the physics is not known; the message lists those there are. Or
            nothing serves the requests, or the physics is not that of real agents.
        WorkloadError: The workload, the profiles or the requests cannot be used, or a job asks for
            more GPUs than there are.
    """
    make_policy(line_of(case.policy))
    if case.requests is not None and not case.inference_nodes:
        raise ValueError("--requests: nothing is there to serve them; give --inference-nodes too.")
    if case.agents == "core" and case.physics != "simple":
        raise ValueError(
            f"--agents: real agent cores have no {case.physics} physics, only their own pauses for "
            "jobs that run as declared; give --physics simple, or leave it out."
        )
    if case.agents == "core" and case.mtbf_h < math.inf:
        raise ValueError("--mtbf-h: real agent cores do not fail here; leave out --agents core.")
    _pools(case, 0.0)
    physics, workload = make_physics(case), Path(case.workload)
    _check_room(case, physics.entries(workload, case.cluster, adaptive=False))
    return physics.notes(workload) if isinstance(physics, SimplePhysics) else ()


def _check_room(case: Case, entries: Sequence[Entry]) -> None:
    large = [entry for entry in entries if entry.requested > case.cluster.gpus]
    if large:
        most = max(large, key=lambda entry: entry.requested)
        raise WorkloadError(
            f"{case.workload}: {len(large)} of its {len(entries)} jobs ask for more GPUs than the "
            f"{case.cluster.gpus} of the training pool, {most.id} for {most.requested}; give more "
            "--nodes or --gpus-per-node, or take them out of the trace."
        )


def make_physics(case: Case) -> Physics:
    """Make the physics of a case.

    Raises:
        ValueError: It is not known.
        WorkloadError: It needs profiles.
    """
    profiles = None if case.profiles is None else Path(case.profiles)
    if case.physics == "simple":
        return SimplePhysics(profiles, case.seed, case.mix)
    if case.physics not in PHYSICS:
        raise ValueError(
            f"physics {case.physics!r} is not known; choose one of: {', '.join(sorted(PHYSICS))}"
        )
    if case.workload == GENERATED:
        raise WorkloadError(
            f"--physics: {case.physics} needs a trace; made-up jobs need --physics simple."
        )
    if profiles is None:
        raise WorkloadError(
            f"The {case.physics} physics needs the folder of the measured profiles: --profiles DIR."
        )
    # Only what is asked for is imported: some need scipy, which a plain install has not.
    if case.physics == "elasticflow":
        from simulator.physics.elasticflow import ElasticFlowPhysics

        return ElasticFlowPhysics(profiles).charging(name_of(case.policy))
    from simulator.physics.pollux import Oracle, PolluxPhysics
    from simulator.physics.pollux_learned import Learning

    known = Oracle if case.knowledge == "true" else Learning()
    return PolluxPhysics(profiles, known, hides=case.knowledge == "unknown")


#: Told of a run under way: its moment in seconds, and how many jobs are active.
Watch = Callable[[Case, float, int], None]


def run_case(case: Case, watch: Watch | None = None) -> Finished:
    """Run a case.

    Raises:
        RunError: The policy needs a package that is not installed, or cannot decide with the
            options that it was given.
    """
    physics = make_physics(case)
    entries = from_first_day(
        physics.entries(Path(case.workload), case.cluster, adaptive=case.tunes)
    )
    last_s = max((entry.submit_s for entry in entries), default=0.0)
    fails, pools = case.mtbf_h < math.inf, _pools(case, last_s)
    until_s = min(case.horizon_s, last_s + 3600.0 * _AFTER_H)
    options = Options(
        cluster=case.cluster,
        pools=pools,
        failures=failures(
            Layout(case.cluster, pools), case.mtbf_h, case.repair_s, case.seed, until_s
        ),
        checkpoint_every_s=case.checkpoint_s if fails else math.inf,
        round_s=case.round_s,
        merge_s=case.merge_s,
        on_events=case.at_events,
        sizes=_sizes(case, entries),
        tick_s=physics.tick_s,
        instant=physics.instant,
        horizon_s=case.horizon_s,
        agents=case.agents,
    )
    line = line_of(case.policy)
    policy: Policy = make_policy(line)
    if watch is not None:
        policy = Watched(policy, partial(watch, case))
    journal = None if case.journal is None else Path(case.journal)
    try:
        run = simulate(entries, policy, options, line=line, cell=case.cell, journal=journal)
    except PolicyError as error:
        raise RunError(_blame(case.policy, error)) from (error.__cause__ or error)
    return finished(case, run)


def line_of(policy: str) -> str:
    """Complete a policy's line: users of `fifo` ask for a size, and get it."""
    asks = name_of(policy) == "fifo" and ":sizes=" not in policy
    return f"{policy}:sizes=requested" if asks else policy


def _blame(line: str, failed: PolicyError) -> str:
    """Say what went wrong with a policy, and what to do about it."""
    error = failed.__cause__
    if isinstance(error, ModuleNotFoundError):  # some import when first asked
        return f"policy {line} needs {error.name}; install `tidegate[sim]`."
    name, *options = split(line, ":")
    if error is None or not options:
        frames = traceback.extract_tb(None if error is None else error.__traceback__)
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        return (
            f"policy {line} cannot go on: {failed}{where}; please report this, unless the policy "
            "is yours."
        )
    return (
        f"policy {name} cannot decide with {', '.join(options)}: "
        f"{type(error).__name__}: {error}; leave it out, or give it another value."
    )


class Watched:
    """A policy that tells when it is asked."""

    def __init__(self, policy: Policy, tell: Callable[[float, int], None]) -> None:
        self.name = policy.name
        self._policy = policy
        self._tell = tell

    def plan(self, snapshot: Snapshot) -> Plan:
        self._tell(snapshot.now_s - START_S, len(snapshot.jobs.ids))
        return self._policy.plan(snapshot)


def finished(case: Case, run: Outcome) -> Finished:
    """Keep of a run what is reported."""
    jct_s = run.end_s - run.submit_s
    share = run.line_gpus / (run.cluster.gpus if run.fleet is None else run.fleet.gpus)
    loans: tuple[tuple[float, float], ...] = ()
    if run.fleet is not None:
        loans = tuple(zip(run.fleet.line_s.tolist(), run.fleet.line_lent.tolist(), strict=True))
    return Finished(
        case,
        measure(run),
        tuple(sorted(jct_s[jct_s < math.inf].tolist())),
        tuple(zip(run.line_s.tolist(), share.tolist(), strict=True)),
        loans,
    )


def compare(
    cases: Sequence[Case],
    processes: int | None = None,
    tell: Callable[[int, Finished], None] | None = None,
    submit: Submit | None = None,
    watch: Watch | None = None,
) -> list[Finished]:
    """Run cases, in as many processes as there are cores, and give them in their order.

    Args:
        cases: What to run.
        processes: How many at once; None: one per core.
        tell: Called with how many have finished, and the one that just did.
        submit: Where else to run them, as `simulator.remote` does; None: here.
        watch: Told at every decision, where cases run one after the other in this process.

    Raises:
        RunError: A process ended before its run did, or a policy lacks a package.
    """
    run: Callable[[Case], Finished] = run_case
    if submit is None:
        wanted = min(len(cases), processes or os.cpu_count() or 1)
        broken = RunError(
            "A process that made runs ended before they did, perhaps for want of memory; "
            "try --processes 1."
        )
        submit = map if wanted <= 1 else in_processes(wanted, broken)
        if wanted <= 1 and watch is not None:
            run = partial(run_case, watch=watch)
    return in_order(run, cases, submit, tell)


def _pools(case: Case, last_s: float) -> tuple[SimulatedPool, ...]:
    return neighbours(
        case.inference_nodes,
        case.edge_nodes,
        case.cluster.gpus_per_node,
        case.seed,
        last_s / 3600.0 + _AFTER_H,
        None if case.requests is None else Path(case.requests),
    )


def _sizes(case: Case, entries: Sequence[Entry]) -> tuple[int, ...]:
    asked = {entry.requested for entry in entries}
    own = {size for entry in entries for size in getattr(entry.model, "sizes", ())}
    most = case.cluster.gpus
    if case.grid == "all":
        grid = {*range(1, min(most, _SIZES_MOST) + 1)}
    elif case.grid == "powers" or case.physics == "elasticflow":
        grid = {1 << power for power in range(most.bit_length())}
    else:
        grid = set(ladder(case.cluster))
    return tuple(sorted(size for size in {*grid, *asked, *own} if 1 <= size <= most))
