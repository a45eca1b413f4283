"""What a demo came to, in figures."""

from typing import Any

from bus.contract import Bus
from console.fleet import Fleet
from scheduler.core.state import ClusterState, state_hash
from scheduler.core.transitions import TERMINAL, JobState
from schemas.topics import ALL_TOPICS, EVENTS, TELEMETRY


async def result_of(bus: Bus, fleet: Fleet) -> dict[str, Any]:
    """Give the figures of a run that is over, and what its bus and its scheduler counted."""
    state = fleet.scheduler.engine.state
    dead = 0
    for name in ALL_TOPICS:
        if name.endswith(".dlq"):
            async for _ in bus.read(name):  # offsets may have gaps
                dead += 1
    return {
        **figures(state),
        "events": await bus.end(EVENTS.name) + await bus.end(TELEMETRY.name),
        "dead_letters": dead,
        # Of this process: a run that was killed counts those since it went on.
        "duplicates": fleet.duplicates,
        "invariant_violations": fleet.scheduler.invariant_violations,
        "state_hash": state_hash(state),
    }


def figures(state: ClusterState) -> dict[str, Any]:
    """Give the figures of a run, from the state alone. Times in seconds."""
    totals = state.totals
    live = [job for job in state.jobs.values() if job.state not in TERMINAL]
    queued = sum(job.state is JobState.QUEUED for job in live)
    return {
        "jobs_submitted": totals.jobs_submitted,
        "jobs_completed": totals.jobs_completed,
        "jobs_failed": totals.jobs_failed,
        "jobs_running": len(live) - queued,
        "jobs_queued": queued,
        "mean_jct_s": totals.jct_s / totals.jobs_completed if totals.jobs_completed else None,
        "mean_queueing_s": totals.queueing_s / totals.jobs_started if totals.jobs_started else None,
        "deadlines_total": totals.deadlines_total,
        "deadlines_met": totals.deadlines_met,
        # Of unfinished jobs, not yet due; what is neither met nor open was missed.
        "deadlines_open": sum(
            job.deadline_s is not None and job.deadline_s > state.now_s for job in live
        ),
        "loans_granted": totals.loans_granted,
        "loans_reclaimed": totals.loans_reclaimed,
        "reclaims_late": totals.reclaims_late,
        "inference_shortfall_gpu_s": totals.inference_shortfall_gpu_s,
        "loaned_gpu_s": totals.loaned_gpu_s,
        "migrations": totals.migrations,
        "preemptions": totals.preemptions,
        "scale_outs": totals.scale_outs,
        "scale_ins": totals.scale_ins,
        "worker_failures": totals.failures,
        "policy_failures": totals.policy_failures,
        "claims": totals.claims,
        "claims_timed_out": totals.claims_timed_out,
        "gpu_utilisation": (
            (totals.training_gpu_s + totals.serving_gpu_s) / totals.gpu_s if totals.gpu_s else None
        ),
        "commands": totals.commands,
        "decisions": state.number,
    }
