"""How a run on Slurm ended, in words, and whether trying again makes sense."""

from cloud_agent.slurm.commands import SlurmJob
from cloud_agent.slurm.run import Run
from runtime.executors.attempt import Outcome
from schemas.programs import Program

_WORDS = {
    "BOOT_FAIL": "a node did not boot",
    "CANCELLED": "somebody other than the agent cancelled its Slurm job",
    "DEADLINE": "Slurm's deadline for the job has passed",
    "NODE_FAIL": "a node failed",
    "OUT_OF_MEMORY": "a worker used more memory than Slurm allows it",
    "PREEMPTED": "Slurm preempted it for another job",
    "REVOKED": "Slurm runs the job on another cluster",
    "TIMEOUT": "Slurm's time limit for the job has passed",
}
_ERROR_MAX = 1000


def outcome(
    run: Run, own: SlurmJob | None, slurm_id: int | None, cause: str | None, program: Program
) -> Outcome:
    """Tell from Slurm's word, else from what the batch script wrote at its end.

    Args:
        run: Its files.
        own: Its job as listed; None: Slurm does not know it any more.
        slurm_id: The id of that job; None: there was none.
        cause: Why the agent ended it by itself, if it did.
        program: What the workers ran.
    """
    if cause is not None:
        return Outcome(False, cause[:_ERROR_MAX])
    code = run.exit_code()
    state = own.state if own is not None else None
    if state == "COMPLETED" or (state is None and code == 0):
        if not run.told():
            return Outcome(True)
        words = (
            "Slurm asked the workers to leave (a time limit, a preemption, an operator), or the "
            "agent's lease ended"
        )
        return Outcome(False, words)
    failures, runnable = run.failures()
    if not runnable:
        return Outcome(False, f"{program.argv[0]}: cannot be run there: {failures}", False)
    if state in _WORDS:
        words = _WORDS[state]
    elif failures:
        words = failures
    elif code is not None:
        words = f"its workers ended with code {code}: {run.last_words()}"
    elif state is not None:
        words = f"its Slurm job {slurm_id} is {state}: {run.last_words()}"
    else:
        words = f"its Slurm job {slurm_id} is gone, and nobody wrote down how it ended"
    return Outcome(False, words[:_ERROR_MAX])
