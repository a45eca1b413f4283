"""Finds the checkpoint that a job resumes from: a local one if it fits, else the store's.

And brings its code, where it has some.
"""

import contextlib
import threading
from pathlib import Path

from runtime.checkpoints.store import CheckpointError, CheckpointStore
from runtime.executors.failures import Failure
from runtime.executors.folder import COMMITTED, read_json
from runtime.executors.local_checkpoints import epoch_of, run_folders
from runtime.executors.options import ExecutorOptions, ProcessOptions
from runtime.executors.tenants import FETCHED, close_fetched, remove_fetched, user_of
from runtime.jobcode.fetching import CodeRefused, CodeSource, fetch_code
from runtime.threads import in_thread
from schemas.commands import GangSpec


class Fetch:
    """A fetch under way; `future` gives the checkpoint's path, or why there is none."""

    def __init__(self, options: ExecutorOptions, job: str, step: int, first_epoch: int) -> None:
        """Start it in a thread of its own."""
        store, root = options.store, options.root
        closed = isinstance(options, ProcessOptions) and options.tenants is not None
        self.step, self.cancel = step, threading.Event()
        stop = self.cancel
        self.future = in_thread(
            lambda: fetched(store, root, job, step, stop, first_epoch, closed=closed)
        )

    @property
    def failure(self) -> Failure | None:
        """Why it failed; None if it did not."""
        error = self.future.exception()
        return None if error is None else Failure(f"its checkpoint cannot be brought here: {error}")


class CodeFetch:
    """Code on its way to a run; `future` gives the folder that it was unpacked into."""

    def __init__(self, options: ProcessOptions, job: str, spec: GangSpec) -> None:
        """Start it in a thread of its own."""
        self.cancel = threading.Event()
        program = spec.program
        assert program is not None

        def work() -> Path:
            uid = user_of(options.tenants, spec.tenant)
            source = CodeSource(program, spec.tenant, options.code, options.code_max_mib, uid)
            return fetch_code(source, job_folder(options.root, job), self.cancel)

        self.future = in_thread(work)

    @property
    def failure(self) -> Failure | None:
        """Why it failed, and whether another time would be better; None if it did not."""
        error = self.future.exception()
        if isinstance(error, CodeRefused):
            return Failure(str(error), retriable=False)
        return None if error is None else Failure(f"its code cannot be brought here: {error}")


def job_folder(root: Path, job: str) -> Path:
    """Name the folder of all runs of a job."""
    return root / "runs" / job


def epochs(folder: Path) -> list[int]:
    """Give the epochs of a job that have a run folder, the newest first."""
    if not folder.is_dir():
        return []
    return sorted((int(p.name) for p in folder.iterdir() if p.name.isdecimal()), reverse=True)


def fetched(
    store: CheckpointStore,
    root: Path,
    job: str,
    step: int,
    stop: threading.Event,
    first_epoch: int = 0,
    *,
    closed: bool = False,
) -> Path:
    """Give the path of the job's checkpoint of this step, fetched if need be. Blocks.

    The store decides which one it is: the job may have run elsewhere meanwhile. If the store does
    not have it, or does not answer, a checkpoint that this machine uploaded itself will do.

    Raises:
        CheckpointError: there is none, or it cannot be fetched.
    """
    folder = job_folder(root, job)
    here = _here(folder, step, first_epoch)
    try:
        checkpoint = store.find(job, step, first_epoch)
    except CheckpointError:
        if here is None:
            raise
        return here[1]
    if checkpoint is None and here is not None:
        return here[1]
    if checkpoint is None:
        # The agent that ran it last, out of contact, stored newer ones and deleted this one.
        newer = (one for one in store.committed(job, first_epoch) if one.step > step)
        checkpoint = next(newer, None)
    if checkpoint is None:
        raise CheckpointError(
            f"step: the store has no checkpoint of {job} at step {step}; see that all agents of "
            "the fleet use one store"
        )
    if here is not None and here[0] == checkpoint.epoch:
        return here[1]
    remove_fetched(folder)
    if closed:
        close_fetched(folder)
    return store.fetch(checkpoint, folder / FETCHED, stop=stop)


def _here(folder: Path, step: int, first_epoch: int) -> tuple[int, Path] | None:
    """Find a checkpoint of the step that a run on this machine wrote and uploaded."""
    for run in run_folders(folder):
        said = read_json(run / COMMITTED)
        if said is None or said.get("step") != step or epoch_of(run) < first_epoch:
            continue
        # The run may have been set aside since, under another name.
        with contextlib.suppress(OSError, ValueError):  # the path is not below the job's folder
            path = run.joinpath(*Path(said["path"]).relative_to(folder).parts[1:])
            if ".." not in path.parts and path.exists():
                return epoch_of(run), path
    return None
