"""How long a job is and how far it came, and what that is known from: for `why` and `jobs`."""

from typing import Any

from rich.text import Text

from scheduler.core.state import Job, expected_steps
from scheduler.core.transitions import JobState

#: Nobody is done before it says so.
_NEARLY = 0.99


def steps_now(job: Job, now_s: float) -> float:
    """Give the steps that it took by now: what it did since its last report counts as done."""
    quiet_s = max(0.0, now_s - job.step_at_s) if job.state is JobState.RUNNING else 0.0
    return job.step + quiet_s * job.samples_per_s / job.samples_per_step


def share_done(job: Job, now_s: float) -> float:
    """Give the part of its steps that it took; a guess if it declared no total."""
    if job.state is JobState.COMPLETED:
        return 1.0
    done = job.step / expected_steps(job)
    return max(done, min(steps_now(job, now_s) / expected_steps(job), _NEARLY))


def percent(job: Job, now_s: float) -> str:
    """Say that part, and whether it is a guess."""
    guess = job.total_steps is None and job.state is not JobState.COMPLETED
    return f"{'~' if guess else ''}{share_done(job, now_s):.0%}"


def length_document(job: Job) -> dict[str, Any]:
    """Give what is known of its length as JSON types.

    `known_from` is `declared`, `kin` (jobs like it that took more steps than it did so far, or run
    and are further), or `itself` (its own steps so far).
    """
    length = job.length or {"ended": 0, "took": [], "running": 0}
    known_from = "kin" if length["ended"] or length["running"] else "itself"
    return {
        "steps": expected_steps(job),
        "known_from": known_from if job.total_steps is None else "declared",
        "kin_ended": length["ended"],
        "kin_took": length["took"],
        "kin_running": length["running"],
    }


def length_line(job: Job) -> Text:
    """Say the same in a line."""
    known = length_document(job)
    steps = f"{known['steps']:,.0f} steps"
    if known["known_from"] == "declared":
        return Text(f"Length: {steps}, as declared.", "dim")
    if known["kin_ended"]:
        low, high = known["kin_took"]
        took = f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"
        kin = f"{known['kin_ended']} of its kin that went further took {took}"
    elif known["kin_running"]:
        kin = f"{known['kin_running']} of its kin run, and are further"
    else:
        kin = "no kin came as far as itself"
    return Text(f"Length: some {steps}, not declared: {kin}.", "dim")
